//! The keys of a server, and the commands of Redis 7 on them.

use std::collections::BTreeMap;

use super::protocol::Reply;

pub(crate) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";
const SYNTAX: &str = "ERR syntax error";

type Bytes = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Bytes),
    /// Members, sorted by score and then by member. All scores are whole numbers here.
    Sorted(Vec<(i64, Bytes)>),
    /// An empty stream, with its last id.
    Stream(Id),
}

/// Milliseconds, and a sequence number.
type Id = (i64, i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The expiry, in milliseconds since the epoch.
    pub(crate) until: Option<i64>,
}

/// The data of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    keys: BTreeMap<Bytes, Entry>,
    /// The number of changes of each key, for transactions.
    changes: BTreeMap<Bytes, u64>,
}

/// The reply, or `None` for an unknown command.
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

    /// Executes a command on keys; `None` if the command is unknown.
    pub(crate) fn execute(&mut self, name: &str, words: &[Bytes], now_us: i64) -> Known {
        for key in keys_of(name, words) {
            self.expire(key, now_us);
        }
        let least = match name {
            "GET" | "MGET" | "DEL" | "EXISTS" | "PTTL" | "ZPOPMIN" | "ZCARD" => 1,
            "ZREM" | "ZSCORE" | "PEXPIRE" | "PEXPIREAT" | "SET" => 2,
            "ZADD" | "ZRANGE" | "ZREVRANGE" | "ZRANGEBYSCORE" | "ZCOUNT" | "ZREMRANGEBYSCORE" => 3,
            "XADD" => 4,
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
            "MGET" => Ok(self.get_all(words)),
            "SET" => self.set(words, now_us),
            "DEL" => Ok(self.delete(words)),
            "EXISTS" => {
                let there = words.iter().filter(|key| self.keys.contains_key(*key));
                Ok(int(there.count()))
            }
            "XADD" => self.append(words, now_us),
            "PTTL" => Ok(self.remaining(&words[0], now_us)),
            "PEXPIRE" => self.expire_in(&words[0], &words[1], now_us),
            "PEXPIREAT" => self.expire_at(&words[0], &words[1], now_us),
            "ZPOPMIN" => self.pop(&words[0]),
            "ZCARD" => self.sorted(&words[0]).map(|all| int(all.len())),
            "ZSCORE" => self.score(&words[0], &words[1]),
            "ZRANGE" => self.range(words, false),
            "ZREVRANGE" => self.range(words, true),
            "ZRANGEBYSCORE" => self.range_by_score(words),
            "ZCOUNT" => self.count(&words[0], &words[1], &words[2]),
            "ZREM" => self.remove(&words[0], |(_, member)| words[1..].contains(member)),
            "ZREMRANGEBYSCORE" => self.remove_between(&words[0], &words[1], &words[2]),
            _ => self.add(words),
        };
        Some(done.unwrap_or_else(Reply::error))
    }

    /// Deletes a key whose expiry is in the past, as a server does at the next access.
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
            Some(Value::Sorted(_) | Value::Stream(_)) => Err(WRONG_TYPE),
        }
    }

    /// Returns the sorted set of a key; empty if the key does not exist.
    fn sorted(&self, key: &[u8]) -> Result<&[(i64, Bytes)], &'static str> {
        match self.keys.get(key).map(|entry| &entry.value) {
            None => Ok(&[]),
            Some(Value::Sorted(all)) => Ok(all),
            Some(Value::Text(_) | Value::Stream(_)) => Err(WRONG_TYPE),
        }
    }

    /// Replaces the sorted set of a key. An empty set deletes the key.
    fn put_sorted(&mut self, key: &[u8], mut all: Vec<(i64, Bytes)>) {
        all.sort();
        let until = self.keys.get(key).and_then(|entry| entry.until);
        if all.is_empty() {
            self.keys.remove(key);
            self.touch(key);
        } else {
            self.put(key, Value::Sorted(all), until);
        }
    }

    fn get(&self, key: &[u8]) -> Result<Reply, &'static str> {
        Ok(self.text(key)?.cloned().map_or(Reply::Nil, Reply::Bulk))
    }

    /// Returns the values of keys; nil for a key of another type.
    fn get_all(&self, keys: &[Bytes]) -> Reply {
        let values = keys.iter().map(|key| self.get(key).unwrap_or(Reply::Nil));
        Reply::Array(values.collect())
    }

    fn set(&mut self, words: &[Bytes], now_us: i64) -> Result<Reply, &'static str> {
        let (key, value, mut options) = (&words[0], &words[1], words[2..].iter());
        let (mut only_new, mut keeps, mut until) = (false, false, None);
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
                b"PXAT" => {
                    let end = number(options.next().ok_or(SYNTAX)?)?;
                    if end <= 0 {
                        return Err("ERR invalid expire time in 'set' command");
                    }
                    until = Some(end);
                }
                _ => return Err(SYNTAX),
            }
        }
        if only_new && self.keys.contains_key(key) {
            return Ok(Reply::Nil);
        }
        if keeps {
            until = self.keys.get(key).and_then(|entry| entry.until);
        }
        self.put(key, Value::Text(value.clone()), until);
        // The new expiry may be in the past.
        self.expire(key, now_us);
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

    /// Adds to a stream that stays empty. Returns the id.
    fn append(&mut self, words: &[Bytes], now_us: i64) -> Result<Reply, &'static str> {
        let (key, mut options) = (&words[0], &words[1..]);
        let mut makes = true;
        if let [option, rest @ ..] = options
            && option.eq_ignore_ascii_case(b"NOMKSTREAM")
        {
            (makes, options) = (false, rest);
        }
        let [trim, most, id, _field, _value] = options else {
            panic!("not modelled: XADD {words:?}");
        };
        assert!(trim.eq_ignore_ascii_case(b"MAXLEN") && **most == *b"0");
        let last = match self.keys.get(key).map(|entry| &entry.value) {
            None if !makes => return Ok(Reply::Nil),
            None => (0, 0),
            Some(Value::Stream(last)) => *last,
            Some(_) => return Err(WRONG_TYPE),
        };
        let id = if **id == *b"*" {
            (now_us / 1000, 0).max((last.0, last.1 + 1))
        } else {
            let text = std::str::from_utf8(id).expect("an id");
            let (millis, sequence) = text.split_once('-').expect("an id");
            (number(millis.as_bytes())?, number(sequence.as_bytes())?)
        };
        if id <= last {
            return Err(
                "ERR The ID specified in XADD is equal or smaller than the target stream top item",
            );
        }
        let until = self.keys.get(key).and_then(|entry| entry.until);
        self.put(key, Value::Stream(id), until);
        Ok(Reply::text(&format!("{}-{}", id.0, id.1)))
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

    fn expire_at(&mut self, key: &[u8], end: &[u8], now_us: i64) -> Result<Reply, &'static str> {
        let span = number(end)?.saturating_sub(now_us / 1000);
        self.expire_in(key, span.to_string().as_bytes(), now_us)
    }

    fn pop(&mut self, key: &[u8]) -> Result<Reply, &'static str> {
        let all = self.sorted(key)?.to_vec();
        let Some(((score, member), rest)) = all.split_first() else {
            return Ok(Reply::Array(Vec::new()));
        };
        let popped = vec![Reply::Bulk(member.clone()), Reply::text(&score.to_string())];
        self.put_sorted(key, rest.to_vec());
        Ok(Reply::Array(popped))
    }

    fn score(&self, key: &[u8], member: &[u8]) -> Result<Reply, &'static str> {
        let mut all = self.sorted(key)?.iter();
        let found = all.find(|(_, other)| other == member);
        Ok(found.map_or(Reply::Nil, |(score, _)| Reply::text(&score.to_string())))
    }

    /// Returns the members in a range of ranks, optionally with their scores.
    fn range(&self, words: &[Bytes], is_reversed: bool) -> Result<Reply, &'static str> {
        let (from, to) = (number(&words[1])?, number(&words[2])?);
        assert!(from >= 0, "not modelled: ranks from {from}");
        let with_scores = match &words[3..] {
            [] => false,
            [option] if option.eq_ignore_ascii_case(b"WITHSCORES") => true,
            _ => return Err(SYNTAX),
        };
        let mut all = self.sorted(&words[0])?.to_vec();
        if is_reversed {
            all.reverse();
        }
        let length = i64::try_from(all.len()).expect("a length");
        let to = if to < 0 { to + length } else { to };
        let within = |index: usize| (from..=to).contains(&i64::try_from(index).expect("an index"));
        let found = all.iter().enumerate().filter(|(index, _)| within(*index));
        Ok(shown(found.map(|(_, one)| one), with_scores))
    }

    fn range_by_score(&self, words: &[Bytes]) -> Result<Reply, &'static str> {
        let within = within(&words[1], &words[2])?;
        let (mut options, mut with_scores, mut limit) = (words[3..].iter(), false, None);
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"WITHSCORES" => with_scores = true,
                b"LIMIT" => {
                    let mut next = || number(options.next().ok_or(SYNTAX)?);
                    let (skipped, count) = (next()?, next()?);
                    assert!(skipped == 0, "not modelled: LIMIT {skipped}");
                    // A count below zero means all.
                    limit = usize::try_from(count).ok();
                }
                _ => return Err(SYNTAX),
            }
        }
        let found = self.sorted(&words[0])?.iter();
        let found = found.filter(|(score, _)| within(*score));
        Ok(shown(found.take(limit.unwrap_or(usize::MAX)), with_scores))
    }

    fn count(&self, key: &[u8], from: &[u8], to: &[u8]) -> Result<Reply, &'static str> {
        let within = within(from, to)?;
        let found = self.sorted(key)?.iter();
        Ok(int(found.filter(|(score, _)| within(*score)).count()))
    }

    fn remove(
        &mut self,
        key: &[u8],
        goes: impl Fn(&(i64, Bytes)) -> bool,
    ) -> Result<Reply, &'static str> {
        let all = self.sorted(key)?;
        let (gone, rest): (Vec<_>, Vec<_>) = all.iter().cloned().partition(goes);
        // Without a removed member, the key is unchanged for a client that watches it.
        if !gone.is_empty() {
            self.put_sorted(key, rest);
        }
        Ok(int(gone.len()))
    }

    fn remove_between(
        &mut self,
        key: &[u8],
        from: &[u8],
        to: &[u8],
    ) -> Result<Reply, &'static str> {
        let within = within(from, to)?;
        self.remove(key, |(score, _)| within(*score))
    }

    fn add(&mut self, words: &[Bytes]) -> Result<Reply, &'static str> {
        let (mut only_new, mut only_known) = (false, false);
        let (mut only_greater, mut only_less, mut pairs) = (false, false, &words[1..]);
        while let Some((option, rest)) = pairs.split_first() {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => only_new = true,
                b"XX" => only_known = true,
                b"GT" => only_greater = true,
                b"LT" => only_less = true,
                b"CH" | b"INCR" => panic!("not modelled: ZADD {words:?}"),
                _ => break,
            }
            pairs = rest;
        }
        if pairs.is_empty() || pairs.len() % 2 != 0 {
            return Err(SYNTAX);
        }
        assert!(!(only_new && only_greater), "not modelled: NX with GT");
        let mut new = Vec::new();
        for pair in pairs.chunks(2) {
            new.push((number(&pair[0]).map_err(|_| NO_FLOAT)?, &pair[1]));
        }
        let mut all = self.sorted(&words[0])?.to_vec();
        let (mut added, mut is_changed) = (0, false);
        for (score, member) in new {
            if let Some((known, _)) = all.iter_mut().find(|(_, other)| other == member) {
                let moves = !only_new
                    && *known != score
                    && (!only_greater || *known < score)
                    && (!only_less || score < *known);
                if moves {
                    *known = score;
                }
                is_changed |= moves;
            } else if !only_known {
                all.push((score, member.clone()));
                added += 1;
            }
        }
        if is_changed || added > 0 {
            self.put_sorted(&words[0], all);
        }
        Ok(int(added))
    }
}

/// Returns members as a script sees them, each followed by its score if `with_scores` is set.
fn shown<'a>(found: impl Iterator<Item = &'a (i64, Bytes)>, with_scores: bool) -> Reply {
    let mut all = Vec::new();
    for (score, member) in found {
        all.push(Reply::Bulk(member.clone()));
        if with_scores {
            all.push(Reply::text(&score.to_string()));
        }
    }
    Reply::Array(all)
}

/// Returns whether a score is between two bounds, which may be infinite or exclusive.
fn within(from: &[u8], to: &[u8]) -> Result<impl Fn(i64) -> bool + use<>, &'static str> {
    let bound = |text: &[u8]| -> Result<(i64, bool), &'static str> {
        let (text, is_open) = text
            .strip_prefix(b"(")
            .map_or((text, false), |it| (it, true));
        let score = match text {
            b"-inf" => i64::MIN,
            b"+inf" => i64::MAX,
            _ => number(text).map_err(|_| "ERR min or max is not a float")?,
        };
        Ok((score, is_open))
    };
    let ((from, from_is_open), (to, to_is_open)) = (bound(from)?, bound(to)?);
    Ok(move |score| {
        let above = score > from || !from_is_open && score == from;
        above && (score < to || !to_is_open && score == to)
    })
}

/// Returns the keys of a command.
fn keys_of<'a>(name: &str, words: &'a [Bytes]) -> &'a [Bytes] {
    match name {
        "DEL" | "EXISTS" | "MGET" => words,
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
