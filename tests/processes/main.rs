//! Several processes: contenders, other libraries, forks, stopped and killed processes, and clocks that jump.
//!
//! The tests start programs and check their results, and leave the state of their own process alone.

mod beliefs;
mod clocks;
mod ending;
mod exclusion;
mod forking;
mod neighbours;
mod pauses;
mod running_once;
mod stopped;
