//! Users' applications: handlers in web frameworks, and tests of their own.
//!
//! Some tests are about a program without a global manager, so no test here sets one. Those of `in_process` do.

mod testing_support;
mod web;
