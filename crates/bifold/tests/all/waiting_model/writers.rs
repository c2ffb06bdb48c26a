//! Writers wait for full memtables to be written while keyspaces are dropped, flushes fail and the database is
//! closed: no thread waits forever.

use std::time::Duration;

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Arc, Mutex},
    thread,
};

use super::real::signal::Signal;
use crate::schedules;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    FlushNotifiesNobody,
    SealNotifiesNobody,
    DropNotifiesNobody,
    FailureNotifiesNobody,
    CloseNotifiesNobody,
    /// A waiter reads the epoch after it has checked its condition.
    LooksBeforeEpoch,
    /// A drop notifies before it has changed anything.
    DropNotifiesEarly,
}

use Mistake::*;

const MISTAKES: [Mistake; 7] = [
    FlushNotifiesNobody,
    SealNotifiesNobody,
    DropNotifiesNobody,
    FailureNotifiesNobody,
    CloseNotifiesNobody,
    LooksBeforeEpoch,
    DropNotifiesEarly,
];

const SEALED_MAX: usize = 2;

#[derive(Default)]
struct State {
    /// Full memtables of each keyspace; `None` once it is dropped.
    sealed: [Option<usize>; 2],
    flushing: [bool; 2],
    failed: bool,
    closed: bool,
}

struct Model {
    mistake: Option<Mistake>,
    state: Mutex<State>,
    signal: Signal,
    /// The flush that fails.
    doomed: u32,
}

/// No more writes are taken.
struct Ended;

impl Model {
    /// Like `Changing`, `Work::change` and `Health`.
    fn change<T>(&self, forgets: Mistake, change: impl FnOnce(&mut State) -> T) -> T {
        let answer = change(&mut self.state.lock().unwrap());
        if self.mistake != Some(forgets) {
            self.signal.notify();
        }
        answer
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap())
    }

    /// Like `Waits::wait_until`.
    fn wait_until(&self, on: &'static str, done: impl Fn(&State) -> bool) -> Result<(), Ended> {
        let mut waiting = None;
        loop {
            let seen = self.signal.epoch();
            if self.look(&done) {
                return Ok(());
            }
            if self.look(|state| state.failed || state.closed) {
                return Err(Ended);
            }
            let seen = if self.mistake == Some(LooksBeforeEpoch) { self.signal.epoch() } else { seen };
            waiting.get_or_insert_with(|| self.signal.waiting("a commit", on, Duration::ZERO));
            self.signal.sleep_past(seen);
        }
    }

    /// A commit that fills a memtable of its keyspace, if that exists.
    fn write(&self, keyspace: usize) -> Result<(), Ended> {
        self.wait_until("a full memtable to be written", |state| {
            state.sealed.iter().flatten().all(|&sealed| sealed < SEALED_MAX)
        })?;
        self.change(SealNotifiesNobody, |state| {
            if let Some(sealed) = &mut state.sealed[keyspace] {
                *sealed += 1;
            }
        });
        Ok(())
    }

    fn drop_keyspace(&self, keyspace: usize) {
        if self.mistake == Some(DropNotifiesEarly) {
            self.signal.notify();
            self.state.lock().unwrap().sealed[keyspace] = None;
        } else {
            self.change(DropNotifiesNobody, |state| state.sealed[keyspace] = None);
        }
    }

    fn take_flush(&self) -> Option<usize> {
        let mut state = self.state.lock().unwrap();
        if state.failed || state.closed {
            return None;
        }
        let due = (0..2).find(|&k| !state.flushing[k] && state.sealed[k].is_some_and(|sealed| sealed > 0))?;
        state.flushing[due] = true;
        Some(due)
    }

    /// Like `Scheduler::serve`.
    fn serve(&self) {
        let mut flushes = 0;
        while !self.signal.is_stopping() {
            let seen = self.signal.epoch();
            let Some(keyspace) = self.take_flush() else {
                self.signal.sleep_past(seen);
                continue;
            };
            let _at_work = self.signal.working();
            thread::yield_now();
            flushes += 1;
            if flushes == self.doomed {
                self.change(FailureNotifiesNobody, |state| state.failed = true);
            }
            self.change(if flushes == self.doomed { FailureNotifiesNobody } else { FlushNotifiesNobody }, |state| {
                state.flushing[keyspace] = false;
                if let (false, Some(sealed)) = (state.failed, &mut state.sealed[keyspace]) {
                    *sealed -= 1;
                }
            });
        }
    }
}

fn run(mistake: Option<Mistake>) {
    // One failure in several runs. 0 means never: flushes count from 1.
    let doomed = if thread_rng().gen_range(0..3) == 0 { thread_rng().gen_range(1..4) } else { 0 };
    let state = Mutex::new(State { sealed: [Some(0); 2], ..State::default() });
    let model = Arc::new(Model { mistake, state, signal: Signal::default(), doomed });
    let start = |work: fn(&Model)| {
        let model = Arc::clone(&model);
        thread::spawn(move || work(&model))
    };
    let worker = start(Model::serve);
    let writers = [
        start(|model| _ = (0..4).try_for_each(|_| model.write(0))),
        start(|model| _ = (0..4).try_for_each(|_| model.write(1))),
    ];
    let dropper = start(|model| {
        thread::yield_now();
        model.drop_keyspace(1);
    });
    let mut threads: Vec<_> = writers.into_iter().chain([dropper]).collect();
    // Not always: its notification would wake a thread that another mistake has left asleep.
    if thread_rng().gen_range(0..3) == 0 {
        threads.push(start(|model| {
            (0..thread_rng().gen_range(0..20)).for_each(|_| thread::yield_now());
            model.change(CloseNotifiesNobody, |state| state.closed = true);
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    model.signal.stop();
    worker.join().unwrap();
    assert!(model.signal.waits().is_empty() && model.signal.overdue().count == 0);
}

#[test]
fn writers_go_on_under_random_schedules() {
    schedules::at_random(|| run(None));
}

#[test]
fn writers_go_on_under_schedules_of_few_preemptions() {
    schedules::with_few_preemptions(|| run(None));
}

#[test]
fn every_mistake_of_notifying_is_noticed() {
    schedules::notices(&MISTAKES, run);
}
