//! What requests send: the arguments of scripts, and the plain commands that do without one.

use std::num::NonZeroU64;

use crate::store::{
    Acquire, QueueMode, Release,
    redis::{
        connection::wire::resp::{
            self,
            Arg::{self, Number, Numbered, Text},
            millis,
        },
        topology::key_location::KeyLocation,
        without_scripts::set_if_free,
    },
};

/// `counted_from`: than what the fencing token must be larger if it may be counted up.
pub(super) fn acquire_arguments<'a>(
    location: &'a KeyLocation,
    request: &'a Acquire,
    queue_mode: QueueMode,
    counted_from: Option<u64>,
) -> [Arg<'a>; 6] {
    let known = counted_from.unwrap_or(0);
    let tokens = counted_from.map_or(request.tokens, |_| 0);
    [
        Text(request.token.expose()),
        Number(millis(request.ttl)),
        Number(known.max(request.known_fencing)),
        Number(tokens.into()),
        match queue_mode {
            QueueMode::DoNotQueue => Text("try"),
            QueueMode::JoinQueue => Text("wait"),
            QueueMode::CheckPosition(position) => Number(position.map_or(0, NonZeroU64::get)),
        },
        Numbered(&location.names.channel, request.entry),
    ]
}

/// `is_plain`: nothing with this token has been asked to be released before.
pub(super) fn release_arguments<'a>(
    location: &'a KeyLocation,
    request: &'a Release,
    is_plain: bool,
) -> Vec<Arg<'a>> {
    let mut words = vec![Text(request.token.expose()), Number(request.known_fencing)];
    // One that is sent again may find that another has had the lock since. And the next token may not be counted up everywhere.
    let is_first = is_plain && location.server.fencing_counter.is_allowed();
    if request.keep.is_some() || request.entry.is_some() || !is_first {
        words.push(Number(request.keep.map_or(0, millis)));
        let channel = &location.names.channel;
        words.extend(request.entry.map(|entry| Numbered(channel, entry)));
    }
    words
}

/// Takes a key that nobody else is expected to want: the lock first, and then its fencing token, since another order
/// could hand out tokens that go back. Last of all, whether somebody waits: for nobody may barge in.
pub(super) fn write_plain(out: &mut Vec<u8>, location: &KeyLocation, request: &Acquire) -> usize {
    let [_, fence, queue] = location.keys(&request.full_key);
    resp::write_command(out, &[&set_if_free(request)]);
    resp::write_command(out, &[&[Text("INCR"), fence]]);
    resp::write_command(out, &[&[Text("LLEN"), queue]]);
    3
}
