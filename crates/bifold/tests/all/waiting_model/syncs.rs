//! Group commit while keyspaces are created: no caller learns that a commit is durable while its value or log record
//! is not.

use std::time::Duration;

use bifold_contract::{Error, Result};
use shuttle::{
    rand::{Rng, thread_rng},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use super::real::{
    group_sync::{GroupSync, SyncTarget},
    signal::Signal,
};
use crate::schedules;

#[derive(Clone, Copy, Debug)]
enum Mistake {
    /// A waiter takes the list of keyspaces from before its wait.
    TakesListBeforeWait,
    /// The list is from before the commit lock.
    TakesListBeforeLock,
    /// The values are noted without the lock that commits hold.
    NotesUnlocked,
    SyncsLogFirst,
    /// A failed sync is known only when others may have begun another one.
    PoisonsLate,
}

use Mistake::*;

const MISTAKES: [Mistake; 5] = [TakesListBeforeWait, TakesListBeforeLock, NotesUnlocked, SyncsLogFirst, PoisonsLate];

/// A value file: how much is written, and how much survives a power loss.
#[derive(Default)]
struct Values {
    written: AtomicUsize,
    durable: AtomicUsize,
}

/// A record of the log: the values it points at, and the number of the value.
type Record = (Arc<Values>, usize);

struct Model {
    mistake: Option<Mistake>,
    signal: Signal,
    group: GroupSync,
    keyspaces: Mutex<Vec<Arc<Values>>>,
    /// The commit lock around the log.
    log: Mutex<Vec<Record>>,
    log_durable: AtomicUsize,
    syncs: AtomicUsize,
    /// The sync that fails; then the system drops its bytes.
    doomed: usize,
    /// From here on the log has a hole.
    log_lost: AtomicUsize,
    failed: AtomicBool,
}

impl Model {
    fn is(&self, mistake: fn(Mistake) -> bool) -> bool {
        self.mistake.is_some_and(mistake)
    }

    fn list(&self) -> Vec<Arc<Values>> {
        self.keyspaces.lock().unwrap().clone()
    }

    fn may(&self) -> Result<()> {
        if self.failed.load(SeqCst) { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// A `Sync` commit. When it is acknowledged, nothing that it needs may be missing on the disk.
    fn commit(&self, keyspace: &Arc<Values>) {
        let upto = {
            let mut log = self.log.lock().unwrap();
            if self.may().is_err() {
                return;
            }
            let value = keyspace.written.fetch_add(1, SeqCst) + 1;
            log.push((Arc::clone(keyspace), value));
            log.len()
        };
        let early = self.is(|m| matches!(m, TakesListBeforeWait)).then(|| self.list());
        let at = (&self.signal, Duration::ZERO);
        let outcome = self.group.sync(SyncTarget::Commit(upto as u64), at, || self.may(), || self.sync(early));
        if self.is(|m| matches!(m, PoisonsLate)) && outcome.is_err() {
            self.failed.store(true, SeqCst);
        }
        if outcome.is_ok() {
            assert!(self.log_durable.load(SeqCst) >= upto, "the log is not durable");
            assert!(self.log_lost.load(SeqCst) >= upto, "the log has a hole");
            let log = self.log.lock().unwrap();
            let is_there = |(values, value): &Record| values.durable.load(SeqCst) >= *value;
            assert!(log[..upto].iter().all(is_there), "a durable record points at a value that is not durable");
        }
    }

    fn sync(&self, early: Option<Vec<Arc<Values>>>) -> Result<u64> {
        let early = early.or_else(|| self.is(|m| matches!(m, TakesListBeforeLock)).then(|| self.list()));
        if early.is_some() || self.is(|m| matches!(m, NotesUnlocked)) {
            thread::yield_now();
        }
        let note = |values: Vec<Arc<Values>>| {
            let noted = values.into_iter().map(|v| (v.written.load(SeqCst), v));
            noted.collect::<Vec<_>>()
        };
        let unlocked = self.is(|m| matches!(m, NotesUnlocked)).then(|| note(self.list()));
        let (noted, upto) = {
            let log = self.log.lock().unwrap();
            self.may()?;
            (unlocked.unwrap_or_else(|| note(early.unwrap_or_else(|| self.list()))), log.len())
        };
        let fails = self.syncs.fetch_add(1, SeqCst) == self.doomed;
        if self.is(|m| matches!(m, SyncsLogFirst)) {
            self.log_durable.store(upto, SeqCst);
            self.no_dangling();
        }
        for (written, values) in &noted {
            thread::yield_now();
            values.durable.fetch_max(*written, SeqCst);
        }
        if fails {
            // What is not durable yet is lost; a later sync will not report it.
            self.log_lost.fetch_min(self.log_durable.load(SeqCst), SeqCst);
            if !self.is(|m| matches!(m, PoisonsLate)) {
                self.failed.store(true, SeqCst);
            }
            return Err(Error::ReadOnly);
        }
        self.log_durable.fetch_max(upto, SeqCst);
        self.no_dangling();
        Ok(upto as u64)
    }

    /// Checks what a power loss would leave now.
    fn no_dangling(&self) {
        thread::yield_now();
        let durable = self.log_durable.load(SeqCst);
        let log = self.log.lock().unwrap();
        let is_there = |(values, value): &Record| values.durable.load(SeqCst) >= *value;
        assert!(log[..durable].iter().all(is_there), "a durable record points at a value that is not durable");
    }
}

fn run(mistake: Option<Mistake>) {
    let first = Arc::new(Values::default());
    let model = Arc::new(Model {
        mistake,
        signal: Signal::default(),
        group: GroupSync::default(),
        keyspaces: Mutex::new(vec![Arc::clone(&first)]),
        log: Mutex::default(),
        log_durable: AtomicUsize::new(0),
        syncs: AtomicUsize::new(0),
        doomed: thread_rng().gen_range(0..12),
        log_lost: AtomicUsize::new(usize::MAX),
        failed: AtomicBool::new(false),
    });
    let writer = |times: usize| {
        let (model, first) = (Arc::clone(&model), Arc::clone(&first));
        thread::spawn(move || (0..times).for_each(|_| model.commit(&first)))
    };
    let threads = [writer(2), writer(2), writer(1)];
    let maker = {
        let model = Arc::clone(&model);
        thread::spawn(move || {
            for _ in 0..2 {
                let made = Arc::new(Values::default());
                {
                    let _commit_lock = model.log.lock().unwrap();
                    model.keyspaces.lock().unwrap().push(Arc::clone(&made));
                }
                model.commit(&made);
            }
        })
    };
    threads.into_iter().chain([maker]).for_each(|thread| thread.join().unwrap());
    assert!(model.signal.waits().is_empty());
}

#[test]
fn commits_are_durable_under_random_schedules() {
    schedules::at_random(|| run(None));
}

#[test]
fn commits_are_durable_under_schedules_of_few_preemptions() {
    schedules::with_few_preemptions(|| run(None));
}

#[test]
fn every_mistake_of_a_sync_is_noticed() {
    schedules::notices(&MISTAKES, run);
}
