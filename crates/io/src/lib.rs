//! The only crate of Bifold that touches the operating system.
//!
//! Files, time, randomness and threads are passed to the engine as an [`Env`] and never taken from globals. That
//! makes power-loss images at every I/O, error injection at every call and repeatable simulations possible.
//!
//! | file | what it is |
//! |---|---|
//! | [`fs`] | the traits [`FileSystem`], [`ReadFile`], [`WriteFile`] and what each promises about crashes |
//! | [`disk`] | the real file system |
//! | [`region`] | many small appends to many files without a system call for each |
//! | [`memory`] | a file system in memory that can be copied as it might look after a power loss |
//! | [`faulty`] | a wrapper that fails chosen calls |
//! | [`counting`] | a wrapper that counts open files |
//! | [`open_files`] | which files are open, and how many may be |
//! | [`dir`] | a database directory: files by name, every byte counted by [`IoSource`](bifold_contract::IoSource) |
//! | [`clock`] | time, real or simulated |
//! | [`random`] | seeded random numbers |
//! | [`threads`] | background threads |
//! | [`pins`] | which files readers need while another process writes |
//! | [`remover`] | removes files without making readers wait |
//! | [`machine`] | what this machine has |
//! | `opener` | which process opened something |
//! | [`striped`] | counters that many threads add to |
//! | `scratch` | a buffer of each thread |
//! | [`rate`] | a byte budget per second, shared by background jobs |
//! | `own` | copies a file that has other names, before it is changed |
//! | `allocator` | what the allocator keeps of freed memory |

mod allocator;
pub mod clock;
pub mod counting;
pub mod dir;
pub mod disk;
pub mod faulty;
pub mod fs;
pub mod machine;
pub mod memory;
pub mod open_files;
mod opener;
mod own;
pub mod pins;
pub mod random;
pub mod rate;
#[cfg(target_os = "linux")]
pub mod region;
pub mod remover;
mod scratch;
pub mod striped;
pub mod threads;

use std::sync::Arc;

pub use allocator::give_back_freed_memory;
pub use clock::{Clock, ManualClock};
pub use dir::{Dir, FileObserver, Reader, Together, Writer};
pub use fs::{FileSystem, LockMode, ReadFile, WriteFile};
pub use opener::Opener;
pub use scratch::{SCRATCH_BYTES, with_scratch};

/// Everything the engine takes from its surroundings: files, time, threads. [`Env::system`] has the real ones. Tests
/// pass a file system in memory, one that fails chosen calls, or a clock that they advance.
#[derive(Clone, Debug)]
pub struct Env {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Starts background threads.
    pub threads: Arc<dyn threads::Threads>,
}

impl Env {
    /// The real file system, the system's clock, real threads.
    #[must_use]
    pub fn system() -> Self {
        Self {
            fs: Arc::new(disk::DiskFs),
            clock: Arc::new(clock::SystemClock::default()),
            threads: Arc::new(threads::SystemThreads),
        }
    }
}
