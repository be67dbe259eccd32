//! Schedules the tasks of all simulated processes.
//!
//! A manager's thread is a lane. Its tasks are polled in the order in which they became ready, as in the runtime of that thread. A
//! user's task has a lane of its own, since it may run on any thread of the user's runtime. The seed determines which lane is next.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Wake, Waker},
};

use lock_core::__simulation::Work;

use crate::chance::Chance;

pub(crate) type ProcessId = usize;
pub(crate) type LaneId = u64;
type TaskId = u64;

/// The process and the lane of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) process: ProcessId,
    pub(crate) lane: LaneId,
}

thread_local! {
    static HERE: Cell<Option<Place>> = const { Cell::new(None) };
}

/// Returns the place of the task that is being polled or dropped.
pub(crate) fn here() -> Option<Place> {
    HERE.get()
}

/// Runs a closure as part of a process.
pub(crate) fn within<T>(place: Option<Place>, run: impl FnOnce() -> T) -> T {
    let before = HERE.replace(place);
    let result = run();
    HERE.set(before);
    result
}

/// Runs a closure with the clock of a process.
pub(crate) fn as_seen_by<T>(process: ProcessId, look: impl FnOnce() -> T) -> T {
    within(Some(Place { process, lane: 0 }), look)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Manager,
    User,
}

#[derive(Default)]
pub(crate) struct Scheduler(Mutex<State>);

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<TaskId, Task>,
    lanes: BTreeMap<LaneId, Lane>,
    processes: Vec<Process>,
    last_id: u64,
    /// Wakes the task that drives the world.
    driver: Option<Waker>,
    chance: Option<Chance>,
    /// The tasks to be dropped once no task is running.
    graveyard: Vec<(Place, Work)>,
}

struct Task {
    place: Place,
    /// `None` while the task is being polled.
    work: Option<Work>,
    is_queued: bool,
}

struct Lane {
    process: ProcessId,
    kind: Kind,
    queue: VecDeque<TaskId>,
    tasks: BTreeSet<TaskId>,
}

/// The conditions that prevent the tasks of a process from being polled.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    /// The number of faults that stop the process now. They may overlap.
    stops: u32,
    /// The number of faults in which the user's code blocks the threads of the user's runtime now.
    blocks: u32,
    is_dead: bool,
}

impl Process {
    fn runs(self, kind: Kind) -> bool {
        !(self.stops > 0 || self.is_dead || self.blocks > 0 && kind == Kind::User)
    }
}

struct TaskWaker {
    task: TaskId,
    scheduler: Weak<Scheduler>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.wake(self.task);
        }
    }
}

impl Scheduler {
    pub(crate) fn new(chance: Chance) -> Arc<Self> {
        let scheduler = Self::default();
        scheduler.lock().chance = Some(chance);
        Arc::new(scheduler)
    }

    pub(crate) fn add_process(&self) -> ProcessId {
        let mut state = self.lock();
        state.processes.push(Process::default());
        state.processes.len() - 1
    }

    pub(crate) fn add_lane(&self, process: ProcessId, kind: Kind) -> LaneId {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        if !state.processes[process].is_dead {
            let lane = Lane {
                process,
                kind,
                queue: VecDeque::new(),
                tasks: BTreeSet::new(),
            };
            state.lanes.insert(id, lane);
        }
        id
    }

    /// Starts a task, unless the lane has ended.
    pub(crate) fn spawn(&self, lane: LaneId, work: Work) {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        let Some(found) = state.lanes.get_mut(&lane) else {
            // Dropped without the mutex, since a drop may run any code.
            drop(state);
            drop(work);
            return;
        };
        let place = Place {
            process: found.process,
            lane,
        };
        found.tasks.insert(id);
        found.queue.push_back(id);
        let task = Task {
            place,
            work: Some(work),
            is_queued: true,
        };
        state.tasks.insert(id, task);
        state.wake_driver();
    }

    /// Ends a lane. Its tasks are dropped soon after.
    pub(crate) fn end_lane(&self, lane: LaneId) {
        let mut state = self.lock();
        let Some(ended) = state.lanes.remove(&lane) else {
            return;
        };
        for id in ended.tasks {
            if let Some(task) = state.tasks.remove(&id)
                && let Some(work) = task.work
            {
                state.graveyard.push((task.place, work));
            }
        }
        state.wake_driver();
    }

    pub(crate) fn stop(&self, process: ProcessId, is_stopped: bool) {
        let mut state = self.lock();
        let stops = &mut state.processes[process].stops;
        *stops = if is_stopped { *stops + 1 } else { *stops - 1 };
        state.wake_driver();
    }

    pub(crate) fn block(&self, process: ProcessId, is_blocked: bool) {
        let mut state = self.lock();
        let blocks = &mut state.processes[process].blocks;
        *blocks = if is_blocked { *blocks + 1 } else { *blocks - 1 };
        state.wake_driver();
    }

    /// Ends a process. The drops of its tasks have no effect outside of it.
    pub(crate) fn kill(&self, process: ProcessId) {
        let lanes: Vec<LaneId> = {
            let mut state = self.lock();
            state.processes[process].is_dead = true;
            let lanes = state.lanes.iter();
            lanes
                .filter(|(_, lane)| lane.process == process)
                .map(|(id, _)| *id)
                .collect()
        };
        for lane in lanes {
            self.end_lane(lane);
        }
    }

    pub(crate) fn is_dead(&self, process: ProcessId) -> bool {
        self.lock().processes[process].is_dead
    }

    pub(crate) fn is_awake(&self, process: ProcessId) -> bool {
        self.lock().processes[process].runs(Kind::User)
    }

    /// Returns the number of lanes that have not ended.
    pub(crate) fn lanes(&self, kind: Kind) -> usize {
        let state = self.lock();
        let lanes = state.lanes.values();
        lanes.filter(|lane| lane.kind == kind).count()
    }

    /// Polls a task that is ready, or drops one that has ended. Returns its place, or `None` if there is no such task.
    pub(crate) fn run_one(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.lock();
        if let Some((place, work)) = state.graveyard.pop() {
            drop(state);
            within(Some(place), || drop(work));
            return Some(place);
        }
        let (id, place, mut work) = state.next()?;
        drop(state);
        let waker = Waker::from(Arc::new(TaskWaker {
            task: id,
            scheduler: Arc::downgrade(self),
        }));
        let polled = within(Some(place), || {
            Pin::new(&mut work).poll(&mut Context::from_waker(&waker))
        });
        let mut state = self.lock();
        match state.tasks.get_mut(&id) {
            Some(task) if polled.is_pending() => {
                task.work = Some(work);
                return Some(place);
            }
            Some(_) => state.finish(id, place.lane),
            // The lane has ended meanwhile.
            None => {}
        }
        drop(state);
        within(Some(place), || drop(work));
        Some(place)
    }

    /// Waits until a task is ready.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.has_work() {
            return Poll::Ready(());
        }
        state.driver = Some(context.waker().clone());
        Poll::Pending
    }

    fn wake(&self, id: TaskId) {
        let mut state = self.lock();
        let Some(task) = state.tasks.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut task.is_queued, true) {
            return;
        }
        let lane = task.place.lane;
        if let Some(lane) = state.lanes.get_mut(&lane) {
            lane.queue.push_back(id);
        }
        state.wake_driver();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn runnable(&self) -> impl Iterator<Item = LaneId> {
        let lanes = self.lanes.iter();
        lanes
            .filter(|(_, lane)| {
                !lane.queue.is_empty() && self.processes[lane.process].runs(lane.kind)
            })
            .map(|(id, _)| *id)
    }

    fn has_work(&self) -> bool {
        !self.graveyard.is_empty() || self.runnable().next().is_some()
    }

    fn next(&mut self) -> Option<(TaskId, Place, Work)> {
        let lanes: Vec<LaneId> = self.runnable().collect();
        let chance = self.chance.as_mut().expect("set at the start");
        let lane = match lanes[..] {
            [] => return None,
            [lane] => lane,
            _ => chance.pick(&lanes),
        };
        let queue = &mut self.lanes.get_mut(&lane).expect("listed above").queue;
        let id = queue.pop_front().expect("not empty");
        let task = self.tasks.get_mut(&id).expect("ends only with its lane");
        task.is_queued = false;
        let work = task.work.take().expect("not being polled");
        Some((id, task.place, work))
    }

    fn finish(&mut self, id: TaskId, lane: LaneId) {
        self.tasks.remove(&id);
        let Some(found) = self.lanes.get_mut(&lane) else {
            return;
        };
        found.tasks.remove(&id);
        // The last poll may have woken the task.
        found.queue.retain(|other| *other != id);
        if found.kind == Kind::User && found.tasks.is_empty() {
            self.lanes.remove(&lane);
        }
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }
}
