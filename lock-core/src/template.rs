//! What a key was made from, with the labels of its figures.

#[cfg(feature = "metrics")]
use metrics::Label;

/// What a key was made from: a text of the program, with names where the key has values.
#[derive(Debug)]
pub struct Template {
    text: &'static str,
    #[cfg(feature = "metrics")]
    pub(crate) labels: Labels,
}

impl Template {
    /// Creates a template, with the labels that its figures have.
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

/// The labels of a template, made where it is compiled, so that no figure has to make them.
#[cfg(feature = "metrics")]
#[derive(Debug)]
pub(crate) struct Labels {
    pub(crate) alone: [Label; 1],
    pub(crate) local: [Label; 2],
    pub(crate) remote: [Label; 2],
}

#[cfg(feature = "metrics")]
impl Labels {
    const fn new(template: &'static str) -> Self {
        const fn label(template: &'static str) -> Label {
            Label::from_static_parts("key", template)
        }
        Self {
            alone: [label(template)],
            local: [label(template), Label::from_static_parts("kind", "local")],
            remote: [label(template), Label::from_static_parts("kind", "remote")],
        }
    }
}
