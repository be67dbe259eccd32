//! Replaces the metrics with functions that do nothing if the `metrics` feature is off.

use std::time::Duration;

use crate::{key::LockKey, mode::LockMode};

pub(super) const ARE_KEPT: bool = false;

pub(super) fn enter(_: &str, _: &LockKey, _: LockMode) {}

pub(super) fn leave(_: &str, _: &LockKey, _: LockMode) {}

pub(super) fn took(_: &str, _: &LockKey, _: LockMode, _: Duration) {}

pub(super) fn add(_: &str, _: &LockKey, _: LockMode) {}

pub(super) fn count(_: &str, _: &LockKey, _: &[(&str, &str)]) {}

pub(super) fn connected(_: &str, _: i64) {}

pub(crate) fn describe() {}
