//! Tracing with `ptrace`: the supervisor is notified before every system call in the list below, of every thread. A
//! filter in the program (`seccomp`) lets all others run at full speed.
//!
//! The thread that starts the program is its tracer and waits only for its own children, so several programs can be
//! traced at once. A kill comes before the call begins. A call that must fail is replaced with no call, and its
//! answer is set at once.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::unix::{
        fs::FileExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    ptr,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use libc::{c_long, c_void, pid_t};

use super::{Answer, Counted, Deed, Fault, Kind, Lasts};

/// A program that has not ended after this time hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A thread's status, above its lowest byte, when it is about to make a call of the list.
const CALL_STOP: i32 = libc::SIGTRAP | libc::PTRACE_EVENT_SECCOMP << 8;

const EINTR: Answer = Answer::Error(libc::EINTR);

/// How it ended, how many calls were counted, what was done to which kind of call.
type Outcome = (ExitStatus, u64, Option<(Kind, Option<Answer>)>);

/// Runs `command` to its end.
pub(super) fn supervise(
    mut command: Command,
    root: &Path,
    counted: Counted,
    fault: Option<Fault>,
) -> Result<Outcome, String> {
    let program = filter(counted);
    let trace_me = move || ptrace(libc::PTRACE_TRACEME, 0, 0, 0).and_then(|_| stop_at(&program));
    // SAFETY: between fork and exec only `ptrace` and `prctl` are called, which allocate nothing and take no lock.
    unsafe { command.pre_exec(trace_me) };
    let child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
    let pid = child.id() as pid_t;
    let (end, ended) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let hangs = ended.recv_timeout(HANGS_AFTER) == Err(RecvTimeoutError::Timeout);
        if hangs {
            kill(pid);
        }
        hangs
    });
    let supervisor = Supervisor { pid, root, fault, calls: 0, done: None };
    let outcome = supervisor.run();
    if outcome.is_err() {
        kill(pid);
        while wait().is_ok_and(|(ended, status)| ended != pid || libc::WIFSTOPPED(status)) {}
    }
    drop(end);
    if watchdog.join().unwrap_or(false) {
        return Err(format!("{command:?} hangs: it was killed after {} s", HANGS_AFTER.as_secs()));
    }
    outcome.map_err(|e| format!("tracing {command:?}: {e}"))
}

struct Supervisor<'a> {
    pid: pid_t,
    root: &'a Path,
    fault: Option<Fault>,
    calls: u64,
    done: Option<(Kind, Option<Answer>)>,
}

impl Supervisor<'_> {
    fn run(mut self) -> io::Result<Outcome> {
        // The first stop is that of exec.
        let (first, status) = wait()?;
        if first == self.pid && !libc::WIFSTOPPED(status) {
            return Ok((ExitStatus::from_raw(status), 0, None));
        }
        let options = libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, self.pid, 0, options as usize)?;
        resume(self.pid, 0)?;
        loop {
            let (thread, status) = wait()?;
            if !libc::WIFSTOPPED(status) {
                if thread == self.pid {
                    return Ok((ExitStatus::from_raw(status), self.calls, self.done));
                }
                continue;
            }
            let signal = match libc::WSTOPSIG(status) {
                _ if status >> 8 == CALL_STOP => {
                    self.at_call(thread)?;
                    0
                }
                // A new thread begins with the first; its creator gets the second.
                libc::SIGSTOP | libc::SIGTRAP => 0,
                signal => signal,
            };
            resume(thread, signal)?;
        }
    }

    fn at_call(&mut self, thread: pid_t) -> io::Result<()> {
        let info = match call_info(thread) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            info => info?,
        };
        if info.op != libc::PTRACE_SYSCALL_INFO_SECCOMP {
            return Ok(());
        }
        // SAFETY: `op` shows that this variant was written.
        let (number, args) = unsafe { (info.u.seccomp.nr as c_long, info.u.seccomp.args) };
        let Some(&(_, kind, place)) = CALLS.iter().find(|call| call.0 == number) else { return Ok(()) };
        if !self.concerns_root(place, &args) {
            return Ok(());
        }
        self.calls += 1;
        match self.fault {
            Some(fault) if fault.at == self.calls || (fault.at < self.calls && self.done.is_some()) => {
                self.act(thread, kind, (number, &args), fault)
            }
            _ => Ok(()),
        }
    }

    fn act(&mut self, thread: pid_t, kind: Kind, call: (c_long, &[u64; 6]), fault: Fault) -> io::Result<()> {
        let Deed::Fail { number, lasts } = fault.deed else {
            if self.done.is_none() {
                self.done = Some((kind, None));
                kill(self.pid);
            }
            return Ok(());
        };
        let answers = kind.answers();
        let answer = match self.done {
            None => answers[(number % answers.len() as u64) as usize],
            // An interrupted call is made again, but must not be interrupted forever.
            Some((_, Some(answer))) if lasts == Lasts::FromThenOn && answers.contains(&answer) && answer != EINTR => {
                answer
            }
            Some(_) => return Ok(()),
        };
        self.done = self.done.or(Some((kind, Some(answer))));
        let error = match answer {
            Answer::Error(error) => error,
            // A single byte cannot be shortened, and calls with several buffers are not: these calls are made
            // unchanged.
            Answer::Short if call.1[2] > 1 && takes_length(call.0) => {
                return registers::set_length(thread, call.1[2] / 2);
            }
            Answer::Short => return Ok(()),
        };
        registers::answer(thread, -i64::from(error))
    }

    fn concerns_root(&self, place: FileArgument, args: &[u64; 6]) -> bool {
        let of_fd = |fd: u64| fs::read_link(format!("/proc/{}/fd/{}", self.pid, fd as i32)).ok();
        let found = match place {
            FileArgument::Fd(at) => of_fd(args[at]),
            FileArgument::Path(at) => self.text(args[at]),
            FileArgument::At(at) => {
                self.text(args[at]).filter(|path| path.is_absolute()).or_else(|| of_fd(args[at - 1]))
            }
            FileArgument::Memory(at) => self.file_mapped_at(args[at]),
        };
        found.is_some_and(|path| path.starts_with(self.root))
    }

    /// The string at `address` of the program's memory, if there is one.
    fn text(&self, address: u64) -> Option<PathBuf> {
        let memory = fs::File::open(format!("/proc/{}/mem", self.pid)).ok()?;
        let mut bytes = vec![0; libc::PATH_MAX as usize];
        let read = memory.read_at(&mut bytes, address).ok()?;
        let len = bytes[..read].iter().position(|&byte| byte == 0)?;
        Some(PathBuf::from(std::str::from_utf8(&bytes[..len]).ok()?))
    }

    fn file_mapped_at(&self, address: u64) -> Option<PathBuf> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).ok()?;
        let covers = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
            range.is_some_and(|(start, end)| (number(start)..number(end)).contains(&address))
        };
        let line = maps.lines().find(covers)?;
        Some(PathBuf::from(&line[line.find('/')?..]))
    }
}

/// Which argument identifies the file of a call.
#[derive(Clone, Copy)]
enum FileArgument {
    /// An open file.
    Fd(usize),
    /// A path.
    Path(usize),
    /// A path; if it is relative or empty, the directory or file open as the argument before it.
    At(usize),
    /// An address in a mapping.
    Memory(usize),
}

/// All calls that are traced, what they do, and to which file.
const CALLS: &[(c_long, Kind, FileArgument)] = &[
    (libc::SYS_write, Kind::Write, FileArgument::Fd(0)),
    (libc::SYS_pwrite64, Kind::Write, FileArgument::Fd(0)),
    (libc::SYS_writev, Kind::Write, FileArgument::Fd(0)),
    (libc::SYS_pwritev, Kind::Write, FileArgument::Fd(0)),
    (libc::SYS_pwritev2, Kind::Write, FileArgument::Fd(0)),
    (libc::SYS_copy_file_range, Kind::Write, FileArgument::Fd(2)),
    (libc::SYS_fsync, Kind::Sync, FileArgument::Fd(0)),
    (libc::SYS_fdatasync, Kind::Sync, FileArgument::Fd(0)),
    (libc::SYS_sync_file_range, Kind::Sync, FileArgument::Fd(0)),
    (libc::SYS_syncfs, Kind::Sync, FileArgument::Fd(0)),
    (libc::SYS_msync, Kind::Sync, FileArgument::Memory(0)),
    (libc::SYS_openat, Kind::Open, FileArgument::At(1)),
    (libc::SYS_openat2, Kind::Open, FileArgument::At(1)),
    (libc::SYS_renameat, Kind::Rename, FileArgument::At(1)),
    (libc::SYS_renameat2, Kind::Rename, FileArgument::At(1)),
    (libc::SYS_unlinkat, Kind::Remove, FileArgument::At(1)),
    (libc::SYS_linkat, Kind::Link, FileArgument::At(1)),
    (libc::SYS_mkdirat, Kind::MakeDir, FileArgument::At(1)),
    (libc::SYS_ftruncate, Kind::Truncate, FileArgument::Fd(0)),
    (libc::SYS_truncate, Kind::Truncate, FileArgument::Path(0)),
    (libc::SYS_fallocate, Kind::Allocate, FileArgument::Fd(0)),
    (libc::SYS_mmap, Kind::Map, FileArgument::Fd(4)),
    (libc::SYS_close, Kind::Close, FileArgument::Fd(0)),
    (libc::SYS_read, Kind::Read, FileArgument::Fd(0)),
    (libc::SYS_pread64, Kind::Read, FileArgument::Fd(0)),
    (libc::SYS_readv, Kind::Read, FileArgument::Fd(0)),
    (libc::SYS_preadv, Kind::Read, FileArgument::Fd(0)),
    (libc::SYS_preadv2, Kind::Read, FileArgument::Fd(0)),
    (libc::SYS_fstat, Kind::Look, FileArgument::Fd(0)),
    (libc::SYS_lseek, Kind::Look, FileArgument::Fd(0)),
    (libc::SYS_newfstatat, Kind::Look, FileArgument::At(1)),
    (libc::SYS_statx, Kind::Look, FileArgument::At(1)),
    (libc::SYS_getdents64, Kind::List, FileArgument::Fd(0)),
    (libc::SYS_flock, Kind::Lock, FileArgument::Fd(0)),
    (libc::SYS_fcntl, Kind::Lock, FileArgument::Fd(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Kind::Open, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, Kind::Open, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, Kind::Rename, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, Kind::Remove, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, Kind::Remove, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_link, Kind::Link, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, Kind::MakeDir, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, Kind::Look, FileArgument::Path(0)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, Kind::Look, FileArgument::Path(0)),
];

/// The filter: load the call's number, compare it with each counted call and stop on a match, allow all others.
fn filter(counted: Counted) -> Vec<libc::sock_filter> {
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (number, ..) in CALLS.iter().filter(|call| counted == Counted::All || call.1.changes()) {
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *number as u32, 1));
        program.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_TRACE, 0));
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    program
}

/// Makes this process, and the program it executes, stop at the calls of the filter.
fn stop_at(program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the first call takes only numbers; the second reads `program` and what it points to, and both outlive
    // it.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if is_set { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the third argument is a number of bytes.
fn takes_length(number: c_long) -> bool {
    matches!(number, libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_read | libc::SYS_pread64)
}

/// Waits until a child of this thread, or a thread of one, stops or ends.
fn wait() -> io::Result<(pid_t, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a place for an `int`.
        match unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            thread => return Ok((thread, status)),
        }
    }
}

fn resume(thread: pid_t, signal: i32) -> io::Result<()> {
    match ptrace(libc::PTRACE_CONT, thread, 0, signal as usize) {
        // It was killed meanwhile; the next wait reports that.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn kill(pid: pid_t) {
    // SAFETY: no memory is involved, and the process is a child that nobody has waited for.
    let _may_have_ended = unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn call_info(thread: pid_t) -> io::Result<libc::ptrace_syscall_info> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let len = size_of_val(&info);
    ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, len, info.as_mut_ptr() as usize)?;
    // SAFETY: all zeros is a valid value of this plain structure, and the call has written the fields it has.
    Ok(unsafe { info.assume_init() })
}

/// Calls `ptrace`. `data` is a number, or the address of what the request writes or reads.
fn ptrace(request: libc::c_uint, thread: pid_t, address: usize, data: usize) -> io::Result<c_long> {
    // SAFETY: callers pass `data` that points to what the request requires and lives until it returns.
    let answer = unsafe {
        libc::ptrace(
            request,
            thread,
            ptr::without_provenance_mut::<c_void>(address),
            ptr::with_exposed_provenance_mut::<c_void>(data),
        )
    };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    //! Where a call's number, arguments and answer are.

    use super::{MaybeUninit, io, pid_t, ptrace};

    fn change(thread: pid_t, change: impl FnOnce(&mut libc::user_regs_struct)) -> io::Result<()> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
        ptrace(libc::PTRACE_GETREGS, thread, 0, registers.as_mut_ptr() as usize)?;
        // SAFETY: all zeros is a valid value of this plain structure, which the call has filled.
        let mut registers = unsafe { registers.assume_init() };
        change(&mut registers);
        ptrace(libc::PTRACE_SETREGS, thread, 0, &raw mut registers as usize).map(drop)
    }

    /// Skips the call and sets its answer.
    pub fn answer(thread: pid_t, answer: i64) -> io::Result<()> {
        change(thread, |registers| (registers.orig_rax, registers.rax) = (u64::MAX, answer as u64))
    }

    pub fn set_length(thread: pid_t, bytes: u64) -> io::Result<()> {
        change(thread, |registers| registers.rdx = bytes)
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    //! Where a call's number, arguments and answer are.

    use super::{MaybeUninit, c_void, io, pid_t, ptrace};

    const GENERAL: usize = 1;
    const CALL_NUMBER: usize = 0x404;

    fn transfer<T>(request: libc::c_uint, thread: pid_t, set: usize, data: *mut T) -> io::Result<()> {
        let mut vector = libc::iovec { iov_base: data.cast::<c_void>(), iov_len: size_of::<T>() };
        ptrace(request, thread, set, &raw mut vector as usize).map(drop)
    }

    fn change(thread: pid_t, change: impl FnOnce(&mut libc::user_regs_struct)) -> io::Result<()> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
        transfer(libc::PTRACE_GETREGSET, thread, GENERAL, registers.as_mut_ptr())?;
        // SAFETY: all zeros is a valid value of this plain structure, which the call has filled.
        let mut registers = unsafe { registers.assume_init() };
        change(&mut registers);
        transfer(libc::PTRACE_SETREGSET, thread, GENERAL, &raw mut registers)
    }

    /// Skips the call and sets its answer.
    pub fn answer(thread: pid_t, answer: i64) -> io::Result<()> {
        let mut none: i32 = -1;
        transfer(libc::PTRACE_SETREGSET, thread, CALL_NUMBER, &raw mut none)?;
        change(thread, |registers| registers.regs[0] = answer as u64)
    }

    pub fn set_length(thread: pid_t, bytes: u64) -> io::Result<()> {
        change(thread, |registers| registers.regs[2] = bytes)
    }
}
