//! The template of a key, and the labels of its metrics.

#[cfg(feature = "metrics")]
use metrics::Label;

#[cfg(feature = "metrics")]
use crate::mode::LockMode;

/// The template of a key: a literal of the program, with names in place of values.
#[derive(Debug)]
pub struct Template {
    text: &'static str,
    /// The labels for each mode, built at compile time so that recording a metric does not allocate.
    #[cfg(feature = "metrics")]
    pub(crate) labels: [[Label; 2]; 3],
}

impl Template {
    /// Creates a template and its labels.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self {
            text,
            #[cfg(feature = "metrics")]
            labels: [
                labels(text, LockMode::Exclusive),
                labels(text, LockMode::Shared),
                labels(text, LockMode::Permits),
            ],
        }
    }

    pub(crate) const fn text(&self) -> &'static str {
        self.text
    }
}

#[cfg(feature = "metrics")]
const fn labels(template: &'static str, mode: LockMode) -> [Label; 2] {
    [
        Label::from_static_parts("key", template),
        Label::from_static_parts("mode", mode.label()),
    ]
}
