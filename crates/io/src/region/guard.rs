//! Copies from and to mapped files, with a fault still an error.
//!
//! ```text
//! copy ──▶ the range is noted for this thread ──▶ bytes are copied
//!                                                  └─ SIGBUS: the handler says that the mapping is broken and puts another
//!                                                     page under the address; the copy runs to its end and does not count
//! ```
//!
//! `SIGBUS` comes to who touches a page that cannot be read, that lies beyond the end of a file which somebody else has
//! cut, or, for a store, that the file system finds no block for: one that writes changed blocks to a new place needs a
//! free one for each, whatever `fallocate` has promised.
//!
//! * **A read** gets a page of zeros.
//! * **A store** gets a private copy of the file's page. What was stored there before is still to be read, in the
//!   process and in the file; what is stored from now on is not in the file.
//!
//! The handler answers for nothing but the copies made here: every other signal goes on to the handler that was there
//! before, Rust's own included. A program that puts its own handler in place later, or blocks `SIGBUS` in its threads,
//! takes that protection away; it had better do without mapped files ([`Reads`](crate::fs::Reads)).

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

/// For reads no file is needed.
const NO_FILE: RawFd = -1;

/// What a thread is copying just now: from where to where, and whom to tell. Only the thread itself and handlers of
/// signals that it gets look here, so the order of the compiler is all that matters.
struct Guarded {
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicPtr<AtomicBool>,
    /// Of a store: the file that is mapped, and where its mapping begins.
    file: AtomicI32,
    origin: AtomicUsize,
    /// The page that this thread was given a copy of last: if it faults again there is nothing to copy.
    copied: AtomicUsize,
}

thread_local! {
    /// Made by the compiler and never dropped, so a handler may look at it.
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

/// Lets `copy` read `len` bytes from `from` on, of a mapping that is ours. When some cannot be read `broken` is true
/// afterwards, and what was copied does not count.
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

/// A file that is mapped for stores, from its beginning to `origin`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stores<'a> {
    /// The file, open as long as it is mapped.
    pub file: RawFd,
    /// Where its first byte is.
    pub origin: *mut u8,
    /// Becomes true when something could not be stored.
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

    /// Has the copy go on if the fault at `address` is its own. Called by the handler.
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
        // A page that faults again, in the same copy, cannot be read either: the file was cut.
        let is_again = self.copied.swap(place, Relaxed) == place;
        if !is_again && put_copy(place, file, (place - self.origin.load(Relaxed)) as u64) {
            return true;
        }
        put_zeros(place, ProtFlags::READ | ProtFlags::WRITE)
    }
}

fn put_zeros(place: usize, access: ProtFlags) -> bool {
    let start = ptr::without_provenance_mut(place);
    // SAFETY: replaces a page of a mapping that is ours: the fault was in a range that is being copied. Plain system
    // calls, fit for a handler.
    unsafe { mmap_anonymous(start, page_bytes(), access, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
}

fn put_copy(place: usize, file: RawFd, offset: u64) -> bool {
    let (start, access) = (ptr::without_provenance_mut(place), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: as for `put_zeros`; the file is open as long as it is mapped, and nobody can unmap it under who stores to
    // it.
    unsafe {
        let file = BorrowedFd::borrow_raw(file);
        mmap(start, page_bytes(), access, MapFlags::PRIVATE | MapFlags::FIXED, file, offset).is_ok()
    }
}

pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// The handler that was there before. `None` where ours could not be put in place.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Whether faults of copies are answered.
pub(super) fn is_set() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| {
        // Asked before ours is set: from then on it may be called. Looked up now, because a handler must not.
        let _looked_up = page_bytes();
        BEFORE.get_or_init(handler_before).is_some() && set_handler()
    })
}

fn handler_before() -> Option<libc::sigaction> {
    // SAFETY: all zeros is a value of this plain structure, which the call fills.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        (libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) == 0).then_some(before)
    }
}

fn set_handler() -> bool {
    // SAFETY: the structure is filled as the call wants it, and the handler does what handlers may.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) == 0
    }
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system calls a handler set with SA_SIGINFO with the signal's description.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_ours = GUARDED.try_with(|guarded| guarded.rescue(address)).unwrap_or(false);
    if is_ours {
        return;
    }
    let before = BEFORE.get().and_then(Option::as_ref);
    // SAFETY: the handler that was set before, called as it was set; or the system's own, met when this one returns.
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
