//! The name by which operators recognise a holder: its label, or its host and process id.
//!
//! It is a part of each owner token, `lc1:LABEL:RANDOM`, and therefore in the value of a lock, and in the entries of its queue
//! and of its holders. Scripts and this crate find its end at the last colon, so it may contain colons, as an address does. It
//! is also a part of the name of each connection.
//!
//! These characters are refused:
//!
//! - spaces and quotation marks, because a server's message may quote an owner token. `redacted.rs` cuts a token out of a
//!   message up to the next such character, so after a label with a space, the random part would be logged;
//! - control characters and the backslash, because they are escaped when shown, so the label would not be shown as it was
//!   given;
//! - all others beyond ASCII, because the name of a connection may not contain them.

use crate::error::LockError;

/// The maximum length of a label. It is a part of the value of each lock, and of each entry in a queue.
const MOST: usize = 63;

/// The host and the process id.
pub(crate) fn of_this_process() -> String {
    #[cfg(feature = "simulation")]
    if let Some(label) = crate::runtime::simulation::ask(|world| world.label()) {
        return label;
    }
    let host: String = host_name()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        .take(63)
        .collect();
    format!("{host}/{}", std::process::id())
}

/// Checks a label that a user gave.
pub(crate) fn check(label: &str) -> Result<(), LockError> {
    let length = label.chars().count();
    if length == 0 {
        return Err(LockError::invalid(
            "the label is empty: name this process, as in `10.0.3.7:8080`, or set none to use its host and process id",
        ));
    }
    if length > MOST {
        return Err(LockError::invalid(format!(
            "the label has {length} characters, but at most {MOST} are allowed: choose a shorter one"
        )));
    }
    if let Some(refused) = label.chars().find(|c| !may_be_in_a_label(*c)) {
        return Err(LockError::invalid(format!(
            "the label has the character {refused:?}: choose letters, digits and ASCII punctuation without spaces, quotation \
             marks and backslashes, as in `10.0.3.7:8080`"
        )));
    }
    Ok(())
}

fn may_be_in_a_label(character: char) -> bool {
    character.is_ascii_graphic() && !matches!(character, '\'' | '"' | '`' | '\\')
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(label: &str) -> String {
        match check(label) {
            Err(LockError::Invalid { reason, .. }) => reason.to_string(),
            other => panic!("not `Invalid`: {other:?}"),
        }
    }

    #[test]
    fn an_unusable_label_is_refused_with_the_fix() {
        assert!(reason("").contains("name this process"));
        assert!(reason(&"x".repeat(64)).contains("64 characters, but at most 63"));
        for refused in [
            ' ', '\t', '\n', '\0', '\u{7f}', '\'', '"', '`', '\\', 'ä', '\u{202e}',
        ] {
            let reason = reason(&format!("web{refused}1"));
            assert!(
                reason.contains(&format!("the character {refused:?}")),
                "{reason}"
            );
            assert!(reason.contains("as in `10.0.3.7:8080`"), "{reason}");
        }
    }

    #[test]
    fn addresses_names_of_pods_and_63_characters_are_labels() {
        let longest = "x".repeat(63);
        for label in [
            "a",
            ":",
            "10.0.3.7:8080",
            "[::1]:8080",
            "web-7f9c/default",
            "%s{0}$1+-",
            &longest,
        ] {
            check(label).expect(label);
        }
    }

    /// Otherwise the name of the process would be shown escaped, and could not be set as a label.
    #[test]
    fn the_name_of_this_process_could_be_a_label() {
        let name = of_this_process();
        assert!(name.ends_with(&format!("/{}", std::process::id())));
        assert!(name.chars().all(may_be_in_a_label), "{name:?}");
    }
}
