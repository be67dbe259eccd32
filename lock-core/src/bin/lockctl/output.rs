//! The output: a table on a terminal, fields separated by tabs elsewhere, or JSON.

use std::{
    env, fmt,
    io::{self, IsTerminal, Write},
    slice,
    time::Duration,
};

use lock_core::inspect::{LeaseInfo, LockInfo, LockMode};
use serde_json::{Value, json};

const COLUMNS: [&str; 6] = [
    "KEY",
    "MODE",
    "HOLDER",
    "HOLDERS",
    "REMAINING",
    "WAITING PROCESSES",
];
const KEY: usize = 0;
const HOLDER: usize = 2;

/// The separator between columns.
const BETWEEN: &str = "  ";

/// The minimum width of keys and holders, so that their beginnings can be read.
const LEAST_WIDTH: usize = 6;

/// One lock to print.
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) info: LockInfo,
}

impl Row {
    fn fields(&self) -> [String; 6] {
        let info = &self.info;
        [
            printable(&self.key),
            info.mode.to_string(),
            printable(&info.holder.to_string()),
            info.holders.to_string(),
            shown(info.remaining),
            info.waiters.to_string(),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        let info = &self.info;
        json!({
            "key": self.key,
            "mode": info.mode.to_string(),
            "holder": info.holder.to_string(),
            "holders": info.holders,
            "remaining_ms": millis(info.remaining),
            "waiters": info.waiters,
        })
    }

    /// Like `json`, with all holders and the queue, which a list does not have.
    pub(crate) fn json_in_full(&self) -> Value {
        let mut value = self.json();
        let holders = self.info.other_holders.iter().map(ToString::to_string);
        let queue = self.info.queue.iter().map(|waiter| {
            json!({ "process": waiter.process.to_string(), "mode": waiter.mode.to_string() })
        });
        let leases = self.info.leases.iter().map(|lease| {
            json!({
                "process": lease.process.to_string(),
                "remaining_ms": millis(lease.remaining),
                "permit": lease.permit,
            })
        });
        value["other_holders"] = holders.collect();
        value["leases"] = leases.collect();
        value["queue"] = queue.collect();
        value
    }

    /// Returns a line for each holder of a lock that may have several, and for each request in the queue, in order.
    fn details(&self) -> Vec<Vec<String>> {
        let mut leases: Vec<&LeaseInfo> = self.info.leases.iter().collect();
        if self.info.mode == LockMode::Exclusive {
            leases.clear();
        }
        // The sort is stable, so those that share a key stay in the order of their ends.
        leases.sort_by_key(|lease| lease.permit);
        let holders = leases.into_iter().map(|lease| {
            let mode = lease.permit.map_or_else(
                || self.info.mode.to_string(),
                |number| format!("permit {number}"),
            );
            let process = printable(&lease.process.to_string());
            vec!["holder".to_owned(), mode, process, shown(lease.remaining)]
        });
        let queue = self.info.queue.iter().map(|waiter| {
            let process = printable(&waiter.process.to_string());
            vec!["waiter".to_owned(), waiter.mode.to_string(), process]
        });
        holders.chain(queue).collect()
    }
}

/// Formats the remaining time of a lease.
fn shown(remaining: Option<Duration>) -> String {
    remaining.map_or_else(|| "forever".to_owned(), |left| Span(left).to_string())
}

pub(crate) fn millis(remaining: Option<Duration>) -> Option<u64> {
    remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}

/// Escapes control characters. Any client may write keys and labels, and they must not control the operator's terminal.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let escaped = character.is_control().then(|| character.escape_default());
            let plain = escaped.is_none().then_some(character);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

/// Formats seconds with one decimal, or longer units.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..60 => write!(f, "{:.1}s", self.0.as_secs_f64()),
            60..3600 => write!(f, "{}m{}s", seconds / 60, seconds % 60),
            _ => write!(f, "{}h{}m", seconds / 3600, seconds / 60 % 60),
        }
    }
}

pub(crate) fn print_json(value: &Value) -> io::Result<()> {
    writeln!(io::stdout(), "{value}")
}

/// Prints one lock, and a line for each further holder and each waiter.
pub(crate) fn print_in_full(row: &Row) -> io::Result<()> {
    print_rows(slice::from_ref(row))?;
    let mut stdout = io::stdout().lock();
    let between = if stdout.is_terminal() { "  " } else { "\t" };
    for line in row.details() {
        writeln!(stdout, "{}", line.join(between))?;
    }
    Ok(())
}

/// Prints how much longer the result of a run is kept. Its bytes are the user's, and are not printed.
pub(crate) fn print_kept(kept_for: Duration) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let between = if stdout.is_terminal() { "  " } else { "\t" };
    writeln!(stdout, "result{between}{}", Span(kept_for))
}

/// Prints locks, in the order of their keys.
pub(crate) fn print_rows(rows: &[Row]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if !stdout.is_terminal() {
        for row in rows {
            writeln!(stdout, "{}", row.fields().join("\t"))?;
        }
        return Ok(());
    }
    for line in table(rows, usize::MAX) {
        writeln!(stdout, "{line}")?;
    }
    Ok(())
}

/// Returns the lines of a table, the headings first. No line is wider than `columns`, because keys and holders are truncated
/// first.
pub(crate) fn table(rows: &[Row], columns: usize) -> Vec<String> {
    let headings = COLUMNS.map(str::to_owned);
    let lines: Vec<[String; 6]> = [headings]
        .into_iter()
        .chain(rows.iter().map(Row::fields))
        .collect();
    let mut widths = [0; 6];
    for line in &lines {
        for (width, field) in widths.iter_mut().zip(line) {
            *width = field.chars().count().max(*width);
        }
    }
    narrow(&mut widths, columns);
    let lines = lines.iter().enumerate().map(|(number, line)| {
        let fields = line.iter().zip(widths);
        let fields = fields.map(|(field, width)| format!("{:width$}", cut(field, width)));
        let line = fields.collect::<Vec<String>>().join(BETWEEN);
        let line = cut(line.trim_end(), columns);
        if number == 0 {
            painted(&line, Colour::Bold)
        } else {
            line
        }
    });
    lines.collect()
}

/// Narrows the wider of the columns of keys and holders, until a line fits.
fn narrow(widths: &mut [usize; 6], columns: usize) {
    let between = BETWEEN.len() * (widths.len() - 1);
    let mut excess = (widths.iter().sum::<usize>() + between).saturating_sub(columns);
    while excess > 0 {
        let widest = if widths[KEY] > widths[HOLDER] {
            KEY
        } else {
            HOLDER
        };
        if widths[widest] <= LEAST_WIDTH {
            return;
        }
        widths[widest] -= 1;
        excess -= 1;
    }
}

/// Returns the first characters of a text, and an ellipsis if others follow.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[derive(Clone, Copy)]
pub(crate) enum Colour {
    Bold,
    Red,
    Green,
    Yellow,
}

/// Uses colours on a terminal, unless `NO_COLOR` is set.
pub(crate) fn painted(text: &str, colour: Colour) -> String {
    let is_wanted = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
    let code = match colour {
        Colour::Bold => 1,
        Colour::Red => 31,
        Colour::Green => 32,
        Colour::Yellow => 33,
    };
    if is_wanted {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_short_form() {
        let shown = |millis| Span(Duration::from_millis(millis)).to_string();
        assert_eq!(shown(9_640), "9.6s");
        assert_eq!(shown(61_000), "1m1s");
        assert_eq!(shown(7_320_000), "2h2m");
    }

    #[test]
    fn a_key_cannot_write_to_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("bestellung:ä"), "bestellung:ä");
    }

    #[test]
    fn the_wider_of_keys_and_holders_is_cut_first() {
        let mut widths = [40, 9, 20, 7, 9, 17];
        narrow(&mut widths, 1000);
        assert_eq!(widths, [40, 9, 20, 7, 9, 17]);
        narrow(&mut widths, 92);
        assert_eq!(widths, [20, 9, 20, 7, 9, 17]);
        narrow(&mut widths, 80);
        assert_eq!(widths, [14, 9, 14, 7, 9, 17]);
        narrow(&mut widths, 10);
        assert_eq!(widths, [6, 9, 6, 7, 9, 17]);
    }

    #[test]
    fn a_text_is_cut_between_two_characters() {
        assert_eq!(cut("bestellung:ä", 12), "bestellung:ä");
        assert_eq!(cut("bestellung:äö", 12), "bestellung:…");
    }
}
