//! Something that another thread does during a call, at a chosen change of the files.
//!
//! The other thread gets a moment to finish while the call waits. If it cannot, because the call holds a lock that it
//! needs, the call continues, and the other thread continues as soon as it can. A row in which it never finishes while
//! the call waits tests nothing, and fails, unless it may wait for the end of the call ([`Ends::AnyTime`]).

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use bifold::Db;
use bifold_io::memory::MemoryFs;
use bifold_sim::{
    history::key_bytes,
    model::{Change, Model},
};

use crate::{
    Case,
    support::{Bed, Prepared},
};

/// How long a call waits at most: what another thread does here takes a tenth of it.
const PATIENCE: Duration = Duration::from_millis(10);

/// The same where the other thread has not been in time at any change: perhaps it did not get a processor.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// What another thread does.
#[derive(Clone)]
pub struct Act {
    /// It commits these, each alone.
    pub changes: Vec<Change>,
    /// Then it does this.
    pub then: fn(&Db) -> bifold::Result<()>,
    /// When it has to have ended.
    pub ends: Ends,
}

/// When what another thread does has to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// At one change at least, while the call waits: it needs nothing that the call holds all the time.
    Meanwhile,
    /// It may wait for the end of the call at every change, as a second GC of everything does, or a merge of tables
    /// that GC rewrites.
    AnyTime,
}

/// At which change another thread acts, and how long the call waits for it.
#[derive(Clone, Copy, Debug)]
pub struct At {
    nth: u64,
    patience: Duration,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acted {
    /// Nothing: the call makes fewer changes.
    Never,
    /// It ended while the call waited.
    Meanwhile,
    /// It ended later: it waited for something that the call holds, or for a processor.
    Later,
}

impl Act {
    fn perform(&self, db: &Db) -> bifold::Result<()> {
        for change in &self.changes {
            match change {
                Change::Put(_, key, value) => db.put(key, value.bytes())?,
                Change::PutUntil(_, key, value, until) => {
                    db.default_keyspace().put_until(key, value.bytes(), Some(until.moment()))?;
                }
                Change::Merge(_, key, operand) => db.default_keyspace().merge(key, operand.bytes())?,
                Change::Delete(_, key) => db.delete(key)?,
                Change::DeleteRange(_, bounds) => db.delete_range(bounds.clone())?,
            }
        }
        (self.then)(db)
    }

    /// Updates the model.
    fn begin(&self, model: &mut Model) {
        for change in &self.changes {
            model.begin(std::slice::from_ref(change));
        }
    }
}

/// Does nothing more.
pub fn nothing(_: &Db) -> bifold::Result<()> {
    Ok(())
}

/// A put of a key by number.
pub fn put(key: u16, value: bifold_sim::value::Spec) -> Change {
    Change::Put(0, key_bytes(key), value)
}

/// A delete of a key by number.
pub fn delete(key: u16) -> Change {
    Change::Delete(0, key_bytes(key))
}

/// Runs GC of everything in a copy of `prepared` while another thread does `act`: once for every change of the files
/// that GC makes. Each time everything is compared with the model, again after all was moved and merged, and again
/// after reopening. Returns how often.
pub fn at_every_change_of_gc(prepared: &Prepared, act: &Act) -> u64 {
    at_every_change(&prepared.case, act.ends, |at| {
        let mut bed = prepared.open();
        let db = bed.db().clone();
        let theirs = act.clone();
        let other = db.clone();
        let acted = at_change(&bed.fs, at, move || theirs.perform(&other).unwrap(), || db.collect_garbage().unwrap());
        drop(db);
        if acted != Acted::Never {
            act.begin(&mut bed.driver.model);
            check(&mut bed, at.nth);
        }
        acted
    })
}

/// Calls `run` for the first change, the second and so on, until there are no more. Returns how many there are. Where
/// the case has GC, one of the acts must have ended when `ends` says; if none has, `run` is called for the same changes
/// once more, until one has, and waits longer: on a busy machine that is not the row's fault.
pub fn at_every_change(case: &Case, ends: Ends, mut run: impl FnMut(At) -> Acted) -> u64 {
    let mut has_ended = ends == Ends::AnyTime || !case.separates();
    let mut changes = 0;
    loop {
        let acted = run(At { nth: changes + 1, patience: PATIENCE });
        if acted == Acted::Never {
            break;
        }
        has_ended |= acted == Acted::Meanwhile;
        changes += 1;
    }
    let is_patient_enough = |nth| run(At { nth, patience: PATIENCE_MAX }) == Acted::Meanwhile;
    let has_ended = has_ended || (1..=changes).any(is_patient_enough);
    assert!(has_ended, "the other thread waited for the end of the call at each of {changes} changes");
    changes
}

fn check(bed: &mut Bed, nth: u64) {
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bed.check_thoroughly()));
    if let Err(panic) = checked {
        eprintln!("the other thread acted at change {nth} of GC");
        std::panic::resume_unwind(panic);
    }
}

/// Calls `call`; after one of its changes of the files another thread does `act`.
pub fn at_change(fs: &MemoryFs, at: At, act: impl FnOnce() + Send + 'static, call: impl FnOnce()) -> Acted {
    let (me, count) = (thread::current().id(), AtomicU64::new(0));
    let act = Mutex::new(Some(act));
    let other: Arc<Mutex<Option<JoinHandle<()>>>> = Arc::default();
    let in_time = Arc::new(AtomicBool::new(false));
    let (started, was_in_time) = (Arc::clone(&other), Arc::clone(&in_time));
    fs.set_hook(Some(Arc::new(move |_, _, _| {
        if thread::current().id() != me || count.fetch_add(1, Relaxed) + 1 != at.nth {
            return;
        }
        let Some(act) = act.lock().unwrap().take() else { return };
        let (done, wait) = mpsc::channel();
        let work = move || {
            act();
            done.send(()).ok();
        };
        *started.lock().unwrap() = Some(thread::spawn(work));
        was_in_time.store(wait.recv_timeout(at.patience).is_ok(), Relaxed);
    })));
    call();
    fs.set_hook(None);
    let Some(handle) = other.lock().unwrap().take() else { return Acted::Never };
    handle.join().unwrap();
    if in_time.load(Relaxed) { Acted::Meanwhile } else { Acted::Later }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bifold::PlacementKind;
    use bifold_io::FileSystem;

    use super::*;
    use crate::Separated;

    /// What becomes of `act` at this change of a call that makes one and holds a lock.
    fn acted(nth: u64, act: impl FnOnce(&Mutex<()>) + Send + 'static, patience: Duration) -> Acted {
        let (fs, lock) = (MemoryFs::new(), Arc::new(Mutex::new(())));
        let theirs = Arc::clone(&lock);
        let call = || {
            let _held = lock.lock().unwrap();
            fs.create_dir_all(Path::new("/dir")).unwrap();
        };
        at_change(&fs, At { nth, patience }, move || act(&theirs), call)
    }

    #[test]
    fn it_is_known_whether_the_other_thread_ended_while_the_call_waited() {
        let long = Duration::from_secs(600);
        assert_eq!(acted(1, |_| (), long), Acted::Meanwhile);
        assert_eq!(acted(2, |_| (), long), Acted::Never);
        assert_eq!(acted(1, |lock| drop(lock.lock().unwrap()), Duration::from_millis(1)), Acted::Later);
    }

    /// The first `changes` changes of a call at each of which this becomes of the other thread.
    fn every(changes: u64, ends: Ends, case: &Case, becomes: impl Fn(At) -> Acted) -> u64 {
        at_every_change(case, ends, |at| if at.nth > changes { Acted::Never } else { becomes(at) })
    }

    fn separating() -> Case {
        Case::new(PlacementKind::WiscKey)
    }

    #[test]
    #[should_panic(expected = "waited for the end of the call at each of 3 changes")]
    fn a_row_whose_other_thread_never_acts_during_the_call_fails() {
        every(3, Ends::Meanwhile, &separating(), |_| Acted::Later);
    }

    #[test]
    fn one_change_at_which_the_other_thread_ends_is_enough() {
        let at_last = |at: At| if at.nth == 3 { Acted::Meanwhile } else { Acted::Later };
        assert_eq!(every(3, Ends::Meanwhile, &separating(), at_last), 3);
        // No processor was there in time, but then one is.
        let slowly = |at: At| if at.patience == PATIENCE { Acted::Later } else { Acted::Meanwhile };
        assert_eq!(every(3, Ends::Meanwhile, &separating(), slowly), 3);
        assert_eq!(every(3, Ends::AnyTime, &separating(), |_| Acted::Later), 3);
        let inline = Case::new(PlacementKind::Inline).separated(Separated::Never);
        assert_eq!(every(2, Ends::Meanwhile, &inline, |_| Acted::Later), 2);
    }
}
