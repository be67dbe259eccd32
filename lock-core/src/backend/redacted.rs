//! Removing the secrets that a server's message may quote.

use crate::backend::owner_token::Scheme;

/// Replaces each token of ours in a server's message, which may quote the command that it refused.
pub(crate) fn redact(message: &str) -> String {
    let mut clean = String::with_capacity(message.len());
    let mut rest = message;
    let first = |rest: &str| {
        let starts = Scheme::ALL.map(|scheme| rest.find(scheme.prefix()));
        starts.into_iter().flatten().min()
    };
    while let Some(start) = first(rest) {
        clean.push_str(&rest[..start]);
        clean.push_str("***");
        let token = &rest[start..];
        let end = token.find(|c: char| c.is_whitespace() || c == '\'' || c == '"' || c == '`');
        rest = end.map_or("", |end| &token[end..]);
    }
    clean.push_str(rest);
    clean
}
