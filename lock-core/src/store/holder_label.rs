//! The name by which operators recognise a holder.

/// The holder of a lock, for people: host and process.
#[derive(Clone, Debug)]
pub(crate) struct HolderLabel(String);

impl HolderLabel {
    pub(crate) fn of_this_process() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(label) = crate::runtime::simulation::ask(|world| world.label()) {
            return Self(label);
        }
        let host: String = host_name()
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            .take(63)
            .collect();
        Self(format!("{host}/{}", std::process::id()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
