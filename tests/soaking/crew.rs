//! The contenders, which are started, killed, stopped, and ended by a line of input.

use std::{
    env,
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lock_tests::{Process, history::Moment};

use crate::plan::CONTENDERS;

/// The arguments of all contenders.
#[derive(Debug)]
pub(crate) struct Orders {
    /// The url of each contender, by its place.
    pub(crate) urls: Vec<String>,
    pub(crate) history: PathBuf,
    pub(crate) register: String,
    pub(crate) seed: u64,
    pub(crate) longest_ttl: Duration,
    pub(crate) has_modes: bool,
    pub(crate) log: PathBuf,
}

/// All contenders, each at its place.
#[derive(Debug)]
pub(crate) struct Crew {
    orders: Orders,
    members: Vec<Mutex<Member>>,
    numbers: AtomicU32,
    killed: Mutex<Vec<(u32, Moment)>>,
    /// A line for each contender that had ended by itself when it was replaced.
    deserted: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct Member {
    process: Process,
    number: u32,
}

impl Member {
    /// Returns a line about a process that has ended by itself.
    fn desertion(&mut self) -> Option<String> {
        let status = self.process.ended()?;
        Some(format!("process {} ended by itself: {status}", self.number))
    }
}

/// Longer than the longest wait.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

impl Crew {
    /// Starts the contenders, and waits until all are connected.
    pub(crate) fn start(orders: Orders) -> io::Result<Self> {
        let mut crew = Self {
            orders,
            members: Vec::new(),
            numbers: AtomicU32::new(0),
            killed: Mutex::default(),
            deserted: Mutex::default(),
        };
        for place in 0..CONTENDERS {
            let member = crew.hire(place)?;
            crew.members.push(Mutex::new(member));
        }
        for place in 0..CONTENDERS {
            assert_eq!(crew.member(place).process.line(), "ready");
        }
        Ok(crew)
    }

    /// Lets all contenders begin.
    pub(crate) fn begin(&self) {
        for place in 0..CONTENDERS {
            self.member(place).process.say("go");
        }
    }

    /// Kills the contender at a place, and starts another one.
    pub(crate) fn replace(&self, place: u64) -> io::Result<()> {
        let place = place % CONTENDERS;
        let mut member = self.member(place);
        self.deserted().extend(member.desertion());
        self.kill(&mut member);
        *member = self.hire(place)?;
        // The new contender reads this line once it is connected, however long that takes.
        member.process.say("go");
        Ok(())
    }

    pub(crate) fn stop(&self, place: u64) {
        self.member(place % CONTENDERS).process.stop();
    }

    pub(crate) fn cont(&self, place: u64) {
        self.member(place % CONTENDERS).process.cont();
    }

    /// Returns the processes that were killed since the last call.
    pub(crate) fn killed(&self) -> Vec<(u32, Moment)> {
        std::mem::take(&mut self.killed.lock().expect("no poison"))
    }

    /// Returns the number and the id of each process.
    pub(crate) fn ids(&self) -> Vec<(u32, u32)> {
        let members = (0..CONTENDERS).map(|place| self.member(place));
        members
            .map(|member| (member.number, member.process.id()))
            .collect()
    }

    /// Returns the number of tasks of the process at a place whose process is never replaced.
    pub(crate) fn tasks(&self, place: u64) -> u64 {
        let mut member = self.member(place);
        member.process.say("tasks");
        member.process.line().parse().expect("a number")
    }

    /// Returns a line for each contender that has ended by itself.
    pub(crate) fn deserters(&self) -> Vec<String> {
        let now = (0..CONTENDERS).filter_map(|place| self.member(place).desertion());
        let now: Vec<String> = now.collect();
        self.deserted().drain(..).chain(now).collect()
    }

    fn deserted(&self) -> MutexGuard<'_, Vec<String>> {
        self.deserted.lock().expect("no poison")
    }

    /// Ends all contenders: every second one is killed, and the others release their locks. Returns a line for each that does
    /// not end.
    pub(crate) fn end(&self) -> Vec<String> {
        let mut asked = Vec::new();
        for (place, member) in self.members.iter().enumerate() {
            let mut member = member.lock().expect("no poison");
            if place % 2 == 0 {
                self.kill(&mut member);
            } else if member.process.ended().is_none() {
                member.process.say("stop");
                asked.push(place);
            }
        }
        let deadline = Instant::now() + ENDS_WITHIN;
        let mut late = Vec::new();
        for place in asked {
            let mut member = self.members[place].lock().expect("no poison");
            while member.process.ended().is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            match member.process.ended() {
                Some(status) if status.success() => {}
                Some(status) => late.push(format!("process {} failed: {status}", member.number)),
                None => late.push(format!("process {} does not end", member.number)),
            }
        }
        late
    }

    fn hire(&self, place: u64) -> io::Result<Member> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let Orders {
            urls,
            history,
            register,
            seed,
            longest_ttl,
            has_modes,
            log,
        } = &self.orders;
        let url = &urls[usize::try_from(place).expect("a few")];
        let history = history.to_str().expect("a path that is text");
        let (name, place, seed, longest) = (
            number.to_string(),
            place.to_string(),
            seed.to_string(),
            longest_ttl.as_millis().to_string(),
        );
        let modes = if *has_modes { "all" } else { "exclusive" };
        let arguments = [
            "contend", url, history, &name, &place, register, &seed, &longest, modes,
        ];
        let program = env::current_exe()?;
        let program = program.to_str().expect("a path that is text");
        Ok(Member {
            process: Process::spawn_with_log(program, &arguments, open(log)?),
            number,
        })
    }

    fn kill(&self, member: &mut Member) {
        member.process.kill9();
        // The process records nothing after this time.
        let killed = (member.number, Moment::now());
        self.killed.lock().expect("no poison").push(killed);
    }

    fn member(&self, place: u64) -> MutexGuard<'_, Member> {
        let place = usize::try_from(place).expect("a few");
        self.members[place].lock().expect("no poison")
    }
}

/// Opens the log, to which all contenders append a line at a time.
fn open(log: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(log)
}
