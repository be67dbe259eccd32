//! A lock inside one process, most of it in virtual time. No server is needed.
//!
//! A test of `attribute` sets the manager of the process. Tests of a program without one are in `applications`.

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
