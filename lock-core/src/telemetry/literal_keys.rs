//! Detection of templates that were passed by hand as exact keys. The compiler cannot tell them from keys that contain
//! braces.

use std::collections::BTreeSet;

use crate::{key::LockKey, runtime::mutex::Mutex};

/// The maximum number of texts for which a warning is logged. A program with more of them builds such keys from its data.
const MOST: usize = 32;

static WARNED_OF: Mutex<BTreeSet<Box<str>>> = Mutex::new(BTreeSet::new());

/// Returns `true` if the key was written by hand, looks like a template, and is seen for the first time.
pub(super) fn is_news(key: &LockKey) -> bool {
    key.template().is_none() && looks_like_a_template(key.as_str()) && is_new(key.as_str())
}

/// Records the text. Returns `false` if it is already known, or if too many are.
fn is_new(text: &str) -> bool {
    let mut known = WARNED_OF.lock();
    known.len() < MOST && known.insert(text.into())
}

/// Returns `true` if the text has a name in braces, as `{id}`, `{order.id}` or `{id:04}`.
fn looks_like_a_template(text: &str) -> bool {
    text.split('{').skip(1).any(|rest| {
        let inner = rest.split_once('}').map(|(inner, _)| inner);
        let name = inner.and_then(|inner| inner.split(':').next());
        name.is_some_and(is_path)
    })
}

fn is_path(name: &str) -> bool {
    name.split('.').enumerate().all(|(place, part)| {
        // A field of a tuple is a number.
        let begins = |c: char| c.is_alphabetic() || c == '_' || place > 0;
        part.starts_with(begins) && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_look_like_a_template() {
        for text in [
            "order:{id}",
            "{a.b}:x",
            "k:{id:04}",
            "{{a}b",
            "{pair.0}",
            "é{é}",
        ] {
            assert!(looks_like_a_template(text), "{text}");
        }
        for text in [
            "", "order", "{}", "{42}", "{a b}", "}a{", "{a", "{a-b}", "{a.}", "{:x}",
        ] {
            assert!(!looks_like_a_template(text), "{text}");
        }
    }
}
