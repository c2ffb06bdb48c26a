//! Copies from and to mapped files in which a fault becomes an error.
//!
//! ```text
//! copy ──▶ the range is noted for this thread ──▶ bytes are copied
//!                                                  └─ SIGBUS: the handler marks the mapping as broken and maps
//!                                                     another page at the address; the copy runs to its end
//!                                                     and does not count
//! ```
//!
//! A thread gets `SIGBUS` when it touches a page that cannot be read or that lies beyond the end of a file that
//! another program has truncated. It also gets it when it stores and the file system finds no block: one that writes
//! changed blocks to a new place needs a free one for each, whatever `fallocate` has promised.
//!
//! * **A read** gets a page of zeros.
//! * **A store** gets a private copy of the file's page. What was stored there before can still be read, in the
//!   process and in the file; what is stored from now on is not in the file.
//!
//! The handler only serves the copies made here: every other signal goes to the handler that was installed before,
//! including Rust's own. A program that installs its own handler later, or blocks `SIGBUS` in its threads, removes
//! that protection; it should not use mapped files ([`Reads`](crate::fs::Reads)).

use bifold_contract::planted;
use std::{
    mem,
    os::fd::{BorrowedFd, RawFd},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, compiler_fence},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// Reads need no file.
const NO_FILE: RawFd = -1;

/// What a thread is copying now: its range, and the flag to set on a fault. Only the thread itself and the handlers
/// of its signals look here, so only the compiler's order matters.
struct Guarded {
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicPtr<AtomicBool>,
    /// For a store: the mapped file, and where its mapping begins.
    file: AtomicI32,
    origin: AtomicUsize,
    /// The last page that this thread was given a copy of: if it faults again there is nothing to copy.
    copied: AtomicUsize,
}

thread_local! {
    /// Constant-initialized and never dropped, so a handler may access it.
    static GUARDED: Guarded = const {
        Guarded {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            broken: AtomicPtr::new(ptr::null_mut()),
            file: AtomicI32::new(NO_FILE),
            origin: AtomicUsize::new(0),
            copied: AtomicUsize::new(0),
        }
    };
}

/// Lets `copy` read `len` bytes from `from` on, in one of our mappings. If some cannot be read, `broken` is true
/// afterwards and what was copied does not count.
#[inline]
pub(super) fn reading<T>(from: *const u8, len: usize, broken: &AtomicBool, copy: impl FnOnce() -> T) -> T {
    GUARDED.with(|guarded| {
        guarded.file.store(NO_FILE, Relaxed);
        guarded.begin(from as usize, len, broken);
        let copied = copy();
        guarded.end();
        copied
    })
}

/// A file that is mapped for stores, its first byte at `origin`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stores<'a> {
    /// The file, open as long as it is mapped.
    pub file: RawFd,
    /// Where its first byte is mapped.
    pub origin: *mut u8,
    /// Set when a store has failed.
    pub broken: &'a AtomicBool,
}

/// Lets `copy` read from and store to the `len` bytes from `at` on.
#[inline]
pub(super) fn storing<T>(to: Stores<'_>, at: *mut u8, len: usize, copy: impl FnOnce() -> T) -> T {
    if planted!("unguarded_store") {
        return copy();
    }
    GUARDED.with(|guarded| {
        guarded.file.store(to.file, Relaxed);
        guarded.origin.store(to.origin as usize, Relaxed);
        guarded.copied.store(0, Relaxed);
        guarded.begin(at as usize, len, to.broken);
        let copied = copy();
        guarded.end();
        copied
    })
}

impl Guarded {
    #[inline]
    fn begin(&self, start: usize, len: usize, broken: &AtomicBool) {
        self.broken.store(ptr::from_ref(broken).cast_mut(), Relaxed);
        self.start.store(start, Relaxed);
        self.end.store(start + len, Relaxed);
        compiler_fence(SeqCst);
    }

    #[inline]
    fn end(&self) {
        compiler_fence(SeqCst);
        self.end.store(0, Relaxed);
    }

    /// Lets the copy continue if the fault at `address` is its own. Called by the handler.
    fn rescue(&self, address: usize) -> bool {
        if !(self.start.load(Relaxed)..self.end.load(Relaxed)).contains(&address) {
            return false;
        }
        // SAFETY: set by `begin` to what the copying thread borrows until `end`.
        unsafe { &*self.broken.load(Relaxed) }.store(true, SeqCst);
        let page = page_bytes();
        let place = address / page * page;
        let file = self.file.load(Relaxed);
        if file == NO_FILE {
            return put_zeros(place, ProtFlags::READ);
        }
        // A page that faults again in the same copy cannot be read either: the file was truncated.
        let is_again = self.copied.swap(place, Relaxed) == place;
        if !is_again && put_copy(place, file, (place - self.origin.load(Relaxed)) as u64) {
            return true;
        }
        put_zeros(place, ProtFlags::READ | ProtFlags::WRITE)
    }
}

fn put_zeros(place: usize, access: ProtFlags) -> bool {
    let start = ptr::without_provenance_mut(place);
    // SAFETY: replaces a page of one of our mappings: the fault was in a range that is being copied. Only plain
    // system calls, which a handler may make.
    unsafe { mmap_anonymous(start, page_bytes(), access, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
}

fn put_copy(place: usize, file: RawFd, offset: u64) -> bool {
    let (start, access) = (ptr::without_provenance_mut(place), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: as for `put_zeros`; the file is open as long as it is mapped, and nobody can unmap it during a store.
    unsafe {
        let file = BorrowedFd::borrow_raw(file);
        mmap(start, page_bytes(), access, MapFlags::PRIVATE | MapFlags::FIXED, file, offset).is_ok()
    }
}

pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// The previous handler. `None` if ours could not be installed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Whether faults of copies are handled.
pub(super) fn is_set() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| {
        // Queried before ours is installed, which may be called from then on. The page size is looked up now because
        // a handler must not do that.
        let _looked_up = page_bytes();
        BEFORE.get_or_init(handler_before).is_some() && set_handler()
    })
}

fn handler_before() -> Option<libc::sigaction> {
    // SAFETY: all zeros is a valid value of this plain structure, which the call fills.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        (libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) == 0).then_some(before)
    }
}

fn set_handler() -> bool {
    // SAFETY: the structure is filled as the call requires, and the handler only does what handlers may.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) == 0
    }
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system calls a handler installed with SA_SIGINFO with the signal's description.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_ours = GUARDED.try_with(|guarded| guarded.rescue(address)).unwrap_or(false);
    if is_ours {
        return;
    }
    let before = BEFORE.get().and_then(Option::as_ref);
    // SAFETY: the previous handler, called as it was installed; or the default action, taken when this one returns.
    unsafe {
        match before {
            Some(before) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) => {
                if before.sa_flags & libc::SA_SIGINFO == 0 {
                    mem::transmute::<usize, extern "C" fn(libc::c_int)>(before.sa_sigaction)(signal);
                } else {
                    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                    mem::transmute::<usize, Handler>(before.sa_sigaction)(signal, info, context);
                }
            }
            _ => {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}
