//! The template of a key, with the labels of its metrics.

#[cfg(feature = "metrics")]
use metrics::Label;

#[cfg(feature = "metrics")]
use crate::mode::LockMode;

/// The template of a key: a text of the program, with names where the key has values.
#[derive(Debug)]
pub struct Template {
    text: &'static str,
    #[cfg(feature = "metrics")]
    pub(crate) labels: Labels,
}

impl Template {
    /// Creates a template, with the labels of its metrics.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self {
            text,
            #[cfg(feature = "metrics")]
            labels: Labels::new(text),
        }
    }

    pub(crate) const fn text(&self) -> &'static str {
        self.text
    }
}

/// The labels of a template, by mode. They are made at compile time, so that no metric has to make them.
#[cfg(feature = "metrics")]
#[derive(Debug)]
pub(crate) struct Labels {
    pub(crate) alone: [[Label; 2]; 3],
    pub(crate) local: [[Label; 3]; 3],
    pub(crate) remote: [[Label; 3]; 3],
}

#[cfg(feature = "metrics")]
impl Labels {
    const fn new(template: &'static str) -> Self {
        const fn label(name: &'static str, value: &'static str) -> Label {
            Label::from_static_parts(name, value)
        }
        const fn alone(template: &'static str, mode: LockMode) -> [Label; 2] {
            [label("key", template), label("mode", mode.label())]
        }
        const fn kind(template: &'static str, mode: LockMode, kind: &'static str) -> [Label; 3] {
            [
                label("key", template),
                label("mode", mode.label()),
                label("kind", kind),
            ]
        }
        let [exclusive, shared, permits] =
            [LockMode::Exclusive, LockMode::Shared, LockMode::Permits];
        Self {
            alone: [
                alone(template, exclusive),
                alone(template, shared),
                alone(template, permits),
            ],
            local: [
                kind(template, exclusive, "local"),
                kind(template, shared, "local"),
                kind(template, permits, "local"),
            ],
            remote: [
                kind(template, exclusive, "remote"),
                kind(template, shared, "remote"),
                kind(template, permits, "remote"),
            ],
        }
    }
}
