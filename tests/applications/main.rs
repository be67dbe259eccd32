//! Applications of users: handlers in web frameworks, and tests of their own.
//!
//! Some tests are about a program without a manager of the process. So no test in here sets one: `in_process` has that.

mod testing_support;
mod web;
