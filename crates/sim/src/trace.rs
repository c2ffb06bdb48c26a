//! Runs a program and interferes with its system calls from outside: the program is unchanged, as users get it.
//!
//! The N-th call that concerns a directory, counted over all threads, is not made. Instead the process is killed, or
//! the call fails, once or together with all later calls that can fail in the same way. Calls that concern no file of
//! the directory (the loader's, the pipe's) are not counted, so N means the same in every run of a program with one
//! thread.
//!
//! Stores into mappings are no system calls: faults reach the append region through the calls that create, map, sync
//! and write it.

#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "trace/linux.rs"]
mod system;
#[cfg(not(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "trace/elsewhere.rs"]
mod system;

use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use crate::read::Trouble;

/// What a call does, as far as faults are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `write`, `pwrite64`, `writev`, `pwritev`, `pwritev2`, `copy_file_range`.
    Write,
    /// `fsync`, `fdatasync`, `sync_file_range`, `msync`, `syncfs`.
    Sync,
    /// `open`, `openat`, `openat2`, `creat`.
    Open,
    /// `rename`, `renameat`, `renameat2`.
    Rename,
    /// `unlink`, `unlinkat`, `rmdir`.
    Remove,
    /// `link`, `linkat`.
    Link,
    /// `mkdir`, `mkdirat`.
    MakeDir,
    /// `truncate`, `ftruncate`.
    Truncate,
    /// `fallocate`.
    Allocate,
    /// `mmap` of a file.
    Map,
    /// `close`.
    Close,
    /// `read`, `pread64`, `readv`, `preadv`, `preadv2`.
    Read,
    /// `stat` and similar calls, `lseek`.
    Look,
    /// `getdents64`.
    List,
    /// `flock`, `fcntl`.
    Lock,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With this error.
    Error(i32),
    /// With fewer bytes than requested.
    Short,
}

impl Kind {
    /// Whether a call of this kind changes what a directory holds, or whether that is durable. A kill before any
    /// other call leaves the same as a kill before the next changing one.
    #[must_use]
    pub fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Look | Self::List | Self::Lock)
    }

    /// How calls of this kind are made to fail.
    #[must_use]
    pub fn answers(self) -> &'static [Answer] {
        use Answer::{Error, Short};
        const EIO: Answer = Error(5);
        const EINTR: Answer = Error(4);
        const ENOMEM: Answer = Error(12);
        const EMFILE: Answer = Error(24);
        const ENOSPC: Answer = Error(28);
        const ENOLCK: Answer = Error(37);
        const EOPNOTSUPP: Answer = Error(95);
        match self {
            Self::Write => &[EIO, ENOSPC, Short, EINTR],
            Self::Sync | Self::Rename | Self::Link | Self::MakeDir => &[EIO, ENOSPC],
            Self::Open => &[EMFILE, ENOSPC, EIO],
            Self::Remove | Self::Look | Self::List => &[EIO],
            Self::Truncate => &[EIO, EINTR],
            // Rust's library ignores all other errors when it closes a file, and asserts that there are none when it
            // closes a directory.
            Self::Close => &[EINTR],
            Self::Allocate => &[ENOSPC, EOPNOTSUPP, EIO, EINTR],
            Self::Map => &[ENOMEM],
            Self::Read => &[EIO, EINTR, Short],
            Self::Lock => &[ENOLCK, EINTR],
        }
    }
}

/// What happens instead of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The process gets SIGKILL.
    Kill,
    /// The call answers as in [`Kind::answers`], with the one at this number modulo their count.
    Fail {
        /// The number of the answer.
        number: u64,
        /// Once, or from then on.
        lasts: Lasts,
    },
}

/// How long calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// One call.
    Once,
    /// Every later call that can answer the same. Not for an interruption, after which the call is made again.
    FromThenOn,
}

/// Which calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// All calls that concern the directory.
    All,
    /// Those that change something: [`Kind::changes`].
    Changes,
}

/// A deed at the N-th counted call, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// N.
    pub at: u64,
    /// The deed.
    pub deed: Deed,
}

/// How a traced program ended.
#[derive(Debug)]
pub struct Traced {
    /// Its status.
    pub status: ExitStatus,
    /// How many calls were counted.
    pub calls: u64,
    /// What was done, and to what kind of call; `None` if there was no such call.
    pub done: Option<(Kind, Option<Answer>)>,
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: String,
}

impl Traced {
    /// Whether it was killed by the fault.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        matches!(self.done, Some((_, None)))
    }
}

/// Where to put the files of traced programs: in memory, if there is a file system in memory. What a killed process
/// has written is kept either way, and thousands of syncs of a disk would take most of the time.
#[must_use]
pub fn scratch() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Whether programs can be traced here, and if not, why.
pub fn availability() -> Result<(), String> {
    let scratch = scratch().join(format!("bifold-trace-{}-{:?}", std::process::id(), std::thread::current().id()));
    let tried = fs::create_dir_all(&scratch)
        .map_err(|e| e.to_string())
        .and_then(|()| run(Command::new("true"), &scratch, Counted::All, None).map_err(|t| t.to_string()));
    drop(fs::remove_dir_all(&scratch));
    match tried {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("programs cannot be traced here: {why}")),
    }
}

/// Runs `command`, counts its calls that concern `root`, and applies `fault`. Its output goes to files in `root`'s
/// parent, since a pipe that nobody reads meanwhile could fill up.
///
/// # Errors
/// When the system refuses to trace, or the program does not end within a minute.
pub fn run(mut command: Command, root: &Path, counted: Counted, fault: Option<Fault>) -> Result<Traced, Trouble> {
    let name = |what: &str| root.with_extension(what);
    let file =
        |what: &str| File::create(name(what)).map_err(|e| Trouble::wrong(format!("{}: {e}", name(what).display())));
    command.stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?);
    let outcome = system::supervise(command, root, counted, fault);
    let read = |what: &str| fs::read(name(what)).unwrap_or_default();
    let (out, err) = (read("out"), String::from_utf8_lossy(&read("err")).into_owned());
    for what in ["out", "err"] {
        drop(fs::remove_file(name(what)));
    }
    let (status, calls, done) = outcome.map_err(Trouble::wrong)?;
    Ok(Traced { status, calls, done, out, err })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}: {:?}", self.at, self.deed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is deleted on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = scratch().join(format!("bifold-trace-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn shell(&self, script: &str, fault: Option<Fault>) -> Option<Traced> {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(&self.0);
            if let Err(why) = availability() {
                println!("skipped: {why}");
                return None;
            }
            Some(run(command, &self.0, Counted::Changes, fault).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    const SCRIPT: &str = "echo first > $1/a || echo lost; echo second > $1/b || echo lost; echo end";

    #[test]
    fn calls_are_counted_and_the_program_is_not_affected() {
        let scratch = Scratch::new("counted");
        let Some(traced) = scratch.shell(SCRIPT, None) else { return };
        assert!(traced.status.success() && traced.done.is_none(), "{traced:?}");
        assert!(traced.calls >= 6, "two files are opened, written and closed: {traced:?}");
        assert_eq!(traced.out, b"end\n");
        assert_eq!(fs::read(scratch.0.join("b")).unwrap(), b"second\n");
    }

    #[test]
    fn a_kill_comes_before_its_call_and_ends_the_program() {
        let scratch = Scratch::new("kill");
        let mut written = Vec::new();
        for at in 1.. {
            drop(fs::remove_file(scratch.0.join("a")));
            drop(fs::remove_file(scratch.0.join("b")));
            let Some(traced) = scratch.shell(SCRIPT, Some(Fault { at, deed: Deed::Kill })) else { return };
            if traced.done.is_none() {
                break;
            }
            assert!(traced.is_killed() && traced.status.code().is_none() && traced.calls == at, "{traced:?}");
            written.push((fs::read(scratch.0.join("a")).ok(), fs::read(scratch.0.join("b")).ok()));
        }
        assert_eq!(written.first(), Some(&(None, None)), "before the first call there is nothing");
        assert!(written.contains(&(Some(b"".to_vec()), None)) && written.contains(&(Some(b"first\n".to_vec()), None)));
    }

    #[test]
    fn a_call_fails_once_or_from_then_on() {
        let scratch = Scratch::new("fail");
        let once = Deed::Fail { number: 0, lasts: Lasts::Once };
        let Some(traced) = scratch.shell(SCRIPT, Some(Fault { at: 1, deed: once })) else { return };
        assert_eq!(traced.done, Some((Kind::Open, Some(Answer::Error(24)))));
        assert_eq!(traced.out, b"lost\nend\n");
        assert!(!scratch.0.join("a").exists() && scratch.0.join("b").exists());
        let lasting = Deed::Fail { number: 0, lasts: Lasts::FromThenOn };
        fs::remove_file(scratch.0.join("b")).unwrap();
        let traced = scratch.shell(SCRIPT, Some(Fault { at: 1, deed: lasting })).unwrap();
        assert_eq!(traced.out, b"lost\nlost\nend\n");
        assert!(!scratch.0.join("b").exists());
    }

    #[test]
    fn a_short_write_writes_less_than_asked_for() {
        let scratch = Scratch::new("short");
        let deed = Deed::Fail { number: 2, lasts: Lasts::Once };
        let write = (1..20).find_map(|at| {
            let traced = scratch.shell("printf 0123456789 > $1/a", Some(Fault { at, deed }))?;
            matches!(traced.done, Some((Kind::Write, Some(Answer::Short)))).then_some(traced)
        });
        if availability().is_ok() {
            assert!(write.is_some());
            // The shell writes the rest, or reports that it could not.
            let found = fs::read(scratch.0.join("a")).unwrap();
            assert!(b"0123456789".starts_with(&found) && found.len() >= 5, "{found:?}");
        }
    }
}
