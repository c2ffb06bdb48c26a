//! Checks the order of entries, block after block.
//!
//! A checksum says that a block is as it was sealed, not that it was right then: a bit may have flipped in memory
//! before. A search finds less in such a block. A merge would write what is out of order, so it checks first. Each
//! entry is compared with the one before it, behind what the two share: mostly the first byte decides.

use std::cmp::Ordering;

use bifold_contract::{Corruption, SeqNo};

use super::{Layout, bad_entry};

/// The last entry of the blocks that were checked, one after the other. Its buffer is reused.
#[derive(Clone, Debug, Default)]
pub struct StreamOrder {
    key: Vec<u8>,
    /// Its number; `None` if the next block may begin anywhere.
    seqno: Option<SeqNo>,
}

impl StreamOrder {
    /// Checks that each entry of `block` can be decoded and follows the one before it in stream order; before the first
    /// one is the last one of the block that was checked before. Returns the first key. After an error the next block
    /// may begin anywhere.
    ///
    /// # Errors
    /// If that is not so. The offset is relative to the block.
    pub fn check<'a>(&mut self, block: &'a [u8]) -> Result<&'a [u8], Corruption> {
        let mut before = self.seqno.take();
        if before.is_none() {
            self.key.clear();
        }
        let entries = &block[..Layout::parse(block)?.entries_end];
        let mut first: &'a [u8] = &[];
        let mut at = 0;
        while at < entries.len() {
            // The first entry has its whole key, whatever came before it.
            let shared_max = if at == 0 { 0 } else { self.key.len() };
            let slot = Layout::slot(entries, at).filter(|slot| slot.shared <= shared_max && slot.kind().is_some());
            let Some(slot) = slot else { return Err(bad_entry(block, at)) };
            let tail = &entries[slot.key_start..slot.key_end];
            let follows = match tail.cmp(&self.key[slot.shared..]) {
                Ordering::Greater => true,
                Ordering::Equal => before.is_none_or(|before| slot.seqno() < before),
                Ordering::Less => false,
            };
            self.key.truncate(slot.shared);
            self.key.extend_from_slice(tail);
            if !follows {
                return Err(out_of_order(at, &self.key, slot.seqno()));
            }
            if at == 0 {
                first = tail;
            }
            before = Some(slot.seqno());
            at = slot.payload_end;
        }
        self.seqno = before;
        Ok(first)
    }

    /// The key of the last entry checked.
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        &self.key
    }

    /// The next block may begin anywhere.
    pub fn forget(&mut self) {
        self.seqno = None;
    }
}

#[cold]
fn out_of_order(at: usize, key: &[u8], seqno: SeqNo) -> Corruption {
    let found = format!("key {}, number {seqno}", key.escape_ascii());
    Corruption::new(at as u64, "data block", "an entry after the previous one", found)
}
