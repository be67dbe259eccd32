//! The keys of a server, and the plain commands on them, as Redis 7 has them.

use std::collections::{BTreeMap, VecDeque};

use super::protocol::Reply;

pub(crate) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Bytes),
    List(VecDeque<Bytes>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// In milliseconds since the epoch.
    pub(crate) until: Option<i64>,
}

/// What the server holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    keys: BTreeMap<Bytes, Entry>,
    /// Counts up whenever a key changes; for transactions.
    changes: BTreeMap<Bytes, u64>,
}

/// Redis knows the name, or not.
type Known = Option<Reply>;

impl Store {
    /// The keys that have not expired.
    pub(crate) fn alive(&self, now_us: i64) -> impl Iterator<Item = (&Bytes, &Entry)> {
        let now = now_us / 1000;
        self.keys
            .iter()
            .filter(move |(_, entry)| entry.until.is_none_or(|until| now <= until))
    }

    pub(crate) fn entry(&self, key: &[u8], now_us: i64) -> Option<&Entry> {
        let entry = self.keys.get(key)?;
        let is_over = entry.until.is_some_and(|until| now_us / 1000 > until);
        (!is_over).then_some(entry)
    }

    pub(crate) fn changes_of(&self, key: &[u8]) -> u64 {
        self.changes.get(key).copied().unwrap_or(0)
    }

    pub(crate) fn clear(&mut self) {
        let keys: Vec<Bytes> = std::mem::take(&mut self.keys).into_keys().collect();
        for key in keys {
            self.touch(&key);
        }
    }

    /// Executes a command on keys; `None`: there is none of this name here.
    pub(crate) fn execute(&mut self, name: &str, words: &[Bytes], now_us: i64) -> Known {
        for key in keys_of(name, words) {
            self.expire(key, now_us);
        }
        let least = match name {
            "GET" | "DEL" | "EXISTS" | "INCR" | "PTTL" | "LPOP" | "LLEN" => 1,
            "LINDEX" | "RPUSH" | "PEXPIRE" | "SET" => 2,
            "LRANGE" | "LSET" | "LREM" | "PSETEX" => 3,
            "LINSERT" => 4,
            _ => return None,
        };
        if words.len() < least {
            let name = name.to_lowercase();
            return Some(Reply::error(format!(
                "ERR wrong number of arguments for '{name}' command"
            )));
        }
        let done = match name {
            "GET" => self.get(&words[0]),
            "SET" => self.set(words, now_us),
            "PSETEX" => self.put_for(&words[0], &words[1], &words[2], now_us),
            "DEL" => Ok(self.delete(words)),
            "EXISTS" => {
                let there = words.iter().filter(|key| self.keys.contains_key(*key));
                Ok(int(there.count()))
            }
            "INCR" => self.increment(&words[0]),
            "PTTL" => Ok(self.remaining(&words[0], now_us)),
            "PEXPIRE" => self.expire_in(&words[0], &words[1], now_us),
            "LPOP" => self.pop(&words[0]),
            "LLEN" => self
                .list(&words[0])
                .map(|list| int(list.map_or(0, VecDeque::len))),
            "LINDEX" => self.at(&words[0], &words[1]),
            "LRANGE" => self.range(&words[0], &words[1], &words[2]),
            "RPUSH" => self.push(&words[0], &words[1..]),
            "LSET" => self.replace(&words[0], &words[1], &words[2]),
            "LREM" => self.remove_from(&words[0], &words[1], &words[2]),
            _ => self.insert(words),
        };
        Some(done.unwrap_or_else(Reply::error))
    }

    /// A key whose time is over goes when somebody looks.
    pub(crate) fn expire(&mut self, key: &[u8], now_us: i64) {
        if self.keys.contains_key(key) && self.entry(key, now_us).is_none() {
            self.keys.remove(key);
            self.touch(key);
        }
    }

    fn touch(&mut self, key: &[u8]) {
        *self.changes.entry(key.to_vec()).or_default() += 1;
    }

    fn put(&mut self, key: &[u8], value: Value, until: Option<i64>) {
        self.keys.insert(key.to_vec(), Entry { value, until });
        self.touch(key);
    }

    fn text(&self, key: &[u8]) -> Result<Option<&Bytes>, &'static str> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::List(_)) => Err(WRONG_TYPE),
        }
    }

    fn list(&self, key: &[u8]) -> Result<Option<&VecDeque<Bytes>>, &'static str> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(Value::Text(_)) => Err(WRONG_TYPE),
        }
    }

    /// Changes a list that is there; one that is empty afterwards is gone.
    fn change<T>(
        &mut self,
        key: &[u8],
        how: impl FnOnce(&mut VecDeque<Bytes>) -> T,
    ) -> Result<Option<T>, &'static str> {
        let Some(entry) = self.keys.get_mut(key) else {
            return Ok(None);
        };
        let Value::List(list) = &mut entry.value else {
            return Err(WRONG_TYPE);
        };
        let done = how(list);
        if list.is_empty() {
            self.keys.remove(key);
        }
        self.touch(key);
        Ok(Some(done))
    }

    fn get(&self, key: &[u8]) -> Result<Reply, &'static str> {
        Ok(self.text(key)?.cloned().map_or(Reply::Nil, Reply::Bulk))
    }

    fn set(&mut self, words: &[Bytes], now_us: i64) -> Result<Reply, &'static str> {
        let (key, value, mut options) = (&words[0], &words[1], words[2..].iter());
        let (mut only_new, mut keeps, mut until, mut equal) = (false, false, None, None);
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => only_new = true,
                b"KEEPTTL" => keeps = true,
                b"PX" => {
                    let span = number(options.next().ok_or(SYNTAX)?)?;
                    if span <= 0 {
                        return Err("ERR invalid expire time in 'set' command");
                    }
                    until = Some(now_us / 1000 + span);
                }
                b"IFEQ" => equal = Some(options.next().ok_or(SYNTAX)?),
                _ => return Err(SYNTAX),
            }
        }
        if only_new && self.keys.contains_key(key) {
            return Ok(Reply::Nil);
        }
        if let Some(equal) = equal
            && self.text(key)? != Some(equal)
        {
            return Ok(Reply::Nil);
        }
        if keeps {
            until = self.keys.get(key).and_then(|entry| entry.until);
        }
        self.put(key, Value::Text(value.clone()), until);
        Ok(Reply::Status("OK"))
    }

    fn put_for(
        &mut self,
        key: &[u8],
        span: &[u8],
        value: &[u8],
        now_us: i64,
    ) -> Result<Reply, &'static str> {
        let span = number(span)?;
        if span <= 0 {
            return Err("ERR invalid expire time in 'psetex' command");
        }
        let until = Some(now_us / 1000 + span);
        self.put(key, Value::Text(value.to_vec()), until);
        Ok(Reply::Status("OK"))
    }

    fn delete(&mut self, keys: &[Bytes]) -> Reply {
        let mut deleted = 0;
        for key in keys {
            if self.keys.remove(key).is_some() {
                deleted += 1;
                self.touch(key);
            }
        }
        Reply::Int(deleted)
    }

    fn increment(&mut self, key: &[u8]) -> Result<Reply, &'static str> {
        let before = self.text(key)?.map_or(Ok(0), |text| number(text))?;
        let after = before
            .checked_add(1)
            .ok_or("ERR increment or decrement would overflow")?;
        let until = self.keys.get(key).and_then(|entry| entry.until);
        self.put(key, Value::Text(after.to_string().into()), until);
        Ok(Reply::Int(after))
    }

    fn remaining(&self, key: &[u8], now_us: i64) -> Reply {
        Reply::Int(match self.keys.get(key).map(|entry| entry.until) {
            None => -2,
            Some(None) => -1,
            Some(Some(until)) => (until - now_us / 1000).max(0),
        })
    }

    fn expire_in(&mut self, key: &[u8], span: &[u8], now_us: i64) -> Result<Reply, &'static str> {
        let span = number(span)?;
        let Some(entry) = self.keys.get_mut(key) else {
            return Ok(Reply::Int(0));
        };
        if span <= 0 {
            self.keys.remove(key);
        } else {
            entry.until = Some(now_us / 1000 + span);
        }
        self.touch(key);
        Ok(Reply::Int(1))
    }

    fn pop(&mut self, key: &[u8]) -> Result<Reply, &'static str> {
        let popped = self.change(key, VecDeque::pop_front)?.flatten();
        Ok(popped.map_or(Reply::Nil, Reply::Bulk))
    }

    fn push(&mut self, key: &[u8], more: &[Bytes]) -> Result<Reply, &'static str> {
        if self.list(key)?.is_none() {
            self.put(key, Value::List(VecDeque::new()), None);
        }
        let length = self.change(key, |list| {
            list.extend(more.iter().cloned());
            list.len()
        })?;
        Ok(int(length.unwrap_or(0)))
    }

    fn at(&self, key: &[u8], index: &[u8]) -> Result<Reply, &'static str> {
        let index = number(index)?;
        let Some(list) = self.list(key)? else {
            return Ok(Reply::Nil);
        };
        let found = place(index, list.len()).and_then(|index| list.get(index));
        Ok(found.cloned().map_or(Reply::Nil, Reply::Bulk))
    }

    fn range(&self, key: &[u8], from: &[u8], to: &[u8]) -> Result<Reply, &'static str> {
        let (from, to) = (number(from)?, number(to)?);
        let Some(list) = self.list(key)? else {
            return Ok(Reply::Array(Vec::new()));
        };
        let length = i64::try_from(list.len()).expect("a length");
        let from = if from < 0 {
            (from + length).max(0)
        } else {
            from
        };
        let to = if to < 0 { to + length } else { to };
        let within = |index: usize| (from..=to).contains(&i64::try_from(index).expect("an index"));
        let found = list.iter().enumerate().filter(|(index, _)| within(*index));
        Ok(Reply::Array(
            found.map(|(_, item)| Reply::Bulk(item.clone())).collect(),
        ))
    }

    fn replace(&mut self, key: &[u8], index: &[u8], item: &[u8]) -> Result<Reply, &'static str> {
        if self.list(key)?.is_none() {
            return Err("ERR no such key");
        }
        let index = number(index)?;
        let done = self.change(key, |list| {
            let found = place(index, list.len()).and_then(|index| list.get_mut(index));
            found.map(|found| *found = item.to_vec())
        })?;
        done.flatten().ok_or("ERR index out of range")?;
        Ok(Reply::Status("OK"))
    }

    /// Only from the front, as the scripts do.
    fn remove_from(&mut self, key: &[u8], most: &[u8], item: &[u8]) -> Result<Reply, &'static str> {
        let most = number(most)?;
        assert!(most > 0, "not modelled: LREM {most}");
        let has_it = |list: &VecDeque<Bytes>| list.iter().any(|other| other == item);
        if !self.list(key)?.is_some_and(has_it) {
            // Not a change, for whoever watches the key.
            return Ok(Reply::Int(0));
        }
        let removed = self.change(key, |list| {
            let mut removed = 0;
            list.retain(|other| {
                let goes = removed < most && other == item;
                removed += i64::from(goes);
                !goes
            });
            removed
        })?;
        Ok(Reply::Int(removed.unwrap_or(0)))
    }

    fn insert(&mut self, words: &[Bytes]) -> Result<Reply, &'static str> {
        let [key, side, pivot, item] = words else {
            return Err("ERR wrong number of arguments for 'linsert' command");
        };
        let after = match side.to_ascii_uppercase().as_slice() {
            b"BEFORE" => 0,
            b"AFTER" => 1,
            _ => return Err(SYNTAX),
        };
        let Some(list) = self.list(key)? else {
            return Ok(Reply::Int(0));
        };
        let Some(index) = list.iter().position(|other| other == pivot) else {
            return Ok(Reply::Int(-1));
        };
        let length = self.change(key, |list| {
            list.insert(index + after, item.clone());
            list.len()
        })?;
        Ok(int(length.unwrap_or(0)))
    }
}

/// The keys that a command names.
fn keys_of<'a>(name: &str, words: &'a [Bytes]) -> &'a [Bytes] {
    match name {
        "DEL" | "EXISTS" => words,
        _ => words.get(..1).unwrap_or_default(),
    }
}

fn int(number: usize) -> Reply {
    Reply::Int(i64::try_from(number).expect("a length"))
}

fn number(text: &[u8]) -> Result<i64, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| NO_INTEGER)?;
    let is_plain = !text.starts_with('+') && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain).ok_or(NO_INTEGER)
}

/// Where an index that may count from the end points to.
fn place(index: i64, length: usize) -> Option<usize> {
    if index >= 0 {
        return usize::try_from(index).ok();
    }
    length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
}
