//! The measurements, and how several rounds become one line.

use std::{fmt::Write, time::Duration};

use crate::usage::Usage;

/// The number of buckets for each power of two, so that a quantile is right within 2 %.
const CUTS: u32 = 1 << CUTS_LOG;
const CUTS_LOG: u32 = 6;

/// The times of many operations: a histogram from a nanosecond to hours, and the exact maximum.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Times {
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.add(bucket(nanos), 1);
        self.max = self.max.max(nanos);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.buckets.iter().enumerate() {
            self.add(bucket, *count);
        }
        self.max = self.max.max(other.max);
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The time below which the share `quantile` of all times is.
    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        let mut left = float(self.count) * quantile;
        for (bucket, count) in self.buckets.iter().enumerate() {
            left -= float(*count);
            if left <= 0.0 {
                return Duration::from_nanos(upper_bound(bucket).min(self.max));
            }
        }
        self.max()
    }

    /// The text for another process: the maximum, then the number and content of each bucket in use.
    pub(crate) fn to_text(&self) -> String {
        let mut text = self.max.to_string();
        for (bucket, count) in self.buckets.iter().enumerate() {
            if *count > 0 {
                write!(text, " {bucket}:{count}").expect("text can be written to a string");
            }
        }
        text
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let mut words = text.split(' ');
        let max = words.next().and_then(|max| max.parse().ok());
        let mut times = Self {
            max: max.expect("a maximum"),
            ..Self::default()
        };
        for word in words {
            let (bucket, count) = word.split_once(':').expect("bucket:count");
            times.add(
                bucket.parse().expect("a number"),
                count.parse().expect("a number"),
            );
        }
        times
    }

    fn add(&mut self, bucket: usize, count: u64) {
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += count;
        self.count += count;
    }
}

fn bucket(nanos: u64) -> usize {
    let Some(shift) = nanos
        .checked_ilog2()
        .and_then(|log| log.checked_sub(CUTS_LOG))
    else {
        return usize::try_from(nanos).expect("below the number of cuts");
    };
    let cut = (nanos >> shift) % u64::from(CUTS);
    usize::try_from(u64::from((shift + 1) * CUTS) + cut).expect("below four thousand")
}

fn upper_bound(bucket: usize) -> u64 {
    let bucket = u32::try_from(bucket).expect("below four thousand");
    let Some(shift) = (bucket / CUTS).checked_sub(1) else {
        return u64::from(bucket);
    };
    (u64::from(CUTS + bucket % CUTS + 1) << shift) - 1
}

/// The work of one task or process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// The counted operations: pairs, or hand-offs from another holder.
    pub(crate) count: u64,
    /// The number of times that it got the lock, also from itself.
    pub(crate) taken: u64,
    pub(crate) times: Times,
}

/// One round of one contender.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    pub(crate) workers: Vec<Work>,
    pub(crate) server: Usage,
    /// Processor time of the processes of the workers.
    pub(crate) clients: Duration,
}

impl Sample {
    pub(crate) fn rate(&self) -> f64 {
        let count = self.workers.iter().map(|work| work.count).sum();
        float(count) / self.elapsed.as_secs_f64()
    }

    /// The median time of an operation in seconds.
    pub(crate) fn p50(&self) -> f64 {
        times(&self.workers).quantile(0.5).as_secs_f64()
    }
}

/// All rounds of one contender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Operations a second: the median round.
    pub(crate) fn rate(&self) -> f64 {
        median(self.0.iter().map(Sample::rate).collect())
    }

    /// The ratio of the rate to another's: the median over the rounds, each compared with its neighbour in time.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(
            pairs
                .map(|(own, other)| own.rate() / other.rate())
                .collect(),
        )
    }

    /// The same for the median time of an operation.
    pub(crate) fn p50_to(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(pairs.map(|(own, other)| own.p50() / other.p50()).collect())
    }

    pub(crate) fn times(&self) -> Times {
        times(self.0.iter().flat_map(|sample| &sample.workers))
    }

    /// The share of the most favoured worker divided by that of the least favoured one, in the median round.
    pub(crate) fn favour(&self) -> f64 {
        median(self.0.iter().map(favour).collect())
    }

    pub(crate) fn operations(&self) -> u64 {
        let works = self.0.iter().flat_map(|sample| &sample.workers);
        works.map(|work| work.count).sum()
    }

    pub(crate) fn taken(&self) -> u64 {
        let works = self.0.iter().flat_map(|sample| &sample.workers);
        works.map(|work| work.taken).sum()
    }

    /// Microseconds of the clients' processor time for each operation.
    pub(crate) fn client_cpu(&self) -> f64 {
        self.clients().as_secs_f64() * 1e6 / float(self.operations())
    }

    /// Microseconds of the server's processor time for each operation.
    pub(crate) fn server_cpu(&self) -> f64 {
        self.server().cpu.as_secs_f64() * 1e6 / float(self.operations())
    }

    pub(crate) fn clients(&self) -> Duration {
        self.0.iter().map(|sample| sample.clients).sum()
    }

    pub(crate) fn server(&self) -> Usage {
        let usages = self.0.iter().map(|sample| sample.server);
        usages.fold(Usage::default(), |sum, usage| sum + usage)
    }
}

fn times<'a>(works: impl IntoIterator<Item = &'a Work>) -> Times {
    let mut all = Times::default();
    for work in works {
        all.merge(&work.times);
    }
    all
}

fn favour(sample: &Sample) -> f64 {
    let counts = || sample.workers.iter().map(|work| work.taken);
    let (most, least) = (counts().max(), counts().min());
    float(most.unwrap_or(0)) / float(least.unwrap_or(0))
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of what happens in seconds are far below 2^53"
)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
