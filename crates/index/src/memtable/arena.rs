//! Memory that is handed out in small pieces and freed all at once.
//!
//! Chunks come from `spare`, never move and are returned together when the arena is dropped. So readers follow
//! pointers into the arena without a lock or a reference count. Tree nodes and entries have separate chunks. A search
//! touches many nodes and at most one or two entries, so nodes are kept dense: fewer pages to translate.
//!
//! Invariant: a space is handed out only once, and only its owner has a pointer to it.

mod spare;

use std::{alloc::Layout, ptr::NonNull};

use crate::cpu::LINE_BYTES;

/// What every entry is aligned to.
pub(super) const ENTRY_ALIGN_BYTES: usize = 8;

/// The first chunk of each kind. A database with many keyspaces has many small memtables; an almost empty one counts
/// 8 KiB.
const FIRST_CHUNK_BYTES: usize = 4 << 10;

/// Chunks double up to this size: the unused space in the last ones stays below 3 % of a memtable of 64 MiB.
const LARGEST_CHUNK_BYTES: usize = 1 << 20;

/// Owns all memory of one memtable.
pub(super) struct Arena {
    nodes: Region,
    entries: Region,
    chunks: Chunks,
}

/// Where the next space of one kind comes from.
struct Region {
    free: NonNull<u8>,
    left_bytes: usize,
    next_chunk_bytes: usize,
    used_bytes: usize,
}

/// The chunks of one arena.
struct Chunks {
    list: Vec<(NonNull<u8>, Layout)>,
    bytes: usize,
}

impl Arena {
    /// An arena without memory.
    pub(super) const fn new() -> Self {
        let chunks = Chunks { list: Vec::new(), bytes: 0 };
        Self { nodes: Region::new(), entries: Region::new(), chunks }
    }

    /// Uninitialised space for a node of `bytes`, a multiple of [`LINE_BYTES`], aligned to that.
    #[inline]
    pub(super) fn node_space(&mut self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes.is_multiple_of(LINE_BYTES));
        self.nodes.take(bytes, &mut self.chunks)
    }

    /// Uninitialised space for an entry, aligned to and rounded up to a multiple of [`ENTRY_ALIGN_BYTES`].
    #[inline]
    pub(super) fn entry_space(&mut self, bytes: usize) -> NonNull<u8> {
        self.entries.take(bytes.next_multiple_of(ENTRY_ALIGN_BYTES), &mut self.chunks)
    }

    /// Bytes of all chunks.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.chunks.bytes
    }

    /// Bytes handed out.
    pub(super) fn used_bytes(&self) -> usize {
        self.nodes.used_bytes + self.entries.used_bytes
    }
}

impl Region {
    const fn new() -> Self {
        Self { free: NonNull::dangling(), left_bytes: 0, next_chunk_bytes: FIRST_CHUNK_BYTES, used_bytes: 0 }
    }

    #[inline]
    fn take(&mut self, bytes: usize, chunks: &mut Chunks) -> NonNull<u8> {
        self.used_bytes += bytes;
        if bytes > self.left_bytes {
            return self.take_from_new_chunk(bytes, chunks);
        }
        let space = self.free;
        // SAFETY: `left_bytes` bytes from `free` on lie in one chunk, and `bytes` is not more.
        self.free = unsafe { space.add(bytes) };
        self.left_bytes -= bytes;
        space
    }

    /// A large space gets its own chunk. Other spaces get a chunk that holds at least four, so at most a quarter of a
    /// large chunk stays unused.
    #[cold]
    fn take_from_new_chunk(&mut self, bytes: usize, chunks: &mut Chunks) -> NonNull<u8> {
        if bytes > LARGEST_CHUNK_BYTES / 4 {
            return chunks.allocate(bytes);
        }
        self.next_chunk_bytes = self.next_chunk_bytes.max((4 * bytes).next_power_of_two());
        let space = chunks.allocate(self.next_chunk_bytes);
        // SAFETY: the chunk has at least four times as many bytes.
        self.free = unsafe { space.add(bytes) };
        self.left_bytes = self.next_chunk_bytes - bytes;
        self.next_chunk_bytes = (self.next_chunk_bytes * 2).min(LARGEST_CHUNK_BYTES);
        space
    }
}

impl Chunks {
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        assert!(bytes > 0 && bytes < isize::MAX as usize / 2, "a chunk of {bytes} bytes");
        let Ok(layout) = Layout::from_size_align(bytes, LINE_BYTES) else { unreachable!("checked above") };
        let chunk = spare::take(layout);
        self.list.push((chunk, layout));
        self.bytes += bytes;
        chunk
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // Whoever points into them has borrowed the memtable, or keeps it alive, so nobody does any more. What lies
        // in them is plain data that needs no drop of its own.
        self.list.drain(..).for_each(|(chunk, layout)| spare::give_back(chunk, layout));
    }
}

// SAFETY: the pointers own their memory and are not tied to a thread.
unsafe impl Send for Arena {}
