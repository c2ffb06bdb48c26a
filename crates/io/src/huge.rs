//! Large pieces of memory, straight from the system.
//!
//! Memory that is used for long, and searched all over, is better not taken from the program's allocator: glibc's,
//! once it has seen large blocks come and go, cuts later ones out of its heap and hardly ever gives them back. And it
//! is better in huge pages: one fault for 2 MiB instead of 512, and one entry of the processor's address cache.
//!
//! ```text
//! allocate ─▶ mapped anew, aligned to a huge page where it is that large ─▶ MADV_HUGEPAGE ─▶ free: unmapped
//! ```
//!
//! Elsewhere than on Linux, and under Miri, which cannot map memory, the allocator is asked.

use std::{
    alloc::{Layout, handle_alloc_error},
    ptr::NonNull,
};

/// A huge page of x86-64, and of aarch64 with pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ptr::{self, NonNull};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::HUGE_PAGE_BYTES;

    /// Maps `bytes`, a multiple of a page; from a huge page on at a multiple of one.
    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let spare = if bytes.is_multiple_of(HUGE_PAGE_BYTES) { HUGE_PAGE_BYTES } else { 0 };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses; nobody else has it.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes + spare, access, MapFlags::PRIVATE) }.ok()?;
        let start = start.cast::<u8>();
        let before = if spare == 0 { 0 } else { start.align_offset(HUGE_PAGE_BYTES) };
        // SAFETY: these are the ends of the mapping just made, which nobody uses; the advice changes no contents.
        unsafe {
            let place = start.add(before);
            if before > 0 {
                munmap(start.cast(), before).ok()?;
            }
            if spare > before {
                munmap(place.add(bytes).cast(), spare - before).ok()?;
            }
            if spare > 0 {
                // Without huge pages it is slower, nothing else.
                let _hint = madvise(place.cast(), bytes, Advice::LinuxHugepage);
            }
            NonNull::new(place)
        }
    }

    /// # Safety
    /// The bytes were mapped by [`map`], and nobody uses them any more.
    pub unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: as the caller promises. Where it fails, for too many mappings, the memory stays in use.
        let _stays = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use std::{
        alloc::{Layout, alloc_zeroed, dealloc},
        ptr::NonNull,
    };

    const PAGE_BYTES: usize = 4096;

    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is above zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    /// The bytes were mapped by [`map`], and nobody uses them any more.
    pub unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: `map` has made a layout of these, and the caller gives up the bytes.
        unsafe { dealloc(start.as_ptr(), Layout::from_size_align_unchecked(bytes, PAGE_BYTES)) }
    }
}

/// Zeroed memory of `bytes`, a multiple of 4 KiB and above zero; a multiple of [`HUGE_PAGE_BYTES`] is aligned to that.
/// It is the caller's until it is passed to [`free`].
///
/// # Panics
/// When the system has no memory, as the allocator does.
#[must_use]
pub fn allocate(bytes: usize) -> NonNull<u8> {
    assert!(bytes > 0 && bytes.is_multiple_of(4096), "{bytes} bytes are no pages");
    system::map(bytes).unwrap_or_else(|| {
        handle_alloc_error(Layout::from_size_align(bytes, 4096).unwrap_or_else(|_| Layout::new::<u8>()))
    })
}

/// Gives memory back.
///
/// # Safety
/// [`allocate`] has returned it for as many bytes, and nobody uses it any more.
pub unsafe fn free(start: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { system::unmap(start, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_the_callers_own() {
        let sizes = [4096, 32 << 10, 1 << 20, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES];
        let all = sizes.map(|bytes| (allocate(bytes), bytes));
        for (n, &(start, bytes)) in all.iter().enumerate() {
            let aligned = if bytes.is_multiple_of(HUGE_PAGE_BYTES) && !cfg!(miri) { HUGE_PAGE_BYTES } else { 4096 };
            assert_eq!(start.as_ptr().align_offset(aligned), 0);
            // SAFETY: the memory is this test's.
            let memory = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) };
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(n as u8 + 1);
        }
        for (n, (start, bytes)) in all.into_iter().enumerate() {
            // SAFETY: as above; it is not used after it is freed.
            unsafe {
                assert!(std::slice::from_raw_parts(start.as_ptr(), bytes).iter().all(|&byte| byte == n as u8 + 1));
                free(start, bytes);
            }
        }
    }
}
