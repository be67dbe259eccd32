//! What is said about missing rights. The rights themselves are listed in one place, which each message points to.
//!
//! Rejected: a line for this user, deployment and version, which can be pasted. It took a connection of its own, and 130 lines.

use std::time::Duration;

use crate::{
    backend::redis::{topology::key_location::KeyLocation, transport::errors},
    failure::Failure,
};

const LISTED: &str =
    "the section \"Rights\" of the operations guide lists (`lock_core::guide::operations`)";

/// Extends a failure for lack of rights by where the rights are listed.
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
        "this user of {} may not do all that locks need ({without}{reason}): grant it the rights that {LISTED}",
        connection.address().shown()
    ))
}

/// The warning where scripts cannot be run.
pub(super) fn without_scripts(polling_pause: Duration) -> String {
    format!(
        "`EVAL` and `EVALSHA` cannot both be used, so there is no queue: waiters poll, about every {polling_pause:?} each, and are \
         served in no order; if the server has these commands, grant this user the rights for scripts that {LISTED}"
    )
}
