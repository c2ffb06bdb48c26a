//! Reads several blocks at once, for cursors that continue in one direction.
//!
//! Where all of a window is in memory, as far as is known, and mapped, a scan reads it block by block: that takes no
//! call, and the bytes go into a buffer that the processor still has in its cache. The block after the present one is
//! prefetched.

use std::sync::Arc;

use bifold_contract::{IoSource, Result, Value};
use bifold_format::{
    compression::zeroed,
    table::{Place, index::Index},
};
use bifold_io::Reader;

use super::file::TableFile;
use crate::cursor::Direction;

/// A range of the file in memory: whole blocks, verified when they are requested.
#[derive(Debug)]
pub(super) struct ReadAhead {
    buffer: Option<Arc<[u8]>>,
    place: Place,
    /// `buffer` has no more than one block of `place`: each is read through mapped pages when it is requested.
    by_block: bool,
    /// The size of the next read.
    window_bytes: u64,
    first_bytes: u64,
    max_bytes: u64,
    /// A window of the full size was read before.
    is_long: bool,
    /// What a scan is expected to read, as it was announced, and in which direction.
    expected: Option<(Place, Direction)>,
    source: IoSource,
    /// The file opened once more for a compaction, which reads all of it: the system may read ahead. Readers of the
    /// table share the other one, where the system reads what it is asked for and nothing more. What was not in the
    /// system's cache before does not stay there.
    in_order: Option<Reader>,
}

impl ReadAhead {
    /// Starts with reads of `first_bytes` and doubles them up to `max_bytes`.
    pub(super) fn new(first_bytes: u64, max_bytes: u64, source: IoSource) -> Self {
        Self {
            buffer: None,
            place: Place::default(),
            by_block: false,
            window_bytes: first_bytes,
            first_bytes,
            max_bytes,
            is_long: false,
            expected: None,
            source,
            in_order: None,
        }
    }

    /// Announces `place`, from the block where a cursor will begin to where it will end in `direction`. Windows end
    /// there, too.
    pub(super) fn expect(&mut self, file: &TableFile, place: Place, direction: Direction) {
        file.reader.prefetch(place.start, place.len());
        self.expected = Some((place, direction));
    }

    /// How many bytes from `block` on in `direction` are expected to be read: 0 if none were announced, or all of them
    /// are behind.
    fn expected_from(&self, block: Place, direction: Direction) -> u64 {
        let Some((place, _)) = self.expected.filter(|(_, announced)| *announced == direction) else { return 0 };
        match direction {
            Direction::Forward => place.end.saturating_sub(block.start),
            Direction::Backward => block.end.saturating_sub(place.start),
        }
    }

    /// The block at `place`, if it is in the window.
    pub(super) fn get(&mut self, file: &TableFile, place: Place) -> Option<Result<Value>> {
        if place.start < self.place.start || place.end > self.place.end {
            return None;
        }
        if self.by_block {
            return Some(self.mapped_block(file, place));
        }
        let buffer = self.buffer.as_ref()?;
        Some(file.block_in(buffer, self.place.start, place))
    }

    /// A block of a window that is read block by block.
    fn mapped_block(&mut self, file: &TableFile, block: Place) -> Result<Value> {
        let window = std::mem::take(&mut self.place);
        let buffer = self.fill(file, block)?;
        let content = file.block_in(buffer, block.start, block)?;
        self.place = window;
        Ok(content)
    }

    /// Reads block `at` and those that follow it in `direction`, as many as fit the window.
    pub(super) fn read(
        &mut self,
        file: &TableFile,
        index: &Index<'_>,
        at: usize,
        direction: Direction,
    ) -> Result<Value> {
        let block = file.place(index, at)?;
        let expected_bytes = self.expected_from(block, direction);
        let window_bytes = match expected_bytes {
            0 => self.window_bytes,
            expected => expected.min(self.max_bytes),
        };
        let mut place = block;
        let mut last = at;
        while let Some(next) = direction.next(last, index.blocks()) {
            let grown = place.with(file.place(index, next)?);
            if grown.len() > window_bytes {
                break;
            }
            (place, last) = (grown, next);
        }
        if self.is_long && self.source != IoSource::Compaction {
            self.announce_next(file, place, direction);
        }
        if expected_bytes == 0 {
            self.is_long = self.window_bytes == self.max_bytes;
            self.window_bytes = (self.window_bytes * 2).min(self.max_bytes);
        }
        self.by_block = self.source == IoSource::Scan
            && file.is_mapped()
            && file.reader.is_window_in_memory(place.start, place.len());
        if self.by_block {
            self.place = place;
            return self.mapped_block(file, block);
        }
        let buffer = self.fill(file, place)?;
        file.block_in(buffer, place.start, block)
    }

    /// Has the device read the window after this one while this one is consumed. The system reads nothing ahead by
    /// itself.
    fn announce_next(&self, file: &TableFile, place: Place, direction: Direction) {
        let data_bytes = file.footer.data_bytes;
        let (start, end) = match direction {
            Direction::Forward => (place.end, place.end.saturating_add(self.max_bytes).min(data_bytes)),
            Direction::Backward => (place.start.saturating_sub(self.max_bytes), place.start),
        };
        if start < end {
            file.reader.prefetch(start, end - start);
        }
    }

    /// Drops the buffer and starts with small reads again.
    pub(super) fn reset(&mut self) {
        self.buffer = None;
        self.place = Place::default();
        self.by_block = false;
        self.window_bytes = self.first_bytes;
        self.is_long = false;
    }

    fn fill(&mut self, file: &TableFile, place: Place) -> Result<&Arc<[u8]>> {
        self.place = Place::default();
        let bytes = place.len() as usize;
        // The buffer is reused unless a reader holds a value in it.
        let fits = |buffer: &mut Arc<[u8]>| buffer.len() >= bytes && Arc::get_mut(buffer).is_some();
        let old = self.buffer.take().and_then(|mut buffer| fits(&mut buffer).then_some(buffer));
        let mut buffer = old.unwrap_or_else(|| zeroed(bytes));
        if let Some(free) = Arc::get_mut(&mut buffer) {
            let free = &mut free[..bytes];
            match &mut self.in_order {
                Some(reader) => reader.read_once(free, place.start, self.source)?,
                none if self.source == IoSource::Compaction => {
                    none.insert(file.open_in_order()?).read_once(free, place.start, self.source)?;
                }
                _ => file.reader.read_at(free, place.start, self.source)?,
            }
        }
        self.place = place;
        Ok(self.buffer.insert(buffer))
    }
}
