//! Starts threads for background work.

use std::{fmt::Debug, thread};

use bifold_contract::{Error, Result};

/// Starts threads.
pub trait Threads: Send + Sync + Debug {
    /// Runs `work` on a thread called `name`. The returned handle waits for its end.
    ///
    /// # Errors
    /// The system's, when it cannot start a thread.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Result<thread::JoinHandle<()>>;
}

/// The system's threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemThreads;

impl Threads for SystemThreads {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Result<thread::JoinHandle<()>> {
        thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|e| Error::io("start thread", name, e))
    }
}
