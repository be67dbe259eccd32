//! Locks inside one process, mostly in virtual time. These tests need no server.
//!
//! `attribute` sets the global manager of this process; tests of a program without one are in `applications`.

mod advice;
mod attribute;
mod finishing;
mod in_memory;
mod modes;
mod once_attribute;
mod once_in_memory;
mod recipes;
mod reentry;
mod several;
mod texts;
