//! Who writes full slots to their files, so that appends do not wait for a file.
//!
//! A file system may take long for one write: ext4 lets it wait while blocks of the same file are given to what a sync
//! is writing (`docs/decisions/0059-a-trickle-by-slack.md`).

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::{ground::Ground, staged::StagedFile};

/// After its last write the thread looks for more this often, and so many times, before it waits to be woken: a wake
/// costs the append a system call.
const LOOK_EVERY: Duration = Duration::from_micros(200);
const LOOKS: u32 = 50;

/// When full slots are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullSlots {
    /// By a thread, at once.
    ByThread,
    /// By the append that fills the next one, of any file. So tests and simulations find files with several slots, the
    /// same each time.
    ByNextAppend,
}

/// Files with full slots, and who writes those.
#[derive(Debug)]
pub(super) struct Writer<G: Ground>(Arc<Waiting<G>>);

#[derive(Debug)]
struct Waiting<G: Ground> {
    queue: Mutex<Queue<G>>,
    has_more: Condvar,
}

#[derive(Debug)]
struct Queue<G: Ground> {
    files: VecDeque<Arc<StagedFile<G>>>,
    thread: Thread,
}

/// The thread that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    None,
    /// It looks for more by itself.
    Looks,
    /// It must be woken.
    Waits,
    /// The region has ended.
    Ended,
}

impl<G: Ground> Default for Writer<G> {
    fn default() -> Self {
        let queue = Queue { files: VecDeque::new(), thread: Thread::None };
        Self(Arc::new(Waiting { queue: Mutex::new(queue), has_more: Condvar::new() }))
    }
}

impl<G: Ground> Writer<G> {
    /// Has a full slot of this file written. The caller holds none of its locks.
    pub fn write(&self, file: &Arc<StagedFile<G>>, how: FullSlots) {
        let mut queue = self.0.queue();
        queue.files.push_back(Arc::clone(file));
        if how == FullSlots::ByNextAppend {
            let earlier = if queue.files.len() > 1 { queue.files.pop_front() } else { None };
            drop(queue);
            earlier.iter().for_each(|file| file.write_full_slots());
            return;
        }
        match queue.thread {
            Thread::Looks | Thread::Ended => {}
            Thread::Waits => self.0.has_more.notify_one(),
            Thread::None => {
                let waiting = Arc::clone(&self.0);
                let work = move || waiting.work();
                match thread::Builder::new().name("bifold-appends".to_owned()).spawn(work) {
                    Ok(_) => queue.thread = Thread::Looks,
                    // Appends write full slots themselves when there are too many.
                    Err(_) => queue.files.clear(),
                }
            }
        }
    }

    /// No full slot is left.
    pub fn end(&self) {
        let mut queue = self.0.queue();
        queue.files.clear();
        queue.thread = Thread::Ended;
        self.0.has_more.notify_one();
    }
}

impl<G: Ground> Waiting<G> {
    fn queue(&self) -> MutexGuard<'_, Queue<G>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut looks = 0;
        loop {
            let next = {
                let mut queue = self.queue();
                while queue.files.is_empty() && queue.thread != Thread::Ended && looks >= LOOKS {
                    queue.thread = Thread::Waits;
                    queue = self.has_more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                if queue.thread == Thread::Ended {
                    return;
                }
                queue.thread = Thread::Looks;
                queue.files.pop_front()
            };
            match next {
                Some(file) => {
                    file.write_full_slots();
                    looks = 0;
                }
                None => {
                    thread::sleep(LOOK_EVERY);
                    looks += 1;
                }
            }
        }
    }
}
