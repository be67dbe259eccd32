//! What users build with it: handlers in web frameworks, and tests of their own.
//!
//! Some are about a program without a manager of the process. So no test in here sets one: `in_process` has that.

mod testing_support;
mod web;
