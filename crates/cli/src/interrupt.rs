//! Ctrl-C and SIGTERM while something unfinished is on disk: it is removed, then the program ends by the signal.
//!
//! Commands that make a directory or file which is not whole for a while hold an [`Unfinished`] of it. The first of
//! these has a thread wait for signals; programs without one end at once, as the system has it. What a database
//! itself is in the middle of needs nothing: it recovers from any end.

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

static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// While files are removed, other threads may still make some.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// Something on disk that is removed when the program is interrupted, as long as this lives.
#[derive(Debug)]
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// A file or directory that this program is about to make.
    pub fn new(path: &Path) -> Self {
        // A relative path would lead elsewhere, were the working directory changed.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        list().push(path.clone());
        static WATCHED: Once = Once::new();
        WATCHED.call_once(watch);
        Self(path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut list = list();
        if let Some(at) = list.iter().position(|path| *path == self.0) {
            list.swap_remove(at);
        }
    }
}

/// The program is ending by a signal, which another thread takes care of: whoever has failed because its files are
/// gone says nothing about it.
pub fn wait_if_ending() {
    while IS_ENDING.load(Ordering::Acquire) {
        thread::park();
    }
}

fn list() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    // Where a thread or a handler cannot be had, the program ends by the signal and leaves what is unfinished.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let _none_left_to_wait = thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end_by(signal);
        }
    });
}

fn end_by(signal: i32) {
    IS_ENDING.store(true, Ordering::Release);
    // Held to the end: what is finished from now on is removed all the same, and nobody takes it for whole meanwhile.
    let list = list();
    for path in list.iter() {
        if !remove(path) {
            let _nobody_to_tell = io::Write::write_fmt(
                &mut io::stderr(),
                format_args!("bifold: {} is not whole and could not be removed\n", path.display()),
            );
        }
    }
    let _never_returns = emulate_default_handler(signal);
    std::process::exit(128 + signal);
}

/// Answers whether nothing is there any more.
fn remove(path: &Path) -> bool {
    let is_gone = || fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    (0..TRIES).any(|_| {
        let _tried_again = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path));
        is_gone() || {
            thread::sleep(PAUSE);
            false
        }
    })
}
