//! The example of a leader, as three processes on one Redis and one journal.

use std::{
    fs::{self, File},
    path::PathBuf,
    time::Duration,
};

use lock_tests::{HANG, Process, Proxy, RedisServer, Scope, eventually_blocking};
use tempfile::TempDir;

const LOCK: &str = "lock:leader";
const QUEUE: &str = "__lock_core__:waiters:lock:leader";
const LABELS: [&str; 3] = ["10.0.3.7:8080", "10.0.3.8:8080", "10.0.3.9:8080"];

/// A ttl longer than any test: no process becomes the leader by waiting for a lease to end.
const NEVER: &str = "300000";

/// A ttl for tests that wait for one lease to end, long enough for a leader on a busy machine to renew it.
const SHORT: &str = "4000";

/// One server and one journal.
struct Election {
    redis: RedisServer,
    folder: TempDir,
    ttl_ms: &'static str,
    step_ms: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    token: u64,
    label: String,
    word: String,
    steps: u64,
}

impl Line {
    fn is(&self, label: &str, word: &str) -> bool {
        (&*self.label, &*self.word) == (label, word)
    }
}

impl Election {
    fn new(ttl_ms: &'static str) -> Self {
        Self {
            redis: RedisServer::start(),
            folder: tempfile::tempdir().expect("a temporary folder"),
            ttl_ms,
            step_ms: "5",
        }
    }

    /// Starts three processes, of which the first one leads. The others wait in order.
    fn start(ttl_ms: &'static str) -> (Self, [Process; 3]) {
        let election = Self::new(ttl_ms);
        let processes = election.three();
        (election, processes)
    }

    fn three(&self) -> [Process; 3] {
        let first = self.spawn(LABELS[0], &self.redis.url());
        let [second, third] = self.followed_by_two();
        [first, second, third]
    }

    fn followed_by_two(&self) -> [Process; 2] {
        self.leads(LABELS[0]);
        let mut waiting = 0;
        [LABELS[1], LABELS[2]].map(|label| {
            let mut follower = self.spawn(label, &self.redis.url());
            waiting += 1;
            eventually_blocking(HANG, "it waits", || self.queue().len() == waiting);
            assert_eq!(follower.line(), format!("{label}: follows {}", LABELS[0]));
            follower
        })
    }

    fn spawn(&self, label: &str, lock_url: &str) -> Process {
        let journal = self.path();
        let variables = [
            ("LOCK_URL", lock_url),
            ("JOURNAL", journal.to_str().expect("text")),
            ("TTL_MS", self.ttl_ms),
            ("STEP_MS", self.step_ms),
        ];
        let mut process = Process::spawn(env!("CARGO_BIN_EXE_leader"), &[label], &variables);
        let line = process.line();
        assert_eq!(line, format!("{label}: is the process {}", process.id()));
        process
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    fn journal(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [token, _holder, label, word, steps] = words[..] else {
                panic!("{line}")
            };
            Line {
                token: token.parse().expect("a token"),
                label: label.to_owned(),
                word: word.to_owned(),
                steps: steps.parse().expect("a number"),
            }
        });
        lines.collect()
    }

    fn queue(&self) -> Vec<String> {
        self.redis.queue(QUEUE)
    }

    /// Waits until this process has taken a step in the last term.
    fn leads(&self, label: &str) {
        eventually_blocking(HANG, "it leads", || {
            self.journal()
                .last()
                .is_some_and(|last| last.is(label, "step"))
        });
    }

    /// Waits until the last term has taken another step.
    fn continues(&self) {
        let steps = self.steps();
        eventually_blocking(HANG, "the leader takes another step", || {
            self.steps() > steps
        });
    }

    fn steps(&self) -> u64 {
        self.journal().last().map_or(0, |last| last.steps)
    }

    /// Returns the lines of all terms. Checks that each term begins once, tokens grow, no step is lost, and nothing follows the end
    /// of a term.
    fn terms(&self) -> Vec<Vec<Line>> {
        let mut terms: Vec<Vec<Line>> = Vec::new();
        let mut steps = 0;
        for line in self.journal() {
            let last = terms.last().and_then(|term| term.last());
            if line.word == "begins" {
                assert!(last.is_none_or(|last| last.token < line.token), "{line:?}");
                assert_eq!(line.steps, steps);
                terms.push(vec![line]);
                continue;
            }
            let last = last.expect("a term has begun");
            assert_eq!((line.token, &line.label), (last.token, &last.label));
            assert_ne!(last.word, "ends", "{line:?}");
            steps += u64::from(line.word == "step");
            assert_eq!(line.steps, steps);
            terms.last_mut().expect("a term has begun").push(line);
        }
        terms
    }

    /// Returns the labels of the leaders of all terms.
    fn leaders(&self) -> Vec<String> {
        let terms = self.terms().into_iter();
        terms.map(|mut term| term.remove(0).label).collect()
    }

    /// Shuts all processes down, and returns their output.
    fn end(&self, processes: impl IntoIterator<Item = Process>) -> Vec<String> {
        let printed = processes.into_iter().map(|process| {
            process.terminate();
            process.join()
        });
        let printed = printed.collect();
        assert_eq!(self.redis.keys("lock:*"), [""; 0]);
        assert_eq!(self.queue(), [""; 0]);
        printed
    }
}

#[test]
fn one_of_three_processes_leads_and_the_others_say_which() {
    let (election, processes) = Election::start(NEVER);
    election.continues();
    let printed = election.end(processes);
    assert_eq!(election.leaders()[0], LABELS[0]);
    assert!(printed[0].contains("10.0.3.7:8080: leads with fencing token "));
}

/// The lease would have lasted for minutes. The server's clock shows that its end was not waited for.
#[test]
fn at_sigterm_the_body_ends_and_one_message_lets_the_next_instance_lead() {
    let (election, [first, second, mut third]) = Election::start(NEVER);
    let redis = &election.redis;
    let messages = redis.calls("publish");
    let end = redis.expires_at(LOCK).expect("the leader's lease");
    first.terminate();
    election.leads(LABELS[1]);
    assert_eq!(redis.calls("publish"), messages + 1);
    assert!(redis.time() < end);
    assert_eq!(
        third.line(),
        format!("{}: follows {}", LABELS[2], LABELS[1])
    );
    let printed = first.join();
    assert!(printed.ends_with("10.0.3.7:8080: has ended\n"), "{printed}");
    election.end([second, third]);
    let terms = election.terms();
    let last = terms[0].last().expect("a line");
    assert!(last.is(LABELS[0], "ends"), "the body ended first: {last:?}");
    assert!(terms[1][0].is(LABELS[1], "begins"));
}

#[test]
fn after_a_kill_the_next_instance_leads_once_the_lease_has_ended() {
    let (election, [mut first, second, third]) = Election::start(SHORT);
    first.kill9();
    let end = election.redis.expires_at(LOCK);
    let end = end.expect("the lease outlives its process");
    election.leads(LABELS[1]);
    election.end([second, third]);
    let terms = election.terms();
    assert!(terms[0].iter().all(|line| line.word != "ends"));
    assert!(terms[1][0].is(LABELS[1], "begins"));
    // A fencing token has the time at which it was issued, in units of 1/2048 ms.
    let began = Duration::from_millis(terms[1][0].token / 2048);
    assert!(
        began >= end,
        "{began:?}, before the lease had ended at {end:?}"
    );
}

/// The leader is stopped between two steps. The pause between them ends meanwhile, so the next step is due when the leader
/// continues.
#[test]
fn a_leader_that_was_stopped_takes_no_further_step_and_waits_again() {
    let mut election = Election::new(SHORT);
    election.step_ms = "3000";
    let [mut first, second, third] = election.three();
    election.continues();
    // The journal shows the step before the step has ended.
    eventually_blocking(HANG, "the step has ended", || sleeps(first.id()));
    first.stop();
    election.leads(LABELS[1]);
    let before = election.terms()[0].len();
    first.cont();
    let line = says(&mut first, &["does not lead", "refuses the token"]);
    assert!(line.contains("does not lead"), "{line}");
    eventually_blocking(HANG, "it waits again", || {
        let mut queue = election.queue().into_iter();
        queue.any(|entry| entry.contains(LABELS[0]))
    });
    election.continues();
    let terms = election.terms();
    assert_eq!(terms[0].len(), before);
    assert_eq!(election.leaders(), LABELS[..2]);
    election.end([third, first, second]);
}

/// No lock can prevent this write, because the process is stopped after its last check of the lease. The journal refuses it.
#[test]
fn a_write_that_a_stopped_leader_had_begun_is_refused_by_its_token() {
    let (election, [mut first, mut second, third]) = Election::start(SHORT);
    let journal = File::open(election.path()).expect("a journal");
    journal.lock().expect("a lock of the file");
    eventually_blocking(HANG, "it is in the middle of a step", || {
        waits_for_a_file(first.id())
    });
    first.stop();
    says(&mut second, &["leads with"]);
    drop(journal);
    election.leads(LABELS[1]);
    first.cont();
    let line = says(&mut first, &["does not lead", "refuses the token"]);
    assert!(line.contains("refuses the token"), "{line}");
    election.continues();
    let terms = election.terms();
    assert!(terms[0].iter().all(|line| line.word != "ends"));
    assert_eq!(terms.len(), 2);
    election.end([third, first, second]);
}

/// Reads the lines of a process up to one of these, and returns that one.
fn says(process: &mut Process, wanted: &[&str]) -> String {
    // Bounded by the longest wait for a line.
    loop {
        let line = process.line();
        if wanted.iter().any(|wanted| line.contains(wanted)) {
            return line;
        }
    }
}

/// Returns `true` if all threads of a process wait for an event.
fn sleeps(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).expect("a process");
    let mut states = threads.map(|thread| {
        let path = thread.expect("a thread").path().join("stat");
        // A thread may end meanwhile.
        let stat = fs::read_to_string(path).unwrap_or_default();
        // The name before it may have parentheses, too.
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        state == Some('S')
    });
    states.all(|sleeps| sleeps)
}

/// Returns `true` if a process waits for the lock of a file.
fn waits_for_a_file(id: u32) -> bool {
    let locks = fs::read_to_string("/proc/locks").expect("a list");
    let id = id.to_string();
    let mut waiting = locks.lines().filter(|line| line.contains("->"));
    waiting.any(|line| line.split_whitespace().any(|word| word == id))
}

/// The test keeps the key on the server, so the term can only be ended by the leader's own clock.
#[test]
fn a_leader_without_a_network_ends_its_term_before_another_can_begin() {
    let election = Election::new(SHORT);
    let proxy = Proxy::start(election.redis.port());
    let mut first = election.spawn(LABELS[0], &proxy.url());
    let [second, third] = election.followed_by_two();
    proxy.black_hole(Scope::All);
    eventually_blocking(HANG, "the term has ended", || {
        // Repeated, since a renewal may still have been in flight.
        election.redis.cli(&["PERSIST", LOCK]);
        let journal = election.journal();
        journal
            .last()
            .is_some_and(|last| last.is(LABELS[0], "ends"))
    });
    assert!(election.redis.get(LOCK).is_some(), "no other process leads");
    election.redis.cli(&["PEXPIRE", LOCK, "1"]);
    election.leads(LABELS[1]);
    proxy.reset();
    proxy.heal();
    says(&mut first, &["does not lead"]);
    eventually_blocking(HANG, "it waits again", || {
        election
            .queue()
            .iter()
            .any(|entry| entry.contains(LABELS[0]))
    });
    assert_eq!(election.leaders(), LABELS[..2]);
    election.end([third, first, second]);
}

#[test]
fn one_process_leads_alone_without_a_server() {
    let election = Election::new(NEVER);
    let alone = election.spawn("alone", "memory://");
    election.leads("alone");
    election.end([alone]);
    let terms = election.terms();
    assert!(terms[0].last().is_some_and(|last| last.is("alone", "ends")));
}
