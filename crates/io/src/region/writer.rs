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

/// At most so many threads write. More than one are awake only while one of them waits for its file.
const THREADS_MAX: usize = 4;

/// Another thread is woken, or begins, when more files than this wait for each that is awake.
const BEHIND: usize = 16;

/// After its last write a thread looks for more this often, and so many times, before it waits to be woken: a wake
/// costs the append a system call.
const LOOK_EVERY: Duration = Duration::from_micros(200);
const LOOKS: u32 = 50;

/// When full slots are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullSlots {
    /// By threads, at once.
    ByThreads,
    /// By the append that fills the next one, of any file. So tests and simulations find files with several slots, the
    /// same each time.
    ByNextAppend,
}

/// Files with full slots, and who writes those.
#[derive(Debug)]
pub(super) struct SlotWriter<G: Ground>(Arc<ToWrite<G>>);

#[derive(Debug)]
struct ToWrite<G: Ground> {
    queue: Mutex<Queue<G>>,
    has_more: Condvar,
}

#[derive(Debug)]
struct Queue<G: Ground> {
    files: VecDeque<Arc<StagedFile<G>>>,
    threads: usize,
    /// Threads that must be woken.
    waiting: usize,
    is_over: bool,
}

impl<G: Ground> Default for SlotWriter<G> {
    fn default() -> Self {
        let queue = Queue { files: VecDeque::new(), threads: 0, waiting: 0, is_over: false };
        Self(Arc::new(ToWrite { queue: Mutex::new(queue), has_more: Condvar::new() }))
    }
}

impl<G: Ground> SlotWriter<G> {
    /// Has a full slot of this file written. The caller holds none of its locks.
    pub fn write(&self, file: &Arc<StagedFile<G>>, how: FullSlots) {
        let mut queue = self.0.queue();
        queue.files.push_back(Arc::clone(file));
        if how == FullSlots::ByNextAppend {
            let earlier = if queue.files.len() > 1 { queue.files.pop_front() } else { None };
            drop(queue);
            earlier.iter().for_each(|file| file.write_full_slot());
            return;
        }
        if queue.is_over {
            queue.files.clear();
        }
        if queue.files.len() <= BEHIND * (queue.threads - queue.waiting) {
            return;
        }
        if queue.waiting > 0 {
            self.0.has_more.notify_one();
        } else if queue.threads < THREADS_MAX {
            let waiting = Arc::clone(&self.0);
            let begun = thread::Builder::new().name("bifold-appends".to_owned()).spawn(move || waiting.work());
            queue.threads += usize::from(begun.is_ok());
            if queue.threads == 0 {
                // Appends write full slots themselves when there are too many.
                queue.files.clear();
            }
        }
    }

    /// No full slot is left.
    pub fn end(&self) {
        let mut queue = self.0.queue();
        queue.files.clear();
        queue.is_over = true;
        self.0.has_more.notify_all();
    }
}

impl<G: Ground> ToWrite<G> {
    fn queue(&self) -> MutexGuard<'_, Queue<G>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut looks = 0;
        loop {
            let next = {
                let mut queue = self.queue();
                while queue.files.is_empty() && !queue.is_over && looks >= LOOKS {
                    queue.waiting += 1;
                    queue = self.has_more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.waiting -= 1;
                }
                if queue.is_over {
                    return;
                }
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
