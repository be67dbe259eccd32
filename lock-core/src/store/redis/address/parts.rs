//! Taking a url apart: what stands behind its scheme, decoded.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

/// The most hosts in one url.
const MOST_HOSTS: usize = 64;

/// What stands behind a scheme, as it was written.
pub(super) struct Parts<'a> {
    /// Without the `@`.
    user: Option<&'a str>,
    /// Without the user.
    pub(super) authority: &'a str,
    pub(super) path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    pub(super) fn of(rest: &'a str) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        // First of all: text that is shown must not be a part of a password.
        if tail.contains('@') {
            return Err(
                "an `@` stands behind the host: in a user or password, `/`, `?`, `#` and `@` are written `%2F`, `%3F`, `%23` and \
                 `%40`"
                    .to_owned(),
            );
        }
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains('@')) {
            return Err("an `@` in the user or password is written `%40`".to_owned());
        }
        let (tail, fragment) = match tail.split_once('#') {
            Some((tail, fragment)) => (tail, Some(fragment)),
            None => (tail, None),
        };
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let parts = Self {
            user,
            authority,
            path,
            query,
        };
        parts.check_characters()?;
        match fragment {
            None => Ok(parts),
            Some("insecure") => Err(
                "`#insecure` has no meaning here: certificates are always checked, and the builder's `tls` says which ones \
                 count"
                    .to_owned(),
            ),
            Some(_) => Err("a fragment (`#…`) has no meaning here: leave it out".to_owned()),
        }
    }

    fn check_characters(&self) -> Result<(), String> {
        let parts = [
            (self.user.unwrap_or_default(), "user or password"),
            (self.authority, "host"),
            (self.path, "path"),
            (self.query, "query"),
        ];
        let is_bad = |c: char| c.is_whitespace() || c.is_control();
        match parts.iter().find(|(text, _)| text.contains(is_bad)) {
            Some((_, place)) => Err(format!(
                "there is a space or a control character in the {place}; a space is written `%20`"
            )),
            None => Ok(()),
        }
    }

    pub(super) fn credentials(&self) -> Result<(String, String), String> {
        let user = self.user.unwrap_or_default();
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        Ok((decode(user, "user")?, decode(password, "password")?))
    }

    pub(super) fn hosts(&self) -> Result<Vec<(String, Option<u16>)>, String> {
        let hosts: Vec<&str> = self.authority.split(',').collect();
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

    pub(super) fn parameters(&self) -> Result<Vec<(String, String)>, String> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                // As in a form: what other libraries do with a query.
                let decode = |text: &str| decode(&text.replace('+', " "), "query");
                Ok((decode(name)?, decode(value)?))
            })
            .collect()
    }
}

/// `place` names the host in an error.
fn read_host(text: &str, place: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest
            .split_once(']')
            .ok_or_else(|| format!("the bracket of {place} is not closed"))?;
        let address: Ipv6Addr = address
            .parse()
            .map_err(|_| format!("between the brackets of {place} stands no IPv6 address"))?;
        let port = match port.strip_prefix(':') {
            None if !port.is_empty() => {
                return Err(format!("behind the bracket of {place} stands no port"));
            }
            port => port,
        };
        (address.to_string(), port)
    } else {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        if port.is_some_and(|port| port.contains(':')) {
            return Err(format!(
                "{place} has more than one `:`; an IPv6 address stands between brackets, as in `[::1]:6379`"
            ));
        }
        let host = decode(host, "host")?;
        let is_name = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-._~".contains(c);
        if host.is_empty() {
            return Err(format!("{place} is missing"));
        }
        if !host.chars().all(is_name) {
            return Err(format!("{place} has a character that no host has"));
        }
        (host, port)
    };
    let port = port.map(|port| read_port(port, place)).transpose()?;
    Ok((host, port))
}

fn read_port(text: &str, place: &str) -> Result<u16, String> {
    if text.is_empty() {
        return Err(format!(
            "the port of {place} is empty: write a number, or leave the `:` out"
        ));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("the port of {place} is no number"));
    }
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("the port of {place} is out of range: 1 to 65535")),
    }
}

/// `place` names the part in an error.
pub(super) fn decode(text: &str, place: &str) -> Result<String, String> {
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
