//! A keyspace is dropped while it is read and a job runs: readers go on, later ones get an error, and after the last
//! reader no file is left, whoever keeps a handle.
//!
//! This is a model of `Tree::take_view`, `Values`, `Reader::present` and `State::install`, not the code itself,
//! which depends on half of the engine.
//! `the_files_of_a_dropped_keyspace_go_with_its_last_reader_whoever_has_a_handle` tests that.

use shuttle::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use crate::schedules;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A handle keeps the values.
    HandlePins,
    /// Files are deleted by the drop, whoever reads.
    DropsAtOnce,
    /// Readers check whether the keyspace exists before they take its view.
    ChecksBeforeView,
    /// The keyspace is emptied before it is marked as dropped.
    EmptiesBeforeMark,
    /// A job takes the placement again when it has something to write.
    JobTakesAgain,
    /// A job installs its output into a dropped keyspace.
    InstallsIntoDropped,
}

use Mistake::*;

const MISTAKES: [Mistake; 6] =
    [HandlePins, DropsAtOnce, ChecksBeforeView, EmptiesBeforeMark, JobTakesAgain, InstallsIntoDropped];

type Disk = Arc<Mutex<Vec<u32>>>;

/// The values of a keyspace: its files, which are deleted with it when the keyspace is dropped.
struct Values {
    disk: Disk,
    files: Mutex<Vec<u32>>,
    dropped: AtomicBool,
}

impl Values {
    fn write(&self, file: u32) {
        self.disk.lock().unwrap().push(file);
        self.files.lock().unwrap().push(file);
    }

    fn delete_all(&self) {
        let files = std::mem::take(&mut *self.files.lock().unwrap());
        self.disk.lock().unwrap().retain(|file| !files.contains(file));
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        if self.dropped.load(SeqCst) {
            self.delete_all();
        }
    }
}

/// What readers take: the file that the only key leads to, if there is one.
#[derive(Clone)]
struct View {
    leads_to: Option<u32>,
    values: Option<Arc<Values>>,
}

struct Tree {
    mistake: Option<Mistake>,
    view: Mutex<View>,
    dropped: AtomicBool,
    /// The lock of the manifest.
    installs: Mutex<()>,
    pinned: Mutex<Option<Arc<Values>>>,
}

impl Tree {
    fn view(&self) -> View {
        self.view.lock().unwrap().clone()
    }

    fn is_dropped(&self) -> bool {
        self.dropped.load(SeqCst)
    }

    fn read(&self) {
        let (view, is_dropped) = if self.mistake == Some(ChecksBeforeView) {
            let is_dropped = self.is_dropped();
            (self.view(), is_dropped)
        } else {
            let view = self.view();
            (view, self.is_dropped())
        };
        if is_dropped {
            return;
        }
        let file = view.leads_to.expect("the key was never deleted");
        let values = view.values.expect("a view with a key has values");
        for _ in 0..2 {
            thread::yield_now();
            assert!(values.disk.lock().unwrap().contains(&file), "a reader has lost its file");
        }
    }

    /// Moves the value to a new file and leads readers there.
    fn rewrite(&self, file: u32) {
        let view = self.view();
        if view.values.is_none() {
            return;
        }
        thread::yield_now();
        let values = if self.mistake == Some(JobTakesAgain) { self.view().values } else { view.values };
        let values = values.expect("the job holds them");
        values.write(file);
        thread::yield_now();
        let _alone = self.installs.lock().unwrap();
        if self.is_dropped() && self.mistake != Some(InstallsIntoDropped) {
            return;
        }
        *self.view.lock().unwrap() = View { leads_to: Some(file), values: Some(values) };
    }

    fn drop_it(&self) {
        let _alone = self.installs.lock().unwrap();
        let nothing = View { leads_to: None, values: None };
        let swap = || std::mem::replace(&mut *self.view.lock().unwrap(), nothing);
        let old = if self.mistake == Some(EmptiesBeforeMark) {
            let old = swap();
            self.dropped.store(true, SeqCst);
            old
        } else {
            self.dropped.store(true, SeqCst);
            swap()
        };
        let values = old.values.expect("it is dropped once");
        values.dropped.store(true, SeqCst);
        if self.mistake == Some(DropsAtOnce) {
            values.delete_all();
        }
        if self.mistake == Some(HandlePins) {
            *self.pinned.lock().unwrap() = Some(values);
        }
    }
}

fn run(mistake: Option<Mistake>) {
    let disk = Disk::default();
    let values = Values { disk: Arc::clone(&disk), files: Mutex::default(), dropped: AtomicBool::new(false) };
    values.write(1);
    let view = Mutex::new(View { leads_to: Some(1), values: Some(Arc::new(values)) });
    let (dropped, installs, pinned) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
    let handle = Arc::new(Tree { mistake, view, dropped, installs, pinned });
    let start = |work: fn(&Tree)| {
        let tree = Arc::clone(&handle);
        thread::spawn(move || work(&tree))
    };
    let threads = [
        start(|tree| (0..2).for_each(|_| tree.read())),
        start(Tree::read),
        start(|tree| (2..4).for_each(|file| tree.rewrite(file))),
        start(Tree::drop_it),
    ];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(disk.lock().unwrap().is_empty(), "nobody reads, but files are left");
    drop(handle);
}

#[test]
fn files_go_with_the_last_reader_under_random_schedules() {
    schedules::at_random(|| run(None));
}

#[test]
fn files_go_with_the_last_reader_under_schedules_of_few_preemptions() {
    schedules::with_few_preemptions(|| run(None));
}

#[test]
fn every_mistake_of_a_drop_is_noticed() {
    schedules::notices(&MISTAKES, run);
}
