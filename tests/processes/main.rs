//! Several processes: contenders, other libraries, forks, and processes or clocks that stop.
//!
//! The test starts them as programs and judges what they did. It keeps nothing that is the process's.

mod beliefs;
mod clocks;
mod exclusion;
mod forking;
mod neighbours;
mod read_write_locks;
mod standing_still;
mod stopped;
