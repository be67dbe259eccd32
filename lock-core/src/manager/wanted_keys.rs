//! The keys and the terms of one call.

use crate::{
    engine::terms::Terms,
    error::LockError,
    key::LockKey,
    manager::LockManager,
    mode::Mode,
    options::{KeyInList, LockOptions, MOST_KEYS},
};

/// The keys of a call, and the terms that apply to all of them. The mode in the terms is that of the first key.
#[derive(Debug)]
pub(crate) struct WantedKeys {
    pub(super) list: KeyList,
    pub(super) terms: Terms,
}

/// The keys of a call with their modes, in the order in which they were written, without duplicates. Never empty.
#[derive(Debug)]
pub(super) enum KeyList {
    /// A separate variant, so that a call with one key does not allocate a list.
    One([(LockKey, Mode); 1]),
    Several(Vec<(LockKey, Mode)>),
}

impl KeyList {
    pub(super) fn all(&self) -> &[(LockKey, Mode)] {
        match self {
            Self::One(key) => key,
            Self::Several(keys) => keys,
        }
    }
}

impl LockManager {
    /// Checks a call for one key.
    pub(crate) fn wanted(
        &self,
        key: LockKey,
        options: &LockOptions,
    ) -> Result<WantedKeys, LockError> {
        let terms = self.terms(&key, options)?;
        let list = KeyList::One([(key, terms.mode)]);
        Ok(WantedKeys { list, terms })
    }

    /// Checks a call for a list of keys.
    pub(crate) fn all_wanted(
        &self,
        keys: impl IntoIterator<Item: KeyInList>,
        options: &LockOptions,
    ) -> Result<WantedKeys, LockError> {
        let keys = distinct(keys, options).map_err(|error| self.or_closed(error))?;
        let each = keys.iter().map(|(key, mode)| {
            let options = options.clone().in_mode(*mode);
            self.terms(key, &options)
        });
        let terms = each.collect::<Result<Vec<_>, _>>()?[0];
        let list = <[_; 1]>::try_from(keys).map_or_else(KeyList::Several, KeyList::One);
        Ok(WantedKeys { list, terms })
    }
}

/// Returns the keys in the order of the list, without duplicates, each with its mode, which comes from the key's own
/// options, or else from the call's. Never returns an empty list.
fn distinct(
    keys: impl IntoIterator<Item: KeyInList>,
    options: &LockOptions,
) -> Result<Vec<(LockKey, Mode)>, LockError> {
    let mut distinct: Vec<(LockKey, Mode)> = Vec::new();
    for key in keys {
        let (key, own) = key.__into_parts();
        let mode = own.map_or(Ok(options.mode), |own| own.mode_in_list(options));
        let mode = mode.map_err(|error| error.about(&key))?;
        if let Some((_, other)) = distinct.iter().find(|(other, _)| *other == key) {
            if mode == *other {
                continue;
            }
            return Err(LockError::invalid(format!(
                "the list names this key twice, once {other} and once {mode}, so the task would wait for itself: name it once"
            ))
            .about(&key));
        }
        if distinct.len() == MOST_KEYS {
            return Err(LockError::invalid(format!(
                "the list has more than {MOST_KEYS} keys: lock something that they have in common"
            )));
        }
        distinct.push((key, mode));
    }
    if distinct.is_empty() {
        return Err(LockError::invalid(
            "the list of keys is empty: name what is locked, as in `[\"account:4\", \"account:7\"]`",
        ));
    }
    Ok(distinct)
}
