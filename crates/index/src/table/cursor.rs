//! Iterates over a table.
//!
//! The first block after a jump is read like that of a point read. From the second block in a row on, several are
//! read at once and more each time: a short scan reads little that it does not need, a long one makes few system
//! calls.
//!
//! Invariant: the cursor is on an entry exactly when `block` is; while `block` has a block, `at` says which.

use std::sync::Arc;

use bifold_contract::{Corruption, Entry, Error, IoSource, Result, SeqNo, Value};
use bifold_format::{
    block::BlockCursor,
    table::{Place, index::Index},
};

use super::{Table, read_ahead::ReadAhead};
use crate::cursor::{Cursor, Direction};

/// Bytes of the first and of the largest read ahead of a scan. A value that a user holds keeps the whole stretch it
/// was read in, so the largest stays small.
const SCAN_BYTES: (u64, u64) = (16 << 10, 64 << 10);

/// The same for a compaction. It holds no values and reads several tables at a time: ten inputs take 5 MiB.
const COMPACTION_BYTES: (u64, u64) = (64 << 10, 512 << 10);

/// On whose behalf a cursor reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// An iterator: uses the cache, and adds the blocks that it jumps to.
    Scan,
    /// A compaction: reads everything once, in large pieces, and does not use the cache.
    Compaction,
}

/// A position in a table.
#[derive(Debug)]
pub struct TableCursor {
    table: Arc<Table>,
    mode: ReadMode,
    /// The index, once it is needed; `Some(None)` if there are no entries.
    index: Option<Option<Value>>,
    /// The number of the block in `block`, and its place in the file.
    at: Option<(usize, Place)>,
    block: BlockCursor,
    ahead: ReadAhead,
    failed: Option<Error>,
}

/// How a cursor gets to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// From anywhere.
    Jump,
    /// From the neighbouring block.
    On(Direction),
}

/// Places a cursor in a block.
type Enter<'a> = dyn Fn(&mut BlockCursor) -> std::result::Result<(), Corruption> + 'a;

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, mode: ReadMode) -> Self {
        let ((first, max), source) = match mode {
            ReadMode::Scan => (SCAN_BYTES, IoSource::Scan),
            ReadMode::Compaction => (COMPACTION_BYTES, IoSource::Compaction),
        };
        let ahead = ReadAhead::new(first, max, source);
        Self { table, mode, index: None, at: None, block: BlockCursor::default(), ahead, failed: None }
    }

    /// Announces that about `bytes` will be read from `key` on, before it is placed there.
    ///
    /// # Errors
    /// I/O errors and corruption, of the index.
    pub fn expect(&mut self, key: &[u8], bytes: u64) -> Result<()> {
        let Some(content) = self.index()? else { return Ok(()) };
        let index = self.parse(&content)?;
        let first = index.find(key);
        if first >= index.blocks() {
            return Ok(());
        }
        let mut place = self.table.file.place(&index, first)?;
        let mut next = first + 1;
        // On average half of the first block comes before the key.
        let bytes = bytes + place.len() / 2;
        while place.len() < bytes && next < index.blocks() {
            place.end = place.end.max(self.table.file.place(&index, next)?.end);
            next += 1;
        }
        self.ahead.expect(&self.table.file, place);
        Ok(())
    }

    /// Whether the block that may have `key` must come from the device; `None` if there is none.
    ///
    /// # Errors
    /// I/O errors and corruption, of the index.
    pub fn is_cold(&mut self, key: &[u8]) -> Result<Option<bool>> {
        let Some(content) = self.index()? else { return Ok(None) };
        let index = self.parse(&content)?;
        let at = index.find(key);
        if at >= index.blocks() {
            return Ok(None);
        }
        let place = self.table.file.place(&index, at)?;
        let is_cached = self.table.cached_block(place).is_some();
        Ok(Some(!is_cached && !self.table.file.reader.is_in_memory(place.start, place.len())))
    }

    /// Jumps to the block that `choose` returns and places the cursor with `enter`. Continues block by block in
    /// `direction` until there is a current entry.
    fn place(
        &mut self,
        choose: impl FnOnce(&Index<'_>) -> Option<usize>,
        enter: &Enter<'_>,
        direction: Direction,
    ) -> Result<()> {
        self.guarded(|cursor| {
            let Some(content) = cursor.index()? else { return Ok(()) };
            let index = cursor.parse(&content)?;
            match choose(&index) {
                Some(at) => cursor.enter(&index, at, Step::Jump, enter)?,
                None => cursor.clear(),
            }
            cursor.continue_in(&index, enter, direction)
        })
    }

    /// Moves from the end of the current block to the first or last entry of the next one.
    #[cold]
    fn leave_block(&mut self, direction: Direction) -> Result<()> {
        self.guarded(|cursor| {
            let Some(content) = cursor.index()? else { return Ok(()) };
            let index = cursor.parse(&content)?;
            let enter: &Enter<'_> = match direction {
                Direction::Forward => &BlockCursor::first,
                Direction::Backward => &BlockCursor::last,
            };
            cursor.continue_in(&index, enter, direction)
        })
    }

    fn continue_in(&mut self, index: &Index<'_>, enter: &Enter<'_>, direction: Direction) -> Result<()> {
        while !self.block.is_placed() {
            let next = match (direction, self.at) {
                (_, None) => None,
                (Direction::Forward, Some((at, _))) => Some(at + 1).filter(|&next| next < index.blocks()),
                (Direction::Backward, Some((at, _))) => at.checked_sub(1),
            };
            match next {
                Some(next) => self.enter(index, next, Step::On(direction), enter)?,
                None => {
                    self.clear();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, index: &Index<'_>, at: usize, step: Step, enter: &Enter<'_>) -> Result<()> {
        if self.at.is_none_or(|(current, _)| current != at) {
            self.load_block(index, at, step)?;
        }
        enter(&mut self.block).map_err(|damage| self.damage(damage))
    }

    /// Makes block `at` the current one.
    fn load_block(&mut self, index: &Index<'_>, at: usize, step: Step) -> Result<()> {
        // The read-ahead buffer can be reused only if the old block no longer references it.
        self.clear();
        let table = &self.table;
        let place = table.file.place(index, at)?;
        let block = match (self.ahead.get(&table.file, place), self.mode, step) {
            (Some(block), _, _) => block?,
            (None, ReadMode::Scan, Step::Jump) => {
                self.ahead.reset();
                table.block(place, IoSource::Scan)?
            }
            (None, ReadMode::Scan, Step::On(direction)) => match table.cached_block(place) {
                Some(block) => block,
                None => self.ahead.read(&table.file, index, at, direction)?,
            },
            (None, ReadMode::Compaction, Step::On(direction)) => self.ahead.read(&table.file, index, at, direction)?,
            (None, ReadMode::Compaction, Step::Jump) => {
                self.ahead.reset();
                self.ahead.read(&table.file, index, at, Direction::Forward)?
            }
        };
        self.block.set_block(block).map_err(|damage| table.damage(damage, place))?;
        self.at = Some((at, place));
        if let (ReadMode::Scan, true) = (self.mode, table.file.is_mapped()) {
            // While the entries of this block are consumed. Blocks are about as long as one another.
            let next = match step {
                Step::On(Direction::Backward) => place.start.saturating_sub(place.len()),
                Step::On(Direction::Forward) | Step::Jump => place.end,
            };
            table.file.reader.touch(next, place.len());
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.block.clear();
        self.at = None;
    }

    fn index(&mut self) -> Result<Option<Value>> {
        match &self.index {
            Some(index) => Ok(index.clone()),
            None => Ok(self.index.insert(self.table.index_to_hold()?).clone()),
        }
    }

    fn parse<'a>(&self, content: &'a [u8]) -> Result<Index<'a>> {
        self.table.parse(content)
    }

    /// Damage in the current block.
    #[cold]
    fn damage(&self, damage: Corruption) -> Error {
        self.table.damage(damage, self.at.map_or(Place::default(), |(_, place)| place))
    }

    /// Makes a move unless an earlier one failed, and remembers the error if this one fails.
    fn guarded(&mut self, go: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let outcome = go(self);
        if let Err(error) = &outcome {
            self.clear();
            self.failed = Some(error.clone());
        }
        outcome
    }

    fn last_block(index: &Index<'_>) -> Option<usize> {
        index.blocks().checked_sub(1)
    }
}

impl Cursor for TableCursor {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.block.entry()
    }

    #[inline]
    fn payload(&self) -> Value {
        self.block.payload().unwrap_or_else(|| Value::copy_of(&[]))
    }

    fn first(&mut self) -> Result<()> {
        self.place(|_| Some(0), &BlockCursor::first, Direction::Forward)
    }

    fn last(&mut self) -> Result<()> {
        self.place(Self::last_block, &BlockCursor::last, Direction::Backward)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        let choose = |index: &Index<'_>| Some(index.find(key)).filter(|&at| at < index.blocks());
        self.place(choose, &|block| block.seek(key, seqno), Direction::Forward)
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        // The first block that may hold the key may start with it. Then the sought entry is the last of the block
        // before.
        let choose = |index: &Index<'_>| Self::last_block(index).map(|last| index.find(key).min(last));
        self.place(choose, &|block| block.seek_before(key), Direction::Backward)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if !self.block.is_placed() {
            return self.guarded(|_| Ok(()));
        }
        match self.block.next() {
            Ok(()) if self.block.is_placed() => Ok(()),
            Ok(()) => self.leave_block(Direction::Forward),
            Err(damage) => self.guarded(|cursor| Err(cursor.damage(damage))),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if !self.block.is_placed() {
            return self.guarded(|_| Ok(()));
        }
        match self.block.prev() {
            Ok(()) if self.block.is_placed() => Ok(()),
            Ok(()) => self.leave_block(Direction::Backward),
            Err(damage) => self.guarded(|cursor| Err(cursor.damage(damage))),
        }
    }
}
