//! Tells the listener, if there is one, what has happened.
//!
//! ```text
//! job, writer, file, failure ─▶ queue ─▶ thread, or the end of a caller's work ─▶ listener
//! (any locks held)              4096     (no lock held)
//! ```
//!
//! Whoever notes an event only pushes it on a queue, so it may hold any lock. **Invariants.** Events are told in their
//! order, by one thread at a time, without a lock. A listener that calls the database does not tell itself: what that
//! causes is told when it returns. Without a listener nothing is built, pushed or locked.

use std::{
    collections::VecDeque,
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use bifold_contract::{Error, Result};
use bifold_io::{Clock, FileObserver};

use crate::{
    settings::events::{EventListener, JobEnd, JobInfo, Listener},
    waiting::{
        signal::PATIENCE,
        sync::{Condvar, LockExt, Mutex, wait_for},
    },
};

/// So many events wait at most: some seconds of a busy database, less than a MiB.
const WAITING_MAX: usize = 4096;

/// Something that has happened.
enum Event {
    Begun(JobKind, JobInfo),
    Ended(JobKind, JobInfo, JobEnd),
    StallBegun(&'static str),
    StallEnded(&'static str, Duration),
    FileCreated(String),
    FileDeleted(String),
    ReadersUnknown(Error),
    LeftOut(String, Error),
    Poisoned(Error),
    Lost(u64),
}

/// A kind of job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    Flush,
    Compaction,
    Gc,
}

/// What is told to the listener of one database.
#[derive(Default)]
pub(crate) struct Events(Option<Arc<Telling>>);

struct Telling {
    listener: Arc<dyn EventListener>,
    clock: Arc<dyn Clock>,
    waiting: Mutex<EventQueue>,
    changed: Condvar,
    /// Whether a thread is telling.
    is_telling: AtomicBool,
    jobs: AtomicU64,
    /// The cause of the stall that has not ended, and its beginning.
    stall: Mutex<Option<(&'static str, Duration)>>,
    is_stalled: AtomicBool,
}

#[derive(Default)]
struct EventQueue {
    events: VecDeque<Event>,
    lost: u64,
    is_closed: bool,
}

impl Events {
    /// Tells this listener, if it is one.
    pub fn new(listener: &Listener, clock: &Arc<dyn Clock>) -> Self {
        Self(listener.get().map(|listener| {
            Arc::new(Telling {
                listener: Arc::clone(listener),
                clock: Arc::clone(clock),
                waiting: Mutex::default(),
                changed: Condvar::default(),
                is_telling: AtomicBool::new(false),
                jobs: AtomicU64::new(0),
                stall: Mutex::default(),
                is_stalled: AtomicBool::new(false),
            })
        }))
    }

    /// Does a job and tells of its beginning and its end. `describe` gives the keyspace and the bytes of input.
    ///
    /// # Errors
    /// Those of the job.
    pub fn around<T>(
        &self,
        kind: JobKind,
        describe: impl FnOnce() -> (String, u64),
        job: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(telling) = &self.0 else { return job() };
        let (keyspace, input_bytes) = describe();
        let info = JobInfo { number: telling.jobs.fetch_add(1, Relaxed), keyspace, input_bytes };
        let begin = telling.clock.now();
        telling.note(Event::Begun(kind, info.clone()));
        let outcome = job();
        let time = telling.clock.now().saturating_sub(begin);
        telling.note(Event::Ended(kind, info, JobEnd { time, error: outcome.as_ref().err().cloned() }));
        outcome
    }

    /// A writer has to wait for this cause.
    pub fn stalls(&self, cause: &'static str) {
        let Some(telling) = &self.0 else { return };
        let mut stall = telling.stall.hold();
        if stall.is_some_and(|(now, _)| now == cause) {
            return;
        }
        telling.end_stall(&mut stall);
        *stall = Some((cause, telling.clock.now()));
        telling.is_stalled.store(true, Relaxed);
        telling.note(Event::StallBegun(cause));
    }

    /// A commit does not have to wait.
    #[inline]
    pub fn flows(&self) {
        if let Some(telling) = &self.0
            && telling.is_stalled.load(Relaxed)
        {
            telling.end_stall(&mut telling.stall.hold());
        }
    }

    /// A job, or opening, has left out what it could not read.
    pub fn left_out(&self, keyspace: &str, error: &Error) {
        if let Some(telling) = &self.0 {
            telling.note(Event::LeftOut(keyspace.to_owned(), error.clone()));
        }
    }

    /// No more writes are taken.
    pub fn poisoned(&self, error: &Error) {
        if let Some(telling) = &self.0 {
            telling.note(Event::Poisoned(error.clone()));
        }
    }

    /// Whether there is a listener.
    pub fn are_told(&self) -> bool {
        self.0.is_some()
    }

    /// Tells what waits, unless another thread does, or this one further up. The caller holds no lock.
    pub fn tell(&self) {
        if let Some(telling) = &self.0 {
            telling.tell();
        }
    }

    /// Learns of files. `None` without a listener.
    pub fn observer(&self) -> Option<Arc<dyn FileObserver>> {
        self.0.clone().map(|telling| telling as Arc<dyn FileObserver>)
    }

    /// The work of the thread that tells. `None` without a listener.
    pub fn work(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let telling = Arc::clone(self.0.as_ref()?);
        Some(Box::new(move || telling.serve()))
    }

    /// Ends that thread once it has told everything.
    pub fn finish(&self) {
        if let Some(telling) = &self.0 {
            telling.waiting.hold().is_closed = true;
            telling.changed.notify_all();
        }
    }
}

impl Telling {
    fn note(&self, event: Event) {
        let mut queue = self.waiting.hold();
        if queue.events.len() >= WAITING_MAX {
            queue.lost += 1;
            return;
        }
        if queue.lost > 0 {
            let lost = std::mem::take(&mut queue.lost);
            queue.events.push_back(Event::Lost(lost));
        }
        queue.events.push_back(event);
        drop(queue);
        self.changed.notify_one();
    }

    fn end_stall(&self, stall: &mut Option<(&'static str, Duration)>) {
        self.is_stalled.store(false, Relaxed);
        if let Some((cause, since)) = stall.take() {
            self.note(Event::StallEnded(cause, self.clock.now().saturating_sub(since)));
        }
    }

    fn serve(&self) {
        loop {
            self.tell();
            let queue = self.waiting.hold();
            match queue.events.is_empty() {
                true if queue.is_closed => return,
                true => drop(wait_for(&self.changed, queue, PATIENCE)),
                false => {}
            }
        }
    }

    fn tell(&self) {
        loop {
            if self.is_telling.swap(true, Acquire) {
                return;
            }
            while let Some(event) = self.next() {
                // Code of others: nothing of ours depends on whether it panics.
                let _theirs = panic::catch_unwind(AssertUnwindSafe(|| event.tell(&*self.listener)));
            }
            self.is_telling.store(false, Release);
            // Somebody may have noted an event, and left it to this thread, after the last look.
            if self.waiting.hold().events.is_empty() {
                return;
            }
        }
    }

    fn next(&self) -> Option<Event> {
        let mut queue = self.waiting.hold();
        let lost = std::mem::take(&mut queue.lost);
        match queue.events.pop_front() {
            // They were lost after all that waits.
            Some(event) => {
                queue.lost = lost;
                Some(event)
            }
            None => (lost > 0).then_some(Event::Lost(lost)),
        }
    }
}

impl FileObserver for Telling {
    fn created(&self, name: &str) {
        self.note(Event::FileCreated(name.to_owned()));
    }

    fn removed(&self, name: &str) {
        self.note(Event::FileDeleted(name.to_owned()));
    }

    fn readers_unknown(&self, error: &Error) {
        self.note(Event::ReadersUnknown(error.clone()));
    }
}

impl Event {
    fn tell(&self, listener: &dyn EventListener) {
        match self {
            Self::Begun(JobKind::Flush, job) => listener.flush_begun(job),
            Self::Begun(JobKind::Compaction, job) => listener.compaction_begun(job),
            Self::Begun(JobKind::Gc, job) => listener.gc_begun(job),
            Self::Ended(JobKind::Flush, job, end) => listener.flush_ended(job, end),
            Self::Ended(JobKind::Compaction, job, end) => listener.compaction_ended(job, end),
            Self::Ended(JobKind::Gc, job, end) => listener.gc_ended(job, end),
            Self::StallBegun(cause) => listener.stall_begun(cause),
            Self::StallEnded(cause, time) => listener.stall_ended(cause, *time),
            Self::FileCreated(name) => listener.file_created(name),
            Self::FileDeleted(name) => listener.file_deleted(name),
            Self::ReadersUnknown(error) => listener.readers_unknown(error),
            Self::LeftOut(keyspace, error) => listener.left_out(keyspace, error),
            Self::Poisoned(error) => listener.poisoned(error),
            Self::Lost(count) => listener.events_lost(*count),
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.0.is_some()).finish()
    }
}
