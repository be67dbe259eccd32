//! The screen of `watch`: as much of the table as fits on the terminal.

use std::io::{self, Write};

use rustix::termios::tcgetwinsize;

use crate::output::{Row, cut, table};

/// Moves the cursor to the upper left corner, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Makes the terminal truncate long lines while the table is drawn, because some characters are two columns wide.
const CUT: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The title, an empty line and the headings.
const ABOVE: usize = 3;

#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    columns: usize,
}

impl Size {
    /// Returns the size of the terminal to which this program writes, or the usual size if the terminal does not know its own.
    fn now() -> Self {
        let size = tcgetwinsize(io::stdout()).ok();
        let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or(
            Self {
                rows: 24,
                columns: 80,
            },
            |size| Self {
                rows: size.ws_row.into(),
                columns: size.ws_col.into(),
            },
        )
    }
}

/// Returns the lines to draw: the locks with the most waiting processes come first, and the last line says how many are
/// omitted.
fn lines(mut rows: Vec<Row>, size: Size) -> Vec<String> {
    rows.sort_by(|one, other| {
        let busiest = other.info.waiters.cmp(&one.info.waiters);
        busiest.then_with(|| one.key.cmp(&other.key))
    });
    let count = rows.len();
    let room = size.rows.saturating_sub(ABOVE);
    let shown = if count > room {
        room.saturating_sub(1)
    } else {
        count
    };
    rows.truncate(shown);
    let are = if count == 1 { "lock is" } else { "locks are" };
    let title = format!("{count} {are} held; Ctrl-C ends");
    let mut lines = vec![cut(&title, size.columns), String::new()];
    lines.extend(table(&rows, size.columns));
    if shown < count {
        lines.push(format!("… {} more", count - shown));
    }
    // A terminal without space for the headings shows as much as it can.
    lines.truncate(size.rows);
    lines
}

/// Draws the table.
pub(crate) fn draw(rows: Vec<Row>) -> io::Result<()> {
    let lines = lines(rows, Size::now());
    let mut stdout = io::stdout();
    // A line feed in the last row would scroll the terminal.
    write!(stdout, "{CLEAR}{CUT}{}{WRAP}", lines.join("\n"))?;
    stdout.flush()
}

/// Draws a message, which may take several lines.
pub(crate) fn say(message: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    write!(stdout, "{CLEAR}{message}")?;
    stdout.flush()
}
