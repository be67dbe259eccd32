//! Owner tokens: the secret that proves ownership, and the label in it that names the holder.

use std::{fmt, sync::Arc, time::Duration};

use uuid::{Builder, Uuid, fmt::Simple};

use crate::{
    backend::holder_label,
    inspect::{Holder, LeaseInfo, Sighting},
    mode::LockMode,
    runtime::{jitter::stir, mutex::Mutex},
};

/// A random value that proves the right to renew or release a lease.
///
/// A client that knows it can take the lock away from its holder, so it is written to the backend and nowhere else. Besides the
/// random part it contains the holder's label, by which operators recognise the holder of a key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OwnerToken {
    /// The scheme and the label, shared by all tokens of a manager.
    front: Arc<str>,
    /// Written in hexadecimal digits.
    secret: Uuid,
}

/// The prefix of an owner token of ours, which tells waiters of other processes how its release ends. A token of another
/// library only has to begin differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// The release grants the lock to the next entry of the queue. The scripts look for this one.
    Grants,
    /// The release only deletes the key, because it is made without scripts, so waiters poll.
    Deletes,
}

impl Scheme {
    pub(crate) const ALL: [Self; 2] = [Self::Grants, Self::Deletes];

    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Grants => "lc1:",
            Self::Deletes => "lc0:",
        }
    }
}

impl OwnerToken {
    /// Creates a token without a manager, with this number instead of a secret.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn numbered(number: u64) -> Self {
        let (front, secret) = ("".into(), Uuid::from_u128(number.into()));
        Self { front, secret }
    }

    /// Returns the value itself, for the backend only.
    pub(crate) fn expose(&self) -> String {
        format!("{}{}", self.front, self.secret.simple())
    }

    /// Returns `true` if the token is this value.
    pub(crate) fn is(&self, value: &[u8]) -> bool {
        self.expose().as_bytes() == value
    }

    /// Writes the value to a word of a command. Writing to memory does not fail.
    pub(crate) fn expose_to(&self, word: &mut dyn std::io::Write) {
        let mut digits = [0; Simple::LENGTH];
        drop(word.write_all(self.front.as_bytes()));
        drop(word.write_all(self.secret.simple().encode_lower(&mut digits).as_bytes()));
    }

    /// Returns the proof at the end of a message for this token. A user that may publish, but not read the queue, cannot make
    /// it.
    #[cfg(feature = "redis")]
    pub(crate) fn proof_of(&self, body: &str) -> String {
        let signed = format!("{} {body}", self.expose());
        sha1_smol::Sha1::from(signed).digest().to_string()
    }
}

/// Generates the owner tokens of a manager.
///
/// The random values belong to the manager, not to the process or a thread, so children that each make a manager after a fork draw
/// different ones.
pub(crate) struct OwnerTokens {
    /// The beginnings of the tokens, by scheme.
    fronts: [Arc<str>; 2],
    /// Distinguishes managers with equal fencing tokens. Not secret.
    pub(crate) manager: u64,
    /// Random bytes for the next tokens. Many are drawn from the system's generator at a time, because one call costs more than
    /// the rest of making a token.
    drawn: Mutex<Vec<[u8; 16]>>,
}

impl OwnerTokens {
    const AHEAD: usize = 64;

    /// Creates tokens with the label that a user gave, or else with that of this process.
    pub(crate) fn of(label: Option<&str>) -> Self {
        let label = label.map_or_else(holder_label::of_this_process, str::to_owned);
        let front = |scheme: Scheme| [scheme.prefix(), &label, ":"].concat().into();
        let manager = random_number();
        stir(manager);
        Self {
            fronts: Scheme::ALL.map(front),
            manager,
            drawn: Mutex::default(),
        }
    }

    /// Makes a new token, with 122 random bits from the system's generator.
    pub(crate) fn next(&self, scheme: Scheme) -> OwnerToken {
        OwnerToken {
            front: self.fronts[scheme as usize].clone(),
            secret: Builder::from_random_bytes(self.draw()).into_uuid(),
        }
    }

    fn draw(&self) -> [u8; 16] {
        let mut drawn = self.drawn.lock();
        if drawn.is_empty() {
            drawn.extend(random_bytes::<{ Self::AHEAD }>());
        }
        drawn.pop().expect("it was just filled")
    }
}

/// Returns a unique name, with 122 random bits from the system's generator.
pub(crate) fn random_name() -> String {
    let [random] = random_bytes();
    let random = Builder::from_random_bytes(random).into_uuid();
    random.simple().to_string()
}

/// Returns a number with 52 random bits from the system's generator, so that a number twice as large is still exact in a
/// script.
pub(crate) fn random_number() -> u64 {
    let [random] = random_bytes();
    let number = u128::from_be_bytes(random) >> (128 - 52);
    u64::try_from(number).expect("fewer bits")
}

/// Returns random bytes from the system's generator, by one call.
fn random_bytes<const N: usize>() -> [[u8; 16]; N] {
    #[cfg(feature = "simulation")]
    if let Some(bytes) = crate::runtime::simulation::ask(|world| {
        let half = || u128::from(world.random());
        std::array::from_fn(|_| (half() << 64 | half()).to_be_bytes())
    }) {
        return bytes;
    }
    let mut bytes = [[0; 16]; N];
    getrandom::fill(bytes.as_flattened_mut()).expect("the system has a random generator");
    bytes
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}

/// Returns the findings about a key with the value `token`.
pub(crate) fn sighting_of(token: &str, remaining: Option<Duration>, waiting: usize) -> Sighting {
    Sighting {
        remaining,
        mode: LockMode::Exclusive,
        holders: 1,
        waiting,
        leases: vec![LeaseInfo {
            process: holder_of(token),
            remaining,
            permit: None,
        }],
        queue: Vec::new(),
        result_kept_for: None,
    }
}

/// Returns the holder that a token names.
pub(crate) fn holder_of(token: &str) -> Holder {
    Holder::labelled(label_of(token))
}

/// Returns the label in a token of ours, without the secret part; `None` if the token is another library's.
fn label_of(token: &str) -> Option<&str> {
    let ours = Scheme::ALL.map(|scheme| token.strip_prefix(scheme.prefix()));
    let (label, _secret) = ours.into_iter().flatten().next()?.rsplit_once(':')?;
    Some(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{holder_label::check, redacted::redact};

    #[test]
    fn an_owner_token_shows_its_label_and_never_its_secret() {
        for scheme in Scheme::ALL {
            let token = OwnerTokens::of(None).next(scheme);
            let exposed = token.expose();
            let label = label_of(&exposed).expect("a token of ours");
            assert!(
                label.ends_with(&format!("/{}", std::process::id())),
                "{label}"
            );
            let secret = exposed.rsplit(':').next().expect("has parts");
            assert_eq!(secret.len(), 32);
            assert!(!label.contains(secret));
            assert_eq!(format!("{token:?}"), "OwnerToken(..)");
        }
    }

    #[test]
    fn no_two_owner_tokens_are_equal_in_any_thread() {
        let (one, other) = (OwnerTokens::of(None), OwnerTokens::of(None));
        let make = || (0..200).map(|n| [&one, &other][n % 2].next(Scheme::Grants).expose());
        let threads = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| make().collect::<Vec<_>>()));
            threads.map(|thread| thread.join().expect("no panic"))
        });
        let all: std::collections::HashSet<_> =
            threads.into_iter().flatten().chain(make()).collect();
        assert_eq!(all.len(), 800);
    }

    #[test]
    fn a_label_of_another_client_cannot_forge_a_line_of_the_log() {
        let seen = sighting_of("lc1:web\nERROR all is lost/1:00", None, 0);
        assert_eq!(
            seen.leases[0].process,
            Holder::Ours("web\\nERROR all is lost/1".to_owned())
        );
    }

    /// Tries each allowed character at the beginning, in the middle and at the end of a label.
    #[test]
    fn any_label_is_read_back_and_hides_no_secret() {
        let all = (0..=char::MAX as u32).filter_map(char::from_u32);
        let labels = all.map(|character| format!("{character}a{character}b{character}"));
        let labels: Vec<_> = labels.filter(|label| check(label).is_ok()).collect();
        assert_eq!(labels.len(), 90);
        for label in labels {
            let tokens = OwnerTokens::of(Some(&label));
            for token in Scheme::ALL.map(|scheme| tokens.next(scheme)) {
                let token = token.expose();
                assert_eq!(holder_of(&token), Holder::Ours(label.clone()));
                assert_eq!(
                    redact(&format!("refused: {token} there")),
                    "refused: *** there"
                );
            }
        }
    }

    #[test]
    fn tokens_of_others_have_no_label() {
        for token in ["", "3f2a", "lc1:", "lc0:", "lc1", "LC1:a:b"] {
            assert_eq!(label_of(token), None, "{token}");
        }
    }

    #[test]
    fn a_quoted_token_is_cut_out_of_a_message() {
        let [token, other] = Scheme::ALL.map(|scheme| OwnerTokens::of(None).next(scheme));
        let message = format!(
            "ERR unknown command 'EVALSHA', args: '{}' '{}' '10000'",
            other.expose(),
            token.expose()
        );
        assert_eq!(
            redact(&message),
            "ERR unknown command 'EVALSHA', args: '***' '***' '10000'"
        );
        assert_eq!(redact(&token.expose()), "***");
        assert_eq!(redact("nothing here"), "nothing here");
    }
}
