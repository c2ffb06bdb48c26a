//! What GC of groups copies: the newest record of each key that counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::replace,
    num::NonZeroU32,
    sync::Arc,
};

use bifold_contract::{Corruption, FileId, IoSource, Pointer, Result, planted};
use bifold_format::{
    filter::key_hash,
    value::{ValueKind, ValueRecord},
};

use super::{
    CopiedValue, Family, GcSource,
    newest::{COLD_LOG, Newest, Tag},
};
use crate::{
    parts::{covered_ranges::CoveredRanges, key_table::make_room, scan::Scan, value_files::ValueFiles},
    placement::GcContext,
    placements::hashkv::{cold_log::End, options::Cold, units::FamilyUnit},
};

impl Family {
    /// Copies the records that count, each to the files of its group.
    pub(super) fn copy(&mut self, copying: &mut CopyContext<'_>) -> Result<()> {
        self.find_newest()?;
        self.end_covered(&copying.ranges);
        let counts = |&key: &u32| !copying.ranges.covers(self.keys.key(key), self.keys.at(key).seqno);
        let place = |key: u32| (self.keys.at(key).source, self.keys.at(key).offset, key);
        let mut counting: Vec<(u32, u64, u32)> = Vec::with_capacity(self.keys.numbers().len());
        counting.extend(self.keys.numbers().filter(counts).map(place));
        counting.sort_unstable();
        let mut counting = counting.into_iter().peekable();
        for at in 0..self.sources.len() {
            let file = Arc::clone(&self.sources[at].file);
            let mut scan = Scan::new(&file, file.start(), file.len(), IoSource::Gc);
            while let Some((_, offset, key)) = counting.next_if(|&(source, ..)| source as usize == at) {
                scan.skip_to(offset);
                let Some((record, len)) = scan.sound()? else { break };
                let from = Pointer { file: file.id, epoch: 0, offset, len };
                self.copy_record(copying, key, &record, from)?;
            }
        }
        Ok(())
    }

    /// Copies the newest record of a key, if it must stay.
    fn copy_record(
        &mut self,
        copying: &mut CopyContext<'_>,
        key: u32,
        record: &ValueRecord<'_>,
        from: Pointer,
    ) -> Result<()> {
        let newest = self.keys.at(key).clone();
        let tag = newest.tag.as_deref().copied();
        if !copying.stays(record, tag, self.unit) {
            return Ok(());
        }
        let from = match record.kind {
            ValueKind::Value => copying.current(record.key, from, &self.sources)?,
            ValueKind::Tag if !copying.is_in_log(record.key)? => {
                end(&mut self.ended, tag.as_ref());
                None
            }
            _ => Some(from),
        };
        let Some(from) = from else { return Ok(()) };
        let (hash, goes_to) = (self.keys.hash(key), newest.goes_to(copying.cold, record.kind));
        let Some(leaf) = self.leaves.iter().position(|leaf| leaf.region.covers(hash)) else { return Ok(()) };
        let to = self.leaves[leaf].copy(copying, record, goes_to)?;
        let (goes_to, bytes, moves) = match (record.kind, tag) {
            (ValueKind::Value, _) => (goes_to, to.len, Some((from, to))),
            (_, Some(tag)) => (COLD_LOG, tag.len, None),
            _ => return Ok(()),
        };
        make_room(&mut self.copied, 1);
        self.copied.push(CopiedValue { key, leaf: leaf as u32, goes_to: goes_to as u8, is_old: false, bytes, moves });
        self.keys.at_mut(key).copied = NonZeroU32::new(self.copied.len() as u32);
        Ok(())
    }

    /// The newest record of each key (§3.3: "the latest version counts").
    fn find_newest(&mut self) -> Result<()> {
        for (at, GcSource { file, is_cold }) in self.sources.iter().enumerate() {
            // The values that count are copied from the same files in a moment.
            let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Gc).first_of_two();
            while let Some((record, _)) = scan.sound()? {
                let tagged = record.tagged().map_err(|damage: Corruption| damage.of(file.reader().path()))?;
                let tag = tagged.map(|to| Box::new(Tag { file: to.file, len: to.len }));
                let (hash, hot_records) = (key_hash(record.key), u32::from(!is_cold));
                let (seqno, offset, source) = (record.seqno, record.offset, at as u32);
                let this = Newest { seqno, source, hot_records, offset, copied: None, tag };
                match self.keys.find(hash, record.key) {
                    Some(number) => {
                        let known = self.keys.at_mut(number);
                        let hot_records = known.hot_records + hot_records;
                        let other = match known.order() >= this.order() {
                            true => this,
                            false => replace(known, this),
                        };
                        known.hot_records = hot_records;
                        end(&mut self.ended, other.tag.as_deref());
                    }
                    None => self.keys.add(hash, record.key, this),
                }
            }
        }
        Ok(())
    }

    /// Tags of keys that range deletes cover no longer count either.
    fn end_covered(&mut self, ranges: &CoveredRanges) {
        for key in self.keys.numbers() {
            let Newest { seqno, tag, .. } = self.keys.at(key);
            if tag.is_some() && ranges.covers(self.keys.key(key), *seqno) {
                end(&mut self.ended, tag.as_deref());
            }
        }
    }
}

/// What copying needs.
pub(super) struct CopyContext<'a> {
    pub(super) files: &'a ValueFiles,
    pub(super) cold: Cold,
    /// All range deletes.
    pub(super) ranges: Arc<CoveredRanges>,
    /// The files of the cold log, and its end.
    pub(super) log_files: BTreeSet<FileId>,
    pub(super) log: End,
    /// Asked what is current, if entries may vanish from it.
    pub(super) index: Option<&'a dyn GcContext>,
}

impl CopyContext<'_> {
    /// Where the index has the value of the newest record of a key, which is at `from`; `None` if it has it no more. A
    /// file that an earlier run has drained may still be there after a crash, with a second copy of the record: the
    /// index may have either.
    fn current(&self, key: &[u8], from: Pointer, sources: &[GcSource]) -> Result<Option<Pointer>> {
        let Some(index) = self.index else { return Ok(Some(from)) };
        let current = index.look_up(key)?;
        Ok(current.filter(|at| sources.iter().any(|source| source.file.id == at.file)))
    }

    /// Whether the index has the value of a tag that is the newest record of its key. If it has vanished, nothing but
    /// the tag can tell the log.
    fn is_in_log(&self, key: &[u8]) -> Result<bool> {
        let Some(index) = self.index.filter(|_| !planted!("tags_are_not_asked")) else { return Ok(true) };
        Ok(index.look_up(key)?.is_some_and(|at| self.log_files.contains(&at.file)))
    }

    /// Whether a record that is the newest of its key must stay. A tag of a deleted file says nothing: the value has
    /// moved and left another tag, or is dead. A note says that older values are dead. If the cold segment is not
    /// collected too, it may hold older values.
    fn stays(&self, record: &ValueRecord<'_>, tag: Option<Tag>, unit: FamilyUnit) -> bool {
        unit.hot_only
            || match record.kind {
                ValueKind::Value => true,
                _ => tag.is_some_and(|tag| self.log_files.contains(&tag.file)),
            }
    }
}

/// Notes that the value of a tag is dead.
fn end(ended: &mut BTreeMap<FileId, u64>, tag: Option<&Tag>) {
    if let Some(Tag { file, len }) = tag {
        *ended.entry(*file).or_default() += u64::from(*len);
    }
}
