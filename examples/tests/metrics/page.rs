//! The page that Prometheus reads: names, labels and buckets.

use std::collections::{BTreeMap, BTreeSet};

/// The series of a page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The labels of each series, by its name: a histogram has three names.
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
    /// The kind of each metric, such as `histogram`.
    pub(crate) kinds: BTreeMap<String, String>,
    /// The upper bounds of each histogram's buckets, in their order.
    pub(crate) bounds: BTreeMap<String, Vec<String>>,
}

impl Page {
    /// Parses the text format of Prometheus, as far as this project's labels need it: no value contains a quote or `,`.
    pub(crate) fn read(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a kind");
                page.kinds.insert(name.to_owned(), kind.to_owned());
            } else if !line.is_empty() && !line.starts_with('#') {
                page.add(line);
            }
        }
        page
    }

    fn add(&mut self, line: &str) {
        let (series, _) = line.rsplit_once(' ').expect("a series and a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',');
        for (label, value) in labels.filter_map(|label| label.split_once('=')) {
            let known = self.labels.entry(name.to_owned()).or_default();
            known.insert(label.to_owned());
            let histogram = name.strip_suffix("_bucket").filter(|_| label == "le");
            if let Some(histogram) = histogram {
                let bounds = self.bounds.entry(histogram.to_owned()).or_default();
                let bound = value.trim_matches('"').to_owned();
                if !bounds.contains(&bound) {
                    bounds.push(bound);
                }
            }
        }
    }

    /// Returns the metric to which a series belongs: the histogram of its buckets, sum or count, or the series itself.
    pub(crate) fn metric_of<'a>(&self, series: &'a str) -> &'a str {
        let parts = ["_bucket", "_sum", "_count"].iter();
        let mut histograms = parts.filter_map(|part| series.strip_suffix(part));
        histograms
            .find(|name| {
                self.kinds
                    .get(*name)
                    .is_some_and(|kind| kind == "histogram")
            })
            .unwrap_or(series)
    }
}
