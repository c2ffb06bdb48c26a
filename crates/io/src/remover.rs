//! Removes files that are no longer needed.
//!
//! Removing a file of some MiB takes the system a millisecond, more where it discards blocks of the device, and the
//! last holder of a version may have a hundred of them. Neither readers nor jobs should pay for that. So a separate
//! thread removes files, once there is one; before that, and after its end, they are removed at once.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

use crate::dir::Obsolete;

/// Removes files, on another thread if there is one.
#[derive(Debug, Default)]
pub struct Remover {
    queue: Mutex<Option<Sender<Errand>>>,
}

#[derive(Debug)]
enum Errand {
    Remove(Obsolete),
    /// Dropped when everything before it is done, which notifies the waiting thread.
    Notify(Sender<()>),
}

/// Bytes of files that nobody needs any more and that are still on the disk.
#[derive(Debug, Default)]
pub struct BeingRemoved(AtomicU64);

impl BeingRemoved {
    /// How many there are now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A file's bytes, which count as being removed while this exists.
#[derive(Debug)]
pub(crate) struct Leaving {
    of: Arc<BeingRemoved>,
    bytes: u64,
}

impl Leaving {
    pub fn new(of: &Arc<BeingRemoved>, bytes: u64) -> Self {
        of.0.fetch_add(bytes, Relaxed);
        Self { of: Arc::clone(of), bytes }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Relaxed);
    }
}

impl Remover {
    /// Removes a file.
    pub(crate) fn remove(&self, file: Obsolete) {
        match self.send(Errand::Remove(file)) {
            Some(Errand::Remove(file)) => file.remove(),
            Some(Errand::Notify(_)) | None => {}
        }
    }

    /// The work of the thread that removes files from now on, until [`Remover::finish`]. It calls `removed` after each
    /// file.
    pub fn work(&self, removed: impl Fn() + Send + 'static) -> impl FnOnce() + Send + 'static {
        let (sender, receiver) = mpsc::channel();
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        move || serve(&receiver, removed)
    }

    /// Ends the thread once it has removed the files it was given.
    pub fn finish(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits until all files given so far are removed. Returns false if they are not after `limit`.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let (sender, receiver) = mpsc::channel::<()>();
        drop(self.send(Errand::Notify(sender)));
        // Nothing is ever sent: the thread drops the sender.
        match limit {
            None => receiver.recv().is_err(),
            Some(limit) => receiver.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected),
        }
    }

    /// Returns the errand if there is no thread for it.
    fn send(&self, errand: Errand) -> Option<Errand> {
        match &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(queue) => queue.send(errand).err().map(|unsent| unsent.0),
            None => Some(errand),
        }
    }
}

fn serve(queue: &Receiver<Errand>, removed: impl Fn()) {
    for errand in queue {
        match errand {
            Errand::Remove(file) => {
                file.remove();
                removed();
            }
            Errand::Notify(waiting) => drop(waiting),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use bifold_contract::IoSource;

    use super::BeingRemoved;
    use crate::{Dir, memory::MemoryFs};

    fn dir() -> Dir {
        let dir = Dir::new(Arc::new(MemoryFs::default()), "/d".as_ref());
        dir.create_dir().unwrap();
        dir
    }

    /// Makes a file that nobody reads any more.
    fn leave(dir: &Dir, name: &str) {
        dir.create(name, IoSource::Flush).unwrap().append(&[b"x"]).unwrap();
        dir.open(name).unwrap().remove_when_unused();
    }

    #[test]
    fn without_a_thread_files_are_removed_at_once() {
        let dir = dir();
        leave(&dir, "a");
        assert!(dir.list().unwrap().is_empty());
        dir.remover().wait(None);
    }

    #[test]
    fn with_a_thread_files_are_removed_after_waiting_and_after_its_end() {
        let dir = dir();
        let work = dir.remover().work(|| {});
        leave(&dir, "a");
        assert_eq!(
            (dir.list().unwrap(), dir.open_files().open),
            (vec!["a".to_owned()], 1),
            "no thread has started yet"
        );
        let thread = thread::spawn(work);
        dir.remover().wait(None);
        assert_eq!((dir.list().unwrap().len(), dir.open_files().open), (0, 0));
        leave(&dir, "b");
        dir.finish_deletes().unwrap();
        assert!(dir.list().unwrap().is_empty(), "before anybody is told that the disk is full");
        leave(&dir, "b");
        dir.remover().finish();
        thread.join().unwrap();
        leave(&dir, "c");
        assert!(dir.list().unwrap().is_empty());
    }

    #[test]
    fn bytes_count_from_the_last_reader_to_the_removal() {
        let (dir, being_removed) = (dir(), Arc::new(BeingRemoved::default()));
        let work = dir.remover().work(|| {});
        dir.create("a", IoSource::Flush).unwrap().append(&[b"12345"]).unwrap();
        let (reader, other) = (dir.open("a").unwrap(), dir.open("a").unwrap());
        reader.remove_when_unused_counting(&being_removed, 5);
        assert_eq!(being_removed.bytes(), 0, "somebody still has it");
        drop(reader);
        assert_eq!(being_removed.bytes(), 5);
        let thread = thread::spawn(work);
        dir.remover().wait(None);
        assert_eq!(being_removed.bytes(), 0);
        other.remove_when_unused_counting(&being_removed, 5);
        dir.remover().finish();
        thread.join().unwrap();
        drop(other);
        assert_eq!(being_removed.bytes(), 0, "no thread: removed at once");
    }
}
