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
    pub(crate) labels: [Labels; 3],
}

impl Template {
    /// Creates a template, with the labels of its metrics by mode.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self {
            text,
            #[cfg(feature = "metrics")]
            labels: [
                Labels::new(text, LockMode::Exclusive),
                Labels::new(text, LockMode::Shared),
                Labels::new(text, LockMode::Permits),
            ],
        }
    }

    pub(crate) const fn text(&self) -> &'static str {
        self.text
    }
}

/// The labels of a template in one mode. They are made at compile time, so that no metric has to make them.
#[cfg(feature = "metrics")]
#[derive(Debug)]
pub(crate) struct Labels {
    pub(crate) alone: [Label; 2],
    /// Those of a hand-off, by the kind.
    pub(crate) handed_on: [[Label; 3]; 2],
}

#[cfg(feature = "metrics")]
impl Labels {
    const fn new(template: &'static str, mode: LockMode) -> Self {
        const fn label(name: &'static str, value: &'static str) -> Label {
            Label::from_static_parts(name, value)
        }
        const fn of_kind(template: &'static str, mode: LockMode, kind: &'static str) -> [Label; 3] {
            [
                label("key", template),
                label("mode", mode.label()),
                label("kind", kind),
            ]
        }
        Self {
            alone: [label("key", template), label("mode", mode.label())],
            handed_on: [
                of_kind(template, mode, "local"),
                of_kind(template, mode, "remote"),
            ],
        }
    }
}
