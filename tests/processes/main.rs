//! Several processes: contenders, other libraries, forks, and processes or clocks that stop.
//!
//! The tests start them as programs and check their results. They change no state of the test's own process.

mod beliefs;
mod clocks;
mod ending;
mod exclusion;
mod forking;
mod neighbours;
mod read_write_locks;
mod running_once;
mod standing_still;
mod stopped;
