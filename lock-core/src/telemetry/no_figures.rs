//! The replacement for the figures if the feature `metrics` is off: it does nothing.

use std::time::Duration;

use crate::{error::LockError, key::LockKey, mode::LockMode, telemetry::hand_off::HandOff};

pub(super) const ARE_KEPT: bool = false;

pub(super) fn wait_begins(_: &LockKey, _: LockMode) {}

pub(super) fn wait_ends(_: &LockKey, _: LockMode, _: Duration) {}

pub(super) fn refused_at_once(_: &LockKey, _: LockMode) {}

pub(super) fn hold_begins(_: &LockKey, _: LockMode) {}

pub(super) fn hold_ends(_: &LockKey, _: LockMode, _: Duration) {}

pub(super) fn refused(_: &LockKey, _: LockMode, _: &LockError) {}

pub(super) fn abandoned(_: &LockKey, _: LockMode) {}

pub(super) fn handed_on(_: &LockKey, _: LockMode, _: HandOff) {}

pub(super) fn count(_: &str, _: &LockKey, _: &[(&str, &str)]) {}

pub(super) fn connected(_: &str, _: i64) {}

pub(crate) fn describe() {}
