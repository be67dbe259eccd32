//! A process that runs a body once.
//!
//! ```text
//! runner <lock url> <key> <ttl in ms> <value>
//! ```
//!
//! The body prints `runs`, blocks its thread until the next line of input, and returns the last argument. Then the process prints the
//! value of the call, or its error.

use std::{
    env,
    error::Error,
    io::{self, Write},
    time::Duration,
};

use lock_core::{LockManager, OnceOptions};

const KEEP: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, key, ttl, value] = arguments.as_slice() else {
        return Err("runner <lock url> <key> <ttl in ms> <value>".into());
    };
    let locks = LockManager::connect(url).await?;
    let options = OnceOptions::keep(KEEP)
        .ttl(Duration::from_millis(ttl.parse()?))
        .wait(WAIT);
    let body = async |_| {
        say("runs")?;
        // The loss of the lease cannot interrupt this step, in which a test stops the process.
        io::stdin().read_line(&mut String::new())?;
        Ok::<_, io::Error>(value.clone())
    };
    match locks.run_once(key, options, body).await {
        Ok(value) => say(&value?)?,
        Err(error) => say(&error.to_string())?,
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}
