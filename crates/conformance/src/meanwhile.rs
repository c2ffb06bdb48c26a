//! Something that another thread does during a call, at a chosen change of the files.
//!
//! The other thread gets a moment to finish while the call waits. If it cannot, because the call holds a lock that it
//! needs, the call continues, and the other thread continues as soon as it can.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
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

use crate::support::{Bed, Prepared};

/// How long a call waits at most: what another thread does here takes a tenth of it.
const PATIENCE: Duration = Duration::from_millis(10);

/// What another thread does.
#[derive(Clone)]
pub struct Act {
    /// It commits these, each alone.
    pub changes: Vec<Change>,
    /// Then it does this.
    pub then: fn(&Db) -> bifold::Result<()>,
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
    for nth in 1.. {
        let mut bed = prepared.open();
        let db = bed.db().clone();
        let theirs = act.clone();
        let other = db.clone();
        let happened =
            at_change(&bed.fs, nth, move || theirs.perform(&other).unwrap(), || db.collect_garbage().unwrap());
        drop(db);
        if !happened {
            return nth - 1;
        }
        act.begin(&mut bed.driver.model);
        check(&mut bed, nth);
    }
    0
}

fn check(bed: &mut Bed, nth: u64) {
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bed.check_thoroughly()));
    if let Err(panic) = checked {
        eprintln!("the other thread acted at change {nth} of GC");
        std::panic::resume_unwind(panic);
    }
}

/// Calls `call`; after its `nth` change of the files another thread does `act`. Returns whether there were so many.
pub fn at_change(fs: &MemoryFs, nth: u64, act: impl FnOnce() + Send + 'static, call: impl FnOnce()) -> bool {
    let (me, count) = (thread::current().id(), AtomicU64::new(0));
    let act = Mutex::new(Some(act));
    let other: Arc<Mutex<Option<JoinHandle<()>>>> = Arc::default();
    let started = Arc::clone(&other);
    fs.set_hook(Some(Arc::new(move |_, _, _| {
        if thread::current().id() != me || count.fetch_add(1, Relaxed) + 1 != nth {
            return;
        }
        let Some(act) = act.lock().unwrap().take() else { return };
        let (done, wait) = mpsc::channel();
        let work = move || {
            act();
            done.send(()).ok();
        };
        *started.lock().unwrap() = Some(thread::spawn(work));
        wait.recv_timeout(PATIENCE).ok();
    })));
    call();
    fs.set_hook(None);
    let handle = other.lock().unwrap().take();
    let happened = handle.is_some();
    handle.map(JoinHandle::join).transpose().unwrap();
    happened
}
