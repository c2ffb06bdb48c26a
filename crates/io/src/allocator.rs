//! What the allocator keeps of freed memory.

/// Buffers of this many bytes and more are mapped on their own, and unmapped when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM: libc::c_int = 1 << 20;

/// As many bytes at the end of a heap are kept for what is allocated next.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: libc::c_int = 128 << 10;

/// Threads share so many heaps. Each heap keeps what is between its live blocks, and a process has few workers.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: libc::c_int = 2;

/// Has the allocator of glibc give freed buffers back to the system, in the whole process. Without it, each freed
/// buffer of up to 32 MiB raises the size from which glibc maps buffers on their own, and what it does not map it
/// hardly ever gives back: a process takes 1.0 to 1.4 times its `memory_limit`. With it, 0.6 to 0.8 times, in the same
/// processor time.
///
/// A library must not decide this, so a program calls it, once and early. With other allocators and systems it does
/// nothing.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM),
        (libc::M_TRIM_THRESHOLD, KEPT),
        (libc::M_TOP_PAD, KEPT),
        (libc::M_ARENA_MAX, HEAPS),
    ] {
        // SAFETY: any thread may change these at any time. If one is refused, more memory is kept, nothing else.
        let _taken = unsafe { libc::mallopt(parameter, value) };
    }
}
