//! The replacement for the figures if the feature `metrics` is off: it does nothing.

use std::time::Duration;

use crate::{
    error::{LeaseLost, LockError},
    key::LockKey,
    telemetry::HandOff,
};

pub(super) const ARE_KEPT: bool = false;

pub(super) fn wait_begins(_: &LockKey) {}

pub(super) fn wait_ends(_: &LockKey, _: Duration) {}

pub(super) fn hold_begins(_: &LockKey) {}

pub(super) fn hold_ends(_: &LockKey, _: Duration) {}

pub(super) fn refused(_: &LockKey, _: &LockError) {}

pub(super) fn abandoned(_: &LockKey) {}

pub(super) fn lost(_: &LockKey, _: LeaseLost) {}

pub(super) fn handed_on(_: &LockKey, _: HandOff) {}

pub(super) fn describe() {}
