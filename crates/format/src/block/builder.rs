//! Writes data blocks.

use bifold_contract::{Entry, key::MAX_SEQNO};

use super::{
    ENTRY_BYTES_MIN, FIXED_TAIL_BYTES, Layout, RESTART_BYTES,
    heads::{common_prefix, head},
};
use crate::bytes::put_varint;

/// Builds one block after the other at the end of a buffer, where it stays: a table is written without copying its
/// blocks.
#[derive(Debug)]
pub struct BlockBuilder {
    /// Every `interval`-th entry has its whole key.
    interval: usize,
    start: usize,
    restarts: Vec<u32>,
    entries: usize,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    /// Builds blocks in which every `interval`-th entry has its whole key.
    #[must_use]
    pub fn new(interval: usize) -> Self {
        let interval = interval.max(1);
        Self { interval, start: 0, restarts: Vec::new(), entries: 0, first_key: Vec::new(), last_key: Vec::new() }
    }

    /// Starts a block at the end of `out`.
    pub fn begin(&mut self, out: &[u8]) {
        self.start = out.len();
        self.restarts.clear();
        self.entries = 0;
    }

    /// Appends an entry. Entries come in stream order. Nothing else may change `out` between [`BlockBuilder::begin`]
    /// and [`BlockBuilder::finish`].
    pub fn add(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        debug_assert!(entry.seqno <= MAX_SEQNO, "a sequence number and a kind fit in one word");
        let shared = if self.entries.is_multiple_of(self.interval) {
            self.restarts.push(narrow(out.len() - self.start));
            0
        } else {
            common_prefix(&self.last_key, entry.key)
        };
        if self.entries == 0 {
            self.first_key.clear();
            self.first_key.extend_from_slice(entry.key);
        }
        let tail = &entry.key[shared..];
        put_varint(out, shared as u64);
        put_varint(out, tail.len() as u64);
        put_varint(out, entry.payload.len() as u64);
        out.extend_from_slice(tail);
        out.extend_from_slice(&(entry.seqno << 8 | entry.kind as u64).to_le_bytes());
        out.extend_from_slice(entry.payload);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(tail);
        self.entries += 1;
    }

    /// Completes the block with its restarts. Returns where the block starts in `out`.
    ///
    /// # Panics
    /// If the block is empty or larger than 4 GiB. (An entry has at most 1 GiB, and a block ends with the entry that
    /// fills it.)
    pub fn finish(&mut self, out: &mut Vec<u8>) -> usize {
        assert!(self.entries > 0, "a block has at least one entry");
        let prefix = common_prefix(&self.first_key, &self.last_key);
        let entries_end = out.len();
        for &restart in &self.restarts {
            let slot = Layout::slot(&out[self.start..entries_end], restart as usize);
            let Some(slot) = slot else { panic!("no entry at restart {restart}") };
            let head = head(&out[self.start + slot.key_start + prefix..self.start + slot.key_end]);
            out.extend_from_slice(&head.to_le_bytes());
        }
        for restart in &self.restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&narrow(prefix).to_le_bytes());
        out.extend_from_slice(&narrow(self.restarts.len()).to_le_bytes());
        narrow(out.len() - self.start);
        self.start
    }

    /// Size of the block if it were finished now.
    #[must_use]
    pub fn bytes(&self, out: &[u8]) -> usize {
        out.len() - self.start + self.restarts.len() * RESTART_BYTES + FIXED_TAIL_BYTES
    }

    /// Whether an entry of this size would be better off in the next block: the present one is nine tenths full and
    /// would grow past `block_bytes`.
    #[must_use]
    pub fn is_full_before(&self, entry: &Entry<'_>, block_bytes: usize, out: &[u8]) -> bool {
        let bytes = self.bytes(out);
        let grown = bytes + ENTRY_BYTES_MIN + entry.key.len() + entry.payload.len();
        self.entries > 0 && bytes >= block_bytes / 10 * 9 && grown > block_bytes
    }

    /// Whether the block has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The last key added. Still available after [`BlockBuilder::finish`].
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }
}

fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_else(|_| panic!("{length} bytes in one block"))
}
