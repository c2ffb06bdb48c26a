//! Removes files that are no longer needed.
//!
//! Removing a file of some MiB takes the system a millisecond, and the last holder of a version may have a hundred of
//! them. A reader must not pay for that. So a separate thread removes files, once there is one; before that, and after
//! its end, they are removed at once.

use std::sync::{
    Mutex, PoisonError,
    mpsc::{self, Receiver, Sender},
};

use crate::{Dir, Reader};

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

/// A file to remove, and the last handle of it.
#[derive(Debug)]
struct Obsolete {
    dir: Dir,
    name: String,
    handle: Reader,
}

impl Obsolete {
    fn remove(self) {
        let Self { dir, name, handle } = self;
        // It may be written again, so nobody must have it open.
        drop(handle);
        // A file that stays only takes space. The failure was counted, and recovery removes what the manifest does
        // not name.
        let _counted = dir.retire(&name);
    }
}

impl Remover {
    /// Removes `name` in `dir`, which `handle` has open.
    pub fn remove(&self, dir: &Dir, name: String, handle: Reader) {
        let file = Obsolete { dir: dir.clone(), name, handle };
        match self.send(Errand::Remove(file)) {
            Some(Errand::Remove(file)) => file.remove(),
            Some(Errand::Notify(_)) | None => {}
        }
    }

    /// The work of the thread that removes files from now on, until [`Remover::finish`].
    pub fn work(&self) -> impl FnOnce() + Send + 'static {
        let (sender, receiver) = mpsc::channel();
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        move || serve(&receiver)
    }

    /// Ends the thread once it has removed the files it was given.
    pub fn finish(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits until all files given so far are removed.
    pub fn wait(&self) {
        let (sender, receiver) = mpsc::channel::<()>();
        drop(self.send(Errand::Notify(sender)));
        let _disconnected = receiver.recv();
    }

    /// Returns the errand if there is no thread for it.
    fn send(&self, errand: Errand) -> Option<Errand> {
        match &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(queue) => queue.send(errand).err().map(|unsent| unsent.0),
            None => Some(errand),
        }
    }
}

fn serve(queue: &Receiver<Errand>) {
    for errand in queue {
        match errand {
            Errand::Remove(file) => file.remove(),
            Errand::Notify(waiting) => drop(waiting),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use bifold_contract::IoSource;

    use super::*;
    use crate::memory::MemoryFs;

    fn file(dir: &Dir, name: &str) -> Reader {
        dir.create(name, IoSource::Flush).unwrap().append(&[b"x"]).unwrap();
        dir.open(name).unwrap()
    }

    #[test]
    fn without_a_thread_files_are_removed_at_once() {
        let dir = Dir::new(Arc::new(MemoryFs::default()), "/d".as_ref());
        dir.create_dir().unwrap();
        let remover = Remover::default();
        remover.remove(&dir, "a".into(), file(&dir, "a"));
        assert!(dir.list().unwrap().is_empty());
        remover.wait();
    }

    #[test]
    fn with_a_thread_files_are_removed_after_waiting_and_after_its_end() {
        let dir = Dir::new(Arc::new(MemoryFs::default()), "/d".as_ref());
        dir.create_dir().unwrap();
        let remover = Remover::default();
        let work = remover.work();
        remover.remove(&dir, "a".into(), file(&dir, "a"));
        assert_eq!(dir.list().unwrap(), ["a"], "the thread has not started yet");
        let thread = thread::spawn(work);
        remover.wait();
        assert!(dir.list().unwrap().is_empty());
        remover.remove(&dir, "b".into(), file(&dir, "b"));
        remover.finish();
        thread.join().unwrap();
        remover.remove(&dir, "c".into(), file(&dir, "c"));
        assert!(dir.list().unwrap().is_empty());
    }
}
