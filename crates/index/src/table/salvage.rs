//! The whole blocks of a table of which anything may be damaged.
//!
//! ```text
//! footer and index whole ──▶ each block by its place; one that is damaged lies between two fences
//! else                   ──▶ from the front: a block, and the next one where it ends; behind damage, each following
//!                            offset is tried until a block begins there
//! ```
//!
//! Only the block that it stands at is in memory, and in a table without an index two megabytes of it.

use bifold_contract::{FileId, IoSource, RangeTombstone, Result, Value};
use bifold_format::{
    block::{
        BlockCursor,
        search::{self, FOUND_BYTES_MAX},
    },
    names,
    table::{FOOTER_BYTES, IndexForm, Place, index::Index},
};
use bifold_io::{Dir, Reader};

use super::file::TableFile;

/// When a read fails, so many bytes are tried at a time: a block of most file systems.
const PIECE_BYTES: usize = 4 << 10;

/// A part of a table that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Where it is in the file.
    pub place: Place,
    /// No key of it is below; `None`: not known.
    pub first: Option<Box<[u8]>>,
    /// No key of it is above; `None`: not known.
    pub last: Option<Box<[u8]>>,
    /// Why, in words.
    pub problem: String,
}

/// What is at some place of a table.
#[derive(Debug)]
pub enum Met {
    /// A data block, each entry of which can be decoded.
    Block(Value),
    /// None.
    Lost(Lost),
    /// The end of the data.
    End,
}

/// A table that may be damaged.
#[derive(Debug)]
pub struct TableSalvage {
    id: FileId,
    reader: Reader,
    /// Its file, if the footer is whole.
    file: Option<TableFile>,
    /// Its index, if that is whole, too.
    index: Option<Value>,
    /// Its range tombstones, as far as they can be read.
    pub tombstones: Vec<RangeTombstone>,
    /// Lost sections other than data blocks that may have told of keys.
    pub lost: Vec<Lost>,
    /// The next block of the index.
    at: usize,
    /// Where the next block begins, without an index.
    position: u64,
    /// The last key of the block before.
    last_key: Option<Box<[u8]>>,
    window: Vec<u8>,
    base: u64,
}

impl TableSalvage {
    /// Opens the table `id`.
    ///
    /// # Errors
    /// I/O errors of opening the file.
    pub fn open(dir: &Dir, id: FileId) -> Result<Self> {
        let reader = dir.open(&names::table(id))?;
        let mut table = Self {
            id,
            reader,
            file: None,
            index: None,
            tombstones: Vec::new(),
            lost: Vec::new(),
            at: 0,
            position: 0,
            last_key: None,
            window: Vec::new(),
            base: 0,
        };
        let end = table.reader.len();
        let file = match TableFile::open_footer(dir, id) {
            Ok(file) => file,
            Err(error) => {
                let what = "range deletes, if it had any, and the index";
                let start = end.saturating_sub(FOOTER_BYTES as u64);
                table.lose(Place { start, end }, format!("{what}: {error}"));
                return Ok(table);
            }
        };
        let tombstones = file.section(file.footer.tombstones(), IoSource::Maintenance);
        match tombstones.and_then(|section| file.decode_tombstones(section)) {
            Ok(tombstones) => table.tombstones = tombstones,
            Err(error) => table.lose(file.footer.tombstones(), format!("range deletes: {error}")),
        }
        let place = file.footer.index();
        let index = match file.footer.index_form {
            IndexForm::Whole => file.section(place, IoSource::Maintenance),
            IndexForm::Parts => file
                .read(place, IoSource::Maintenance)
                .and_then(|bytes| file.index_of_parts(&bytes, place.start).map(|found| Some(found.whole))),
        };
        let fits = |content: &Value| {
            let index = Index::parse(content).map_err(|damage| file.error(damage.at(place.start)))?;
            (0..index.blocks()).try_for_each(|at| file.place(&index, at).map(drop))
        };
        // If it is damaged, what that costs is noted stretch by stretch.
        table.index = index.and_then(|index| index.as_ref().map_or(Ok(()), fits).map(|()| index)).ok().flatten();
        table.file = Some(file);
        Ok(table)
    }

    fn lose(&mut self, place: Place, problem: String) {
        self.lost.push(Lost { place, first: None, last: None, problem });
    }

    /// Where its data ends, as far as is known.
    fn data_end(&self) -> u64 {
        self.file.as_ref().map_or(self.reader.len(), |file| file.footer.data_bytes)
    }

    /// The next block or lost stretch, from front to back.
    pub fn step(&mut self) -> Met {
        match self.index.clone() {
            Some(content) => match Index::parse(&content) {
                Ok(index) => self.step_by_index(&index),
                Err(_) => Met::End,
            },
            None => self.search(),
        }
    }

    fn step_by_index(&mut self, index: &Index<'_>) -> Met {
        let (at, Some(file)) = (self.at, &self.file) else { return Met::End };
        let Some(place) = (at < index.blocks()).then(|| file.place(index, at).ok()).flatten() else { return Met::End };
        self.at += 1;
        let checked = |block: Value| match search::check_entries(&block) {
            Ok(()) => Ok(block),
            Err(damage) => Err(file.error(damage.at(place.start))),
        };
        match file.block(place, IoSource::Maintenance).and_then(checked) {
            Ok(block) => Met::Block(block),
            Err(error) => Met::Lost(Lost {
                place,
                first: at.checked_sub(1).and_then(|before| index.fence(before)).map(Into::into),
                last: index.fence(at).map(Into::into),
                problem: error.to_string(),
            }),
        }
    }

    /// The block at the present position, or what is lost up to the next one.
    fn search(&mut self) -> Met {
        let (start, end) = (self.position, self.data_end());
        let mut at = start;
        while at < end {
            let file = (self.id, at);
            let found = search::block_at(self.bytes_at(at, end), file);
            match found {
                Some((block, len)) if at == start => {
                    self.position = at + len as u64;
                    self.last_key = last_key(&block);
                    return Met::Block(block);
                }
                Some((block, _)) => {
                    self.position = at;
                    return self.lost((start, at), first_key(&block));
                }
                None => at += 1,
            }
        }
        self.position = end;
        // Without a footer it is not known where the data ends: filter and index count as lost data then.
        if start < end { self.lost((start, end), None) } else { Met::End }
    }

    fn lost(&self, (start, end): (u64, u64), last: Option<Box<[u8]>>) -> Met {
        let problem = "no whole block begins here, and the index that would tell where others do is damaged".to_owned();
        Met::Lost(Lost { place: Place { start, end }, first: self.last_key.clone(), last, problem })
    }

    /// The bytes from `at` on: as many as a block may have, or all up to `end`.
    fn bytes_at(&mut self, at: u64, end: u64) -> &[u8] {
        let wanted = (FOUND_BYTES_MAX as u64).min(end - at);
        let is_there = at >= self.base && at + wanted <= self.base + self.window.len() as u64;
        if !is_there {
            self.base = at;
            self.window.clear();
            self.window.resize((2 * FOUND_BYTES_MAX as u64).min(end - at) as usize, 0);
            read_around_errors(&self.reader, &mut self.window, at);
        }
        let from = (at - self.base) as usize;
        &self.window[from..from + wanted as usize]
    }
}

/// Fills `buffer` from `offset` on. What the disk does not give reads as zeros, which no check matches.
pub fn read_around_errors(reader: &Reader, buffer: &mut [u8], offset: u64) {
    if reader.read_at(buffer, offset, IoSource::Maintenance).is_ok() {
        return;
    }
    for (piece, at) in buffer.chunks_mut(PIECE_BYTES).zip((offset..).step_by(PIECE_BYTES)) {
        if reader.read_at(piece, at, IoSource::Maintenance).is_err() {
            piece.fill(0);
        }
    }
}

/// The first key of a block.
#[must_use]
pub fn first_key(block: &Value) -> Option<Box<[u8]>> {
    let mut cursor = BlockCursor::default();
    cursor.set_block(block.clone()).and_then(|()| cursor.first()).ok()?;
    cursor.entry().map(|entry| entry.key.into())
}

fn last_key(block: &Value) -> Option<Box<[u8]>> {
    let mut cursor = BlockCursor::default();
    cursor.set_block(block.clone()).and_then(|()| cursor.last()).ok()?;
    cursor.entry().map(|entry| entry.key.into())
}
