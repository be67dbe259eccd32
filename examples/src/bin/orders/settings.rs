//! The settings that an operator can choose at the start.

use std::{env, io, str::FromStr, time::Duration};

use tempfile::TempDir;

/// The command line and the environment, read once at the start.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) with_lock: bool,
    pub(crate) lock_url: String,
    pub(crate) database_url: String,
    pub(crate) payment_takes: Duration,
    pub(crate) port: Option<u16>,
    // Holds the database if no other was chosen. It is removed when this value is dropped.
    _folder: Option<TempDir>,
}

impl Settings {
    pub(crate) fn read() -> Result<Self, String> {
        let (database_url, folder) = database().map_err(|error| error.to_string())?;
        Ok(Self {
            with_lock: with_lock()?,
            lock_url: env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned()),
            database_url,
            payment_takes: Duration::from_millis(number("PAYMENT_MS")?.unwrap_or(200)),
            port: number("PORT")?,
            _folder: folder,
        })
    }
}

fn with_lock() -> Result<bool, String> {
    match env::args().nth(1).as_deref() {
        None => Ok(true),
        Some("--without-lock") => Ok(false),
        Some(other) => Err(format!(
            "unknown argument `{other}`: there is only --without-lock"
        )),
    }
}

fn database() -> io::Result<(String, Option<TempDir>)> {
    if let Ok(url) = env::var("DATABASE_URL") {
        return Ok((url, None));
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("orders.db");
    Ok((format!("sqlite:{}", file.display()), Some(folder)))
}

fn number<T: FromStr>(variable: &str) -> Result<Option<T>, String> {
    let Ok(text) = env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse().ok();
    let number = number.ok_or_else(|| format!("{variable} is not a valid number: `{text}`"))?;
    Ok(Some(number))
}
