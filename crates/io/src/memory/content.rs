//! The bytes of a file, in chunks that clones share until one of them is written to.

use std::{ops::Range, sync::Arc};

/// Small enough that an append copies a shared chunk fast, large enough that cloning 300 KiB is 75 reference counts.
const CHUNK_BYTES: usize = 4096;

type Chunk = [u8; CHUNK_BYTES];

/// Bytes that are cheap to clone. Behind `len` the last chunk holds zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    chunks: Vec<Arc<Chunk>>,
    len: u64,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        let end = self.len;
        self.set_len(end + bytes.len() as u64);
        self.write(end, bytes);
    }

    /// Truncates the file, or extends it with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        let full = len as usize;
        self.chunks.resize_with(full.div_ceil(CHUNK_BYTES), || Arc::new([0; CHUNK_BYTES]));
        if let Some(last) = self.chunks.last_mut()
            && len < self.len
            && !full.is_multiple_of(CHUNK_BYTES)
        {
            Arc::make_mut(last)[full % CHUNK_BYTES..].fill(0);
        }
        self.len = len;
    }

    /// Overwrites existing bytes.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.len, "only bytes within the file are overwritten");
        for (chunk, within, of) in pieces(offset, bytes.len()) {
            Arc::make_mut(&mut self.chunks[chunk])[within].copy_from_slice(&bytes[of]);
        }
    }

    /// Zeros the bytes of `range` that are within the file.
    pub(super) fn zero(&mut self, range: Range<u64>) {
        let end = range.end.min(self.len);
        for (chunk, within, _) in pieces(range.start, end.saturating_sub(range.start) as usize) {
            Arc::make_mut(&mut self.chunks[chunk])[within].fill(0);
        }
    }

    /// Fills `buffer`, or returns `None` when the file ends before.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let end = offset.checked_add(buffer.len() as u64)?;
        if end > self.len {
            return None;
        }
        for (chunk, within, of) in pieces(offset, buffer.len()) {
            buffer[of].copy_from_slice(&self.chunks[chunk][within]);
        }
        Some(())
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.chunks.len() * CHUNK_BYTES);
        self.chunks.iter().for_each(|chunk| bytes.extend_from_slice(&chunk[..]));
        bytes.truncate(self.len as usize);
        bytes
    }
}

/// The chunks that hold `len` bytes from `offset` on: which chunk, the range within it, and the range of the bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let start = offset as usize;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = start + done;
        let within = at % CHUNK_BYTES;
        let take = (CHUNK_BYTES - within).min(len - done);
        done += take;
        Some((at / CHUNK_BYTES, within..within + take, done - take..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn it_behaves_like_a_vector_and_its_clones_do_not_change() {
        let mut random = Random::new(1);
        let (mut content, mut model) = (Content::default(), Vec::new());
        for step in 0..400 {
            let (before, before_model) = (content.clone(), model.clone());
            let len = random.below(5000) as usize;
            let at = random.below(model.len() as u64 + 1) as usize;
            match random.below(8) {
                0 => {
                    content.set_len(at as u64);
                    model.truncate(at);
                }
                1 => {
                    content.set_len((model.len() + len) as u64);
                    model.resize(model.len() + len, 0);
                }
                2 => {
                    let end = (at + len).min(model.len());
                    content.zero(at as u64..(at + len) as u64);
                    model[at..end].fill(0);
                }
                _ => {
                    let mut bytes = vec![0; len];
                    random.fill(&mut bytes);
                    content.append(&bytes);
                    model.extend_from_slice(&bytes);
                }
            }
            assert_eq!(content.to_vec(), model, "step {step}");
            assert_eq!(before.to_vec(), before_model, "the clone before step {step}");
            let (mut some, from) = (vec![0; model.len() / 3], model.len() / 2);
            assert!(content.read(from as u64, &mut some).is_some());
            assert_eq!(some, model[from..from + some.len()]);
            assert!(content.read(model.len() as u64, &mut [0]).is_none());
            if model.len() > 60_000 {
                content.set_len(9);
                model.truncate(9);
            }
        }
    }
}
