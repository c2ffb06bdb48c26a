//! Tables whose index is in parts, where memory has no room for all of it: a reader gets the top, which is held if
//! there is room for that, and one part. Both go through the block cache as data blocks do.

use bifold_contract::{IoSource, Result, SeqNo, Value};
use bifold_format::table::{Place, index::Index, parts};

use super::{FoundEntry, InBlock, Section, Table};

impl Table {
    /// Whether a reader gets one part of the index at a time.
    #[inline]
    pub(super) fn is_read_in_parts(&self) -> bool {
        self.held.whole().is_none() && !self.top.is_empty()
    }

    /// As [`Table::find`], by one part of the index.
    #[cold]
    pub(super) fn find_in_parts(&self, key: &[u8], snapshot: SeqNo, source: IoSource) -> Result<Option<FoundEntry>> {
        let top = self.top_to_hold()?;
        let parts = self.parse_top(&top)?;
        for at in parts.find(key)..parts.blocks() {
            let content = self.part(&parts, at)?;
            match self.find_in(&self.parse_part(&content)?, key, snapshot, source)? {
                InBlock::Found(found) => return Ok(Some(found)),
                InBlock::Absent => return Ok(None),
                // Further versions of the key may follow.
                InBlock::EndsInKey => {}
            }
        }
        Ok(None)
    }

    /// The index of the parts, owned.
    pub(super) fn top_to_hold(&self) -> Result<Value> {
        let held = self.held.top().and_then(|held| held.index.clone());
        held.map_or_else(|| self.load_sealed(self.top), Ok)
    }

    /// A part of the index.
    pub(super) fn part(&self, top: &Index<'_>, part: usize) -> Result<Value> {
        self.load_sealed(self.file.part_place(top, self.top, part)?)
    }

    /// The index of the parts.
    pub(super) fn parse_top<'a>(&self, content: &'a [u8]) -> Result<Index<'a>> {
        Index::parse(content).map_err(|damage| self.damage(damage, self.top))
    }

    /// A part as an index of its blocks.
    pub(super) fn parse_part<'a>(&self, content: &'a [u8]) -> Result<Index<'a>> {
        parts::parse(content).map_err(|damage| self.damage(damage, self.file.footer.index()))
    }

    /// A sealed piece of metadata, read through the cache.
    fn load_sealed(&self, place: Place) -> Result<Value> {
        match self.load(place)? {
            Some(Section::Held(content)) => Ok(content.clone()),
            Some(Section::Loaded(content)) => Ok(content),
            None => Ok(Value::copy_of(&[])),
        }
    }
}
