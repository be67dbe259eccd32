//! A sorted map that usually has one entry.

use std::{cmp::Ordering, collections::BTreeMap, iter};

/// A sorted map that stores one entry outside of its tree, because a node of the tree is an allocation with space for
/// eleven. The cost of adding or removing an entry grows with the logarithm of their number.
#[derive(Clone, Debug)]
pub(crate) struct Few<K, V> {
    /// One of the entries, not necessarily the first.
    one: Option<(K, V)>,
    others: BTreeMap<K, V>,
}

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self {
            one: None,
            others: BTreeMap::new(),
        }
    }
}

impl<K: Ord, V> Few<K, V> {
    /// Inserts an entry, whose key must be new.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.one.is_none() {
            self.one = Some((key, value));
        } else {
            self.others.insert(key, value);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let one = self.one.take_if(|(one, _)| one == key);
        one.map(|(_, value)| value)
            .or_else(|| self.others.remove(key))
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let one = self.one.as_ref().filter(|(one, _)| one == key);
        one.map(|(_, value)| value).or_else(|| self.others.get(key))
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let one = self.one.as_mut().filter(|(one, _)| one == key);
        one.map(|(_, value)| value)
            .or_else(|| self.others.get_mut(key))
    }

    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        let one = self.one.as_ref().map(|(key, value)| (key, value));
        match (one, self.others.first_key_value()) {
            (Some(one), Some(other)) if other.0.cmp(one.0) == Ordering::Less => Some(other),
            (Some(one), _) => Some(one),
            (None, other) => other,
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    /// Iterates over all entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut one = self.one.as_ref().map(|(key, value)| (key, value));
        let mut others = self.others.iter().peekable();
        iter::from_fn(move || match (one, others.peek()) {
            (Some((key, _)), Some((other, _))) if *other < key => others.next(),
            (Some(_), _) => one.take(),
            (None, _) => others.next(),
        })
    }

    /// Iterates over all values, in any order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let one = self.one.iter_mut().map(|(_, value)| value);
        one.chain(self.others.values_mut())
    }

    /// Returns all values, in any order.
    pub(crate) fn into_values(self) -> impl Iterator<Item = V> {
        let one = self.one.into_iter().map(|(_, value)| value);
        one.chain(self.others.into_values())
    }

    /// Moves all entries of another map into this one. The two must have no key in common.
    pub(crate) fn append(&mut self, other: &mut Self) {
        let one = other.one.take();
        self.others.append(&mut other.others);
        if let Some((key, value)) = one {
            self.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares `Few` with a map of the standard library, in all short sequences of insertions and removals.
    #[test]
    fn few_is_a_sorted_map() {
        const KEYS: usize = 4;
        for sequence in 0..(2 * KEYS).pow(6) {
            let (mut few, mut all) = (Few::default(), BTreeMap::new());
            let mut left = sequence;
            for step in 0..6 {
                let (key, inserts) = (left % KEYS, (left / KEYS).is_multiple_of(2));
                left /= 2 * KEYS;
                if !inserts {
                    assert_eq!(few.remove(&key), all.remove(&key));
                } else if all.insert(key, step).is_none() {
                    few.insert(key, step);
                } else if let Some(value) = few.get_mut(&key) {
                    *value = step;
                }
                assert!(few.iter().eq(&all));
                assert_eq!(few.first(), all.first_key_value());
                assert_eq!((few.len(), few.is_empty()), (all.len(), all.is_empty()));
            }
        }
    }
}
