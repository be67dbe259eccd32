//! What requests send: the arguments of scripts, and the plain commands that need no script.

use std::num::NonZeroU64;

use crate::store::{
    Acquire, QueueMode, Release,
    redis::{
        connection::wire::command::{
            Arg::{self, Number, Numbered, Text},
            Outgoing, command, millis, pipeline,
        },
        topology::key_location::KeyLocation,
        without_scripts::set_if_free,
    },
};

/// `counted_from`: the fencing token must be larger than this if it may be taken by incrementing the counter.
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

/// `is_plain`: no release with this token has been sent before.
pub(super) fn release_arguments<'a>(
    location: &'a KeyLocation,
    request: &'a Release,
    is_plain: bool,
) -> Vec<Arg<'a>> {
    let mut words = Vec::with_capacity(4);
    words.extend([Text(request.token.expose()), Number(request.known_fencing)]);
    // A repeated release may find that another client has had the lock since. And not everywhere may the next token be taken by
    // incrementing the counter.
    let is_first = is_plain && location.server.fencing_counter.is_allowed();
    if request.keep.is_some() || request.entry.is_some() || !is_first {
        words.push(Number(request.keep.map_or(0, millis)));
        let channel = &location.names.channel;
        words.extend(request.entry.map(|entry| Numbered(channel, entry)));
    }
    words
}

/// Takes a key for which no contention is expected: the lock first, and then its fencing token, since another order could hand
/// out tokens that decrease. Last of all, whether a waiter is in the queue: no acquire may overtake it.
pub(super) fn plain_acquire(location: &KeyLocation, request: &Acquire) -> Outgoing {
    let [_, fence, queue] = location.keys(&request.full_key);
    pipeline([
        command(&[&set_if_free(request)]),
        command(&[&[Text("INCR"), fence]]),
        command(&[&[Text("LLEN"), queue]]),
    ])
}
