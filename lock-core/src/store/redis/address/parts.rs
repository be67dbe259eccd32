//! The parts of a url, decoded. An error names the part, and never quotes it.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

/// The most hosts in one url.
const MOST_HOSTS: usize = 64;

pub(super) fn no_spaces(text: &str, place: &str) -> Result<(), String> {
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "there is a space or a control character in the {place}; a space is written `%20`"
        ));
    }
    Ok(())
}

/// The hosts between commas, decoded, with the ports that were given.
pub(super) fn hosts(authority: &str) -> Result<Vec<(String, Option<u16>)>, String> {
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
pub(super) fn parameters(query: &str) -> Result<Vec<(String, String)>, String> {
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
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest
            .split_once(']')
            .ok_or_else(|| format!("the bracket of {place} is not closed"))?;
        let address: Ipv6Addr = address
            .parse()
            .map_err(|_| format!("there is no IPv6 address between the brackets of {place}"))?;
        (address.to_string(), port)
    } else {
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        if port.rfind(':') > Some(0) {
            return Err(format!(
                "{place} has more than one `:`; an IPv6 address is written between brackets, as in `[::1]:6379`"
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
    let port = match port.strip_prefix(':') {
        Some(port) => Some(read_port(port, place)?),
        None if port.is_empty() => None,
        None => return Err(format!("no port follows the bracket of {place}")),
    };
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
