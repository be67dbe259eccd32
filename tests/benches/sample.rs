//! Measurements, and their summary over several rounds.

use std::time::Duration;

use crate::usage::Usage;

/// The times of many operations, in seconds. A number of 32 bits is precise enough, and takes little memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<f32>);

impl Times {
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.push(time.as_secs_f32());
    }

    /// Formats the times for another process.
    pub(crate) fn to_text(&self) -> String {
        let words: Vec<String> = self.0.iter().map(f32::to_string).collect();
        words.join(" ")
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let words = text.split_whitespace();
        Self(words.map(|word| word.parse().expect("seconds")).collect())
    }
}

/// The times of many operations, sorted.
pub(crate) struct Sorted(Vec<f32>);

impl Sorted {
    fn of<'a>(works: impl IntoIterator<Item = &'a Work>) -> Self {
        let mut times: Vec<f32> = Vec::new();
        for work in works {
            times.extend(&work.times.0);
        }
        times.sort_unstable_by(f32::total_cmp);
        Self(times)
    }

    pub(crate) fn max(&self) -> Duration {
        self.quantile(100)
    }

    /// Returns the time that this share of all times does not exceed.
    pub(crate) fn quantile(&self, percent: usize) -> Duration {
        let index = self.0.len().saturating_sub(1) * percent / 100;
        let time = self.0.get(index).copied();
        Duration::from_secs_f32(time.unwrap_or_default())
    }
}

/// The work of one task or process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// The number of operations: pairs, or hand-offs from another holder.
    pub(crate) count: u64,
    /// The number of acquisitions, including those right after its own release.
    pub(crate) taken: u64,
    pub(crate) times: Times,
}

/// One round of one contender.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    pub(crate) workers: Vec<Work>,
    pub(crate) server: Usage,
    /// The processor time of the workers' processes.
    pub(crate) clients: Duration,
}

impl Sample {
    pub(crate) fn rate(&self) -> f64 {
        let count = self.workers.iter().map(|work| work.count).sum();
        float(count) / self.elapsed.as_secs_f64()
    }

    /// Returns the median time of an operation, in seconds.
    pub(crate) fn p50(&self) -> f64 {
        Sorted::of(&self.workers).quantile(50).as_secs_f64()
    }
}

/// All rounds of one contender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Returns the operations per second in the median round.
    pub(crate) fn rate(&self) -> f64 {
        median(self.0.iter().map(Sample::rate).collect())
    }

    /// Returns the ratio of the rates of two contenders: the median over the rounds, since both run in each round.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(
            pairs
                .map(|(own, other)| own.rate() / other.rate())
                .collect(),
        )
    }

    /// Like [`Self::ratio_to`], for the median time of an operation.
    pub(crate) fn p50_to(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(pairs.map(|(own, other)| own.p50() / other.p50()).collect())
    }

    pub(crate) fn times(&self) -> Sorted {
        Sorted::of(self.0.iter().flat_map(|sample| &sample.workers))
    }

    /// Returns the ratio of the most to the least favoured worker's share, in the median round.
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

    /// Returns the clients' processor time per operation, in microseconds.
    pub(crate) fn client_cpu(&self) -> f64 {
        let cpu: Duration = self.0.iter().map(|sample| sample.clients).sum();
        cpu.as_secs_f64() * 1e6 / float(self.operations())
    }

    /// Returns the server's processor time per operation, in microseconds.
    pub(crate) fn server_cpu(&self) -> f64 {
        let cpu: Duration = self.0.iter().map(|sample| sample.server.cpu).sum();
        cpu.as_secs_f64() * 1e6 / float(self.operations())
    }

    /// Returns the server's commands per operation.
    pub(crate) fn commands(&self) -> f64 {
        let commands = self.0.iter().map(|sample| sample.server.commands);
        float(commands.sum()) / float(self.operations())
    }

    /// Returns the messages to the server per operation.
    pub(crate) fn messages(&self) -> f64 {
        let messages = self.0.iter().map(|sample| sample.server.messages);
        float(messages.sum()) / float(self.operations())
    }
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
    reason = "the counts of a benchmark are far below 2^53"
)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
