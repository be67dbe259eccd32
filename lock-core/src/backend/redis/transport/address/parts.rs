//! The parts of a url, decoded. An error names the part, and never quotes it.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

use crate::backend::redis::transport::address::scheme::{DEFAULT_PORT, Kind};

/// The most hosts in one url.
const MOST_HOSTS: usize = 64;

/// A url that is well-formed.
pub(super) struct Parts<'a> {
    pub(super) user: String,
    pub(super) password: String,
    /// The hosts as they were written.
    pub(super) authority: &'a str,
    /// The hosts, decoded, with the ports that were given. Only the url of a socket has none.
    pub(super) hosts: Vec<(String, Option<u16>)>,
    /// As it was written.
    pub(super) path: &'a str,
    pub(super) parameters: Vec<(String, String)>,
}

impl<'a> Parts<'a> {
    /// Reads the text after the scheme.
    pub(super) fn read(kind: Kind, rest: &'a str) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        // Checked first: text that is shown must not be a part of a password.
        if tail.contains('@') {
            return Err(
                "an `@` follows the host: in a user or password, `/`, `?`, `#` and `@` are written `%2F`, `%3F`, `%23` and \
                 `%40`"
                    .to_owned(),
            );
        }
        let (user, authority) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains('@') {
            return Err("an `@` in the user or password is written `%40`".to_owned());
        }
        let (tail, fragment) = tail.split_at(tail.find('#').unwrap_or(tail.len()));
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        no_spaces(user, "user or password")?;
        no_spaces(authority, "host")?;
        no_spaces(path, "path")?;
        no_spaces(query, "query")?;
        if !fragment.is_empty() {
            return Err(
                "a fragment (`#…`) has no meaning here: leave it out; certificates are always checked, and the builder's `tls` \
                 says which ones count"
                    .to_owned(),
            );
        }
        decode(path, "path")?;
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        Ok(Self {
            user: decode(user, "user")?,
            password: decode(password, "password")?,
            authority,
            hosts: match kind {
                Kind::Socket => Vec::new(),
                _ => hosts(authority)?,
            },
            path,
            parameters: parameters(query)?,
        })
    }

    /// The url without the user, the password and the query.
    pub(super) fn shown(&self, scheme: &str, kind: Kind) -> String {
        match (&self.hosts[..], kind) {
            ([(host, port)], Kind::Server) => {
                place(scheme, host, port.unwrap_or(DEFAULT_PORT)) + self.path
            }
            _ => format!("{scheme}://{}{}", self.authority, self.path),
        }
    }
}

/// A server as a url shows it.
pub(super) fn place(scheme: &str, host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}

fn no_spaces(text: &str, place: &str) -> Result<(), String> {
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "there is a space or a control character in the {place}; a space is written `%20`"
        ));
    }
    Ok(())
}

/// The hosts between commas, decoded, with the ports that were given.
fn hosts(authority: &str) -> Result<Vec<(String, Option<u16>)>, String> {
    let hosts: Vec<&str> = authority.split(',').collect();
    if hosts.len() > MOST_HOSTS {
        return Err(format!("it has more than {MOST_HOSTS} hosts"));
    }
    let place = |index: usize| match hosts.len() {
        1 => "the host".to_owned(),
        _ => format!("host {} of the list", index + 1),
    };
    let hosts = hosts.iter().enumerate();
    hosts
        .map(|(index, host)| read_host(host, &place(index)))
        .collect()
}

/// The names and values of a query.
fn parameters(query: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A `+` is a space, as in a form: other libraries read a query like this.
            let decode = |text: &str| decode(&text.replace('+', " "), "query");
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

/// `place` names the host in an error.
fn read_host(text: &str, place: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = port.map(|port| read_port(port, place)).transpose();
    if host.contains([':', '[', ']']) {
        let inner = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let address = inner.and_then(|inner| inner.parse::<Ipv6Addr>().ok());
        let Some(address) = address else {
            return Err(format!(
                "{place} is malformed: an IPv6 address is written between brackets, as in `[::1]:6379`"
            ));
        };
        return Ok((address.to_string(), port?));
    }
    let host = decode(host, "host")?;
    let is_name = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-._~".contains(c);
    if host.is_empty() {
        return Err(format!("{place} is missing"));
    }
    if !host.chars().all(is_name) {
        return Err(format!("{place} has a character that no host has"));
    }
    Ok((host, port?))
}

fn read_port(text: &str, place: &str) -> Result<u16, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the port of {place} is no number"));
    }
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("the port of {place} is out of range: 1 to 65535")),
    }
}

/// `place` names the part in an error.
fn decode(text: &str, place: &str) -> Result<String, String> {
    let mut rest = text.split('%');
    rest.next();
    let is_whole = |part: &str| {
        let digits = part.bytes().take(2).filter(u8::is_ascii_hexdigit);
        digits.count() == 2
    };
    if !rest.all(is_whole) {
        return Err(format!(
            "a `%` in the {place} is not followed by two hexadecimal digits; a `%` is written `%25`"
        ));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded =
        decoded.map_err(|_| format!("what is percent-encoded in the {place} is not UTF-8"))?;
    if decoded.contains('\0') {
        return Err(format!("there is a zero byte in the {place}"));
    }
    Ok(decoded.into_owned())
}
