//! Requests that cannot be served: bad input, missing rights, untrusted certificates, servers that refuse for a while.
//!
//! Several tests read the log of the whole process. Its subscriber is set once and records everything.

mod bad_input;
mod check_key;
mod log_lines;
mod odd_servers;
mod rights;
mod server_texts;
mod server_warnings;
mod tls;
