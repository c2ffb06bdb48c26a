//! Iterates over a table.
//!
//! The first block after a jump is read like that of a point read. From the second block in a row on, several are
//! read at once and more each time: a short scan reads little that it does not need, a long one makes few system
//! calls.
//!
//! A merge writes what it reads in the order in which it reads it. So for a compaction, each block is checked once: its
//! entries must be in order and lie between its fences.
//!
//! Invariant: the cursor is on an entry exactly when `block` is; while `block` has a block, `at` says which.

use std::{cmp::Ordering, sync::Arc};

use bifold_contract::{Corruption, Entry, Error, IoSource, Result, SeqNo, Value, planted};
use bifold_format::{
    block::{BlockCursor, StreamOrder},
    table::{Place, index::Index},
};

use super::{Table, left_out::LeftOutBlocks, read_ahead::ReadAhead};
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
    /// The index, once it is needed.
    index: HeldIndex,
    /// The number of the block in `block`, in the index or its current part, and its place in the file.
    at: Option<(usize, Place)>,
    block: BlockCursor,
    /// The last entry of `block`, if that was checked.
    order: StreamOrder,
    ahead: ReadAhead,
    /// If it leaves out blocks that cannot be read, where it notes them. It reads block by block then.
    left_out: Option<Arc<LeftOutBlocks>>,
    failed: Option<Error>,
}

/// What a cursor has of the index of its table.
#[derive(Debug)]
enum HeldIndex {
    /// Nothing yet.
    Nothing,
    /// That there are no entries.
    NoEntries,
    /// All of it.
    Whole(Value),
    /// The index of its parts, and the current part with its number.
    Parts(Value, Option<(usize, Value)>),
}

/// Where a cursor is to be placed.
#[derive(Clone, Copy, Debug)]
enum Goal<'a> {
    First,
    Last,
    /// In the first block that may have the key; nowhere if there is none.
    Key(&'a [u8]),
    /// There, or in the last one.
    KeyOrLast(&'a [u8]),
}

impl<'a> Goal<'a> {
    /// Where a cursor begins that goes from `key` in `direction`.
    fn from(key: &'a [u8], direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Key(key),
            Direction::Backward => Self::KeyOrLast(key),
        }
    }

    fn choose(self, index: &Index<'_>) -> Option<usize> {
        let last = index.blocks().checked_sub(1)?;
        match self {
            Self::First => Some(0),
            Self::Last => Some(last),
            Self::Key(key) => Some(index.find(key)).filter(|&at| at <= last),
            Self::KeyOrLast(key) => Some(index.find(key).min(last)),
        }
    }
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
        let (index, block, order) = (HeldIndex::Nothing, BlockCursor::default(), StreamOrder::default());
        Self { table, mode, index, at: None, block, order, ahead, left_out: None, failed: None }
    }

    /// From now on it leaves out blocks that cannot be read, and notes them: see [`super::left_out`].
    pub(crate) fn leave_out_damage(&mut self, noted: &Arc<LeftOutBlocks>) {
        self.left_out = Some(Arc::clone(noted));
    }

    /// Announces that about `bytes` will be read from `key` on in `direction`, before it is placed there.
    ///
    /// # Errors
    /// I/O errors and corruption, of the index.
    pub fn expect(&mut self, key: &[u8], direction: Direction, bytes: u64) -> Result<()> {
        let goal = Goal::from(key, direction);
        let Some(content) = self.piece(goal)? else { return Ok(()) };
        let index = self.parse(&content)?;
        let Some(first) = goal.choose(&index) else { return Ok(()) };
        let mut place = self.table.file.place(&index, first)?;
        // On average half of the first block is on the other side of the key.
        let bytes = bytes + place.len() / 2;
        let mut at = first;
        while place.len() < bytes
            && let Some(next) = direction.next(at, index.blocks())
        {
            place = place.with(self.table.file.place(&index, next)?);
            at = next;
        }
        self.ahead.expect(&self.table.file, place, direction);
        Ok(())
    }

    /// Whether the block where a cursor that goes from `key` in `direction` begins must come from the device; `None` if
    /// there is none.
    ///
    /// # Errors
    /// I/O errors and corruption, of the index.
    pub fn is_cold(&mut self, key: &[u8], direction: Direction) -> Result<Option<bool>> {
        let goal = Goal::from(key, direction);
        let Some(content) = self.piece(goal)? else { return Ok(None) };
        let index = self.parse(&content)?;
        let Some(at) = goal.choose(&index) else { return Ok(None) };
        let place = self.table.file.place(&index, at)?;
        let table = &self.table;
        // Only a look, and no request of the cache.
        let is_cached = !table.file.is_mapped() && table.context.cache().has(table.meta.id, place.start);
        Ok(Some(!is_cached && !table.file.reader.is_in_memory(place.start, place.len())))
    }

    /// Jumps to the block of `target` and places the cursor with `enter`. Continues block by block in `direction` until
    /// there is a current entry.
    fn place(&mut self, target: Goal<'_>, enter: &Enter<'_>, direction: Direction) -> Result<()> {
        self.guarded(|cursor| {
            let Some(content) = cursor.piece(target)? else {
                cursor.clear();
                return Ok(());
            };
            let index = cursor.parse(&content)?;
            match target.choose(&index) {
                Some(at) => cursor.enter(&index, at, Step::Jump, enter)?,
                None => cursor.clear(),
            }
            cursor.continue_in(content, enter, direction)
        })
    }

    /// Moves from the end of the current block to the first or last entry of the next one.
    #[cold]
    fn leave_block(&mut self, direction: Direction) -> Result<()> {
        self.guarded(|cursor| {
            let Some(content) = cursor.current_piece() else { return Ok(()) };
            let enter: &Enter<'_> = match direction {
                Direction::Forward => &BlockCursor::first,
                Direction::Backward => &BlockCursor::last,
            };
            cursor.continue_in(content, enter, direction)
        })
    }

    /// Continues from the current block, in the piece `content` of the index and in its neighbours.
    fn continue_in(&mut self, mut content: Value, enter: &Enter<'_>, direction: Direction) -> Result<()> {
        while !self.block.is_placed() {
            let index = self.parse(&content)?;
            let Some((at, _)) = self.at else { break };
            if let Some(next) = direction.next(at, index.blocks()) {
                self.enter(&index, next, Step::On(direction), enter)?;
                continue;
            }
            self.clear();
            if planted!("end_with_part") {
                break;
            }
            let Some(neighbour) = self.neighbour(direction)? else { break };
            content = neighbour;
            let index = self.parse(&content)?;
            let target = if direction == Direction::Forward { Goal::First } else { Goal::Last };
            if let Some(at) = target.choose(&index) {
                self.enter(&index, at, Step::On(direction), enter)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, index: &Index<'_>, at: usize, step: Step, enter: &Enter<'_>) -> Result<()> {
        if self.at.is_none_or(|(current, _)| current != at) {
            match self.load_block(index, at, step) {
                Err(error) if self.left_out.is_some() && error.is_unreadable() => {
                    return self.leave_out(index, at, error);
                }
                loaded => loaded?,
            }
        }
        enter(&mut self.block).map_err(|damage| self.damage(damage))
    }

    /// Takes up a position in block `at` without entries, so that the move continues in the next block.
    #[cold]
    fn leave_out(&mut self, index: &Index<'_>, at: usize, error: Error) -> Result<()> {
        // A place that the index cannot have is damage of the index, and not left out.
        let place = self.table.file.place(index, at)?;
        let fence = match &self.index {
            HeldIndex::Parts(top, Some((part, _))) if *part > 0 => self.table.parse_top(top)?.fence(*part - 1),
            _ => None,
        };
        if let Some(noted) = &self.left_out
            && !planted!("left_out_unnoted")
        {
            noted.note(self.table.left_out((index, at), fence, (place, error)));
        }
        self.at = Some((at, place));
        Ok(())
    }

    /// Makes block `at` the current one.
    fn load_block(&mut self, index: &Index<'_>, at: usize, step: Step) -> Result<()> {
        // The read-ahead buffer can be reused only if the old block no longer references it.
        self.clear();
        let table = &self.table;
        let place = table.file.place(index, at)?;
        let block = match (self.ahead.get(&table.file, place), self.mode, step) {
            (Some(block), _, _) => block?,
            (None, ..) if self.left_out.is_some() => table.sound_block(place)?,
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
        if self.mode == ReadMode::Compaction && !planted!("blocks_in_any_order") {
            self.check_order(index, (at, place), &block, step)?;
        }
        let table = &self.table;
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

    /// Checks that the entries of block `at` are in order, behind those of the block before if that was the last one
    /// checked, and between the block's fences.
    fn check_order(&mut self, index: &Index<'_>, (at, place): (usize, Place), block: &[u8], step: Step) -> Result<()> {
        if step != Step::On(Direction::Forward) {
            self.order.forget();
        }
        let table = &self.table;
        let first = self.order.check(block).map_err(|damage| table.damage(damage, place))?;
        let last = self.order.last_key();
        // A fence is equal to the first key behind it where the versions of one key straddle two blocks.
        let before = match (at.checked_sub(1), &self.index) {
            (Some(before), _) => index.compare_fence(before, first),
            (None, HeldIndex::Parts(top, Some((part, _)))) if *part > 0 => {
                table.parse_top(top)?.compare_fence(*part - 1, first)
            }
            (None, _) => Some(table.meta.smallest[..].cmp(first)),
        };
        let is_between = before.is_some_and(Ordering::is_le)
            && index.compare_fence(at, last).is_some_and(Ordering::is_ge)
            && *last <= *table.meta.largest;
        if is_between {
            return Ok(());
        }
        let found = format!("keys from {} to {}", first.escape_ascii(), last.escape_ascii());
        self.order.forget();
        Err(self.table.damage(Corruption::new(0, "data block", "keys between the fences of the block", found), place))
    }

    fn clear(&mut self) {
        self.block.clear();
        self.at = None;
    }

    /// The index, or the part of it that has `target`; `None` if there is none.
    fn piece(&mut self, target: Goal<'_>) -> Result<Option<Value>> {
        if matches!(self.index, HeldIndex::Nothing) {
            self.index = match self.table.is_read_in_parts() {
                true => HeldIndex::Parts(self.table.top_to_hold()?, None),
                false => self.table.index_to_hold()?.map_or(HeldIndex::NoEntries, HeldIndex::Whole),
            };
        }
        match &self.index {
            HeldIndex::Nothing | HeldIndex::NoEntries => Ok(None),
            HeldIndex::Whole(index) => Ok(Some(index.clone())),
            HeldIndex::Parts(top, _) => {
                let top = top.clone();
                let parts = self.table.parse_top(&top)?;
                target.choose(&parts).map(|part| self.turn_to(&parts, part)).transpose()
            }
        }
    }

    /// The index, or its current part.
    fn current_piece(&self) -> Option<Value> {
        match &self.index {
            HeldIndex::Whole(index) => Some(index.clone()),
            HeldIndex::Parts(_, part) => part.as_ref().map(|(_, content)| content.clone()),
            HeldIndex::Nothing | HeldIndex::NoEntries => None,
        }
    }

    /// Makes `part` the current part.
    fn turn_to(&mut self, parts: &Index<'_>, part: usize) -> Result<Value> {
        if let HeldIndex::Parts(_, Some((current, content))) = &self.index
            && *current == part
        {
            return Ok(content.clone());
        }
        // The number of the current block is that in another part.
        self.clear();
        let content = self.table.part(parts, part)?;
        if let HeldIndex::Parts(_, current) = &mut self.index {
            *current = Some((part, content.clone()));
        }
        Ok(content)
    }

    /// Makes the part before or after the current one the current one; `None` if there is none.
    fn neighbour(&mut self, direction: Direction) -> Result<Option<Value>> {
        let HeldIndex::Parts(top, Some((part, _))) = &self.index else { return Ok(None) };
        let (top, part) = (top.clone(), *part);
        let parts = self.table.parse_top(&top)?;
        direction.next(part, parts.blocks()).map(|next| self.turn_to(&parts, next)).transpose()
    }

    fn parse<'a>(&self, content: &'a [u8]) -> Result<Index<'a>> {
        match self.index {
            HeldIndex::Parts(..) => self.table.parse_part(content),
            _ => self.table.parse(content),
        }
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
        self.place(Goal::First, &BlockCursor::first, Direction::Forward)
    }

    fn last(&mut self) -> Result<()> {
        self.place(Goal::Last, &BlockCursor::last, Direction::Backward)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.place(Goal::Key(key), &|block| block.seek(key, seqno), Direction::Forward)
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        // The first block that may hold the key may start with it. Then the sought entry is the last of the block
        // before.
        self.place(Goal::KeyOrLast(key), &|block| block.seek_before(key), Direction::Backward)
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
