//! Ctrl-C and SIGTERM while something unfinished is on disk: it is removed, then the program ends by the signal.
//!
//! Commands that make a directory or file which is incomplete for a while hold an [`Unfinished`] for it, and those that
//! change a setting of the system for a while a [`Changed`]. The first of these starts a thread that waits for signals;
//! without one, the program ends at once, by the system's default. Databases need nothing: they recover from any end.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

static UNDONE: Mutex<Vec<Undo>> = Mutex::new(Vec::new());
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// While files are removed, other threads may still make some.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// What is left to do if the program is interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Undo {
    Remove(PathBuf),
    Write(PathBuf, String),
}

/// Something on disk that is removed if the program is interrupted while this exists.
#[derive(Debug)]
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// A file or directory that this program is about to make.
    pub fn new(path: &Path) -> Self {
        // A relative path would lead elsewhere after a change of the working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        add(Undo::Remove(path.clone()));
        Self(path)
    }

    /// Does the step that completes it, such as giving it its name. An interruption waits for it and then leaves it
    /// alone; if one is removing it already, this never returns.
    ///
    /// # Errors
    /// Those of `complete`: it is still unfinished.
    pub fn complete<T, E>(&self, complete: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut list = list();
        let completed = complete()?;
        forget_in(&mut list, &Undo::Remove(self.0.clone()));
        Ok(completed)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        forget(&Undo::Remove(std::mem::take(&mut self.0)));
    }
}

/// A setting of the system that this program changes for a while. The text given here is written back when this is
/// dropped, and if the program is interrupted.
#[derive(Debug)]
pub struct Changed(PathBuf, String);

impl Changed {
    /// `file` contains `text`, and this program is about to write something else to it.
    pub fn new(file: &Path, text: String) -> Self {
        add(Undo::Write(file.to_owned(), text.clone()));
        Self(file.to_owned(), text)
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let undo = Undo::Write(std::mem::take(&mut self.0), std::mem::take(&mut self.1));
        undo_it(&undo);
        forget(&undo);
    }
}

fn add(undo: Undo) {
    list().push(undo);
    static WATCHED: Once = Once::new();
    WATCHED.call_once(watch);
}

fn forget(undo: &Undo) {
    forget_in(&mut list(), undo);
}

fn forget_in(list: &mut Vec<Undo>, undo: &Undo) {
    if let Some(at) = list.iter().position(|other| other == undo) {
        list.swap_remove(at);
    }
}

/// Does what makes something of an [`Unfinished`] anew, such as opening a database in it. An interruption waits until
/// this is done: otherwise it could remove a directory that is made again before the program ends.
pub fn making<T>(make: impl FnOnce() -> T) -> T {
    let _held = list();
    make()
}

/// Blocks if another thread is ending the program by a signal: a failure because files were deleted must not be
/// reported then.
pub fn wait_if_ending() {
    while IS_ENDING.load(Ordering::Acquire) {
        thread::park();
    }
}

fn list() -> MutexGuard<'static, Vec<Undo>> {
    UNDONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    // A signal that is ignored stays so: a shell without job control asks for that for what it runs in the background.
    let watched = [SIGINT, SIGTERM].into_iter().filter(|&signal| !is_ignored(signal));
    // Without a thread or a handler the program ends by the signal and leaves unfinished files.
    let Ok(mut signals) = Signals::new(watched) else { return };
    let _none_left_to_wait = thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end_by(signal);
        }
    });
}

/// Whether this process ignores a signal, as far as the system says.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is that of signal 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}

fn end_by(signal: i32) {
    IS_ENDING.store(true, Ordering::Release);
    // Held to the end: whatever becomes finished from now on is still removed, and nobody takes it for complete
    // meanwhile.
    let list = list();
    list.iter().for_each(undo_it);
    let _never_returns = emulate_default_handler(signal);
    std::process::exit(128 + signal);
}

fn undo_it(undo: &Undo) {
    let trouble = match undo {
        Undo::Remove(path) if !remove(path) => {
            format!("{} is incomplete and could not be removed: remove it", path.display())
        }
        Undo::Write(file, text) => match fs::write(file, text) {
            Ok(()) => return,
            Err(error) => format!("{} could not be set to {text} again ({error}): do it", file.display()),
        },
        Undo::Remove(_) => return,
    };
    let _cannot_be_reported = io::Write::write_fmt(&mut io::stderr(), format_args!("bifold: {trouble}\n"));
}

/// Returns whether nothing is left.
fn remove(path: &Path) -> bool {
    let is_deleted = || fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    (0..TRIES).any(|_| {
        let _tried_again = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path));
        is_deleted() || {
            thread::sleep(PAUSE);
            false
        }
    })
}
