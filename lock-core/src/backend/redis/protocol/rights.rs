//! The messages about missing rights. The rights themselves are listed in one place, which each message points to.
//!
//! Rejected: a line for this user, deployment and version that can be pasted. It took a separate connection, and 130 lines.

use std::time::Duration;

use crate::{
    backend::redis::{topology::key_location::KeyLocation, transport::errors},
    failure::Failure,
};

const LISTED: &str =
    "the section \"Rights\" of the operations guide lists (`lock_core::guide::operations`)";

/// Adds a pointer to the list of rights to a failure for lack of rights.
pub(super) fn explained(location: &KeyLocation, failure: Failure) -> Failure {
    let Some(reason) = errors::lack_of_rights(&failure) else {
        return failure;
    };
    let connection = &location.server.connection;
    let known = connection.snapshot().and_then(|now| now.known.capabilities);
    let has_scripts = known.is_none_or(|known| known.scripts);
    let without = if has_scripts {
        ""
    } else {
        "without `+eval +evalsha`: "
    };
    Failure::invalid(format!(
        "this user of {} lacks rights that locks need ({without}{reason}): grant it the rights that {LISTED}",
        connection.address().shown()
    ))
}

/// Returns the warning for a server where scripts cannot be run.
pub(super) fn without_scripts(polling_pause: Duration) -> String {
    format!(
        "`EVAL` and `EVALSHA` cannot both be used, so there is no queue: waiters poll, about every {polling_pause:?} each, and are \
         served in no particular order; if the server has these commands, grant this user the rights for scripts that {LISTED}"
    )
}
