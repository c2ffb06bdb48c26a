//! One group during its GC: its copies, what commits write meanwhile, and the switch to the copies.

use std::sync::Arc;

use bifold_contract::{Pointer, Result};
use bifold_format::value::{ValueKind, ValueRecord};

use super::{
    CopyContext, GcSource,
    newest::{COLD_LOG, COLD_SEGMENT, HOT},
    since::Since,
};
use crate::{
    parts::{
        segment_groups::{Groups, Region},
        value_files::{COLD, COLLECTED, Copy, ValueFile, ValueFiles},
    },
    placements::hashkv::units::FamilyUnit,
};

/// One group of a family.
pub(super) struct Leaf {
    pub(super) region: Region,
    pub(super) hot: Option<Arc<ValueFile>>,
    pub(super) cold: Option<Arc<ValueFile>>,
    /// Its unfinished copies.
    pub(super) copies: [Option<Copy>; 2],
    /// Bytes copied to each, and to the cold log.
    pub(super) copied: [u64; 3],
    /// Bytes of tags.
    pub(super) tag_bytes: u64,
    /// For the hot file, the cold file and the cold log: bytes of the moves handed out, and the hashes of their keys.
    /// Tags that stay count as moves.
    pub(super) moved: [(u64, Vec<u64>); 3],
    /// Bytes of tagged values that died meanwhile and were not moved.
    pub(super) tagged_dead: u64,
    /// What commits have written since GC began.
    pub(super) since: Vec<Since>,
}

impl Leaf {
    pub(super) fn new(region: Region, cold: Option<Arc<ValueFile>>) -> Self {
        Self {
            region,
            hot: None,
            cold,
            copies: [None, None],
            copied: [0; 3],
            tag_bytes: 0,
            moved: Default::default(),
            tagged_dead: 0,
            since: Vec::new(),
        }
    }

    /// Copies one record and returns where it will stand. A record that goes to the cold log leaves a tag here.
    pub(super) fn copy(
        &mut self,
        copying: &mut CopyContext<'_>,
        record: &ValueRecord<'_>,
        goes_to: usize,
    ) -> Result<Pointer> {
        let to = if goes_to == COLD_LOG {
            let to = copying.log.append(copying.files, record)?;
            self.tag_bytes += u64::from(self.copy_to(copying.files, HOT)?.append_tag(record, to)?.len);
            to
        } else {
            self.copy_to(copying.files, goes_to)?.append(record)?
        };
        let bytes = if record.kind == ValueKind::Tag { &mut self.tag_bytes } else { &mut self.copied[goes_to] };
        *bytes += u64::from(to.len);
        Ok(to)
    }

    /// The copy to the hot or to the cold file.
    fn copy_to(&mut self, files: &ValueFiles, goes_to: usize) -> Result<&mut Copy> {
        Ok(match (&mut self.copies[goes_to], &self.cold) {
            (Some(copy), _) => copy,
            (none, Some(cold)) if goes_to == COLD_SEGMENT => none.insert(files.go_on_with(cold)?),
            (none, _) => none.insert(files.begin_copy([COLLECTED, COLD][goes_to], self.region.number())?),
        })
    }

    /// Files of this group that this run does not collect.
    pub(super) fn begun_since(&self, sources: &[GcSource], groups: &Groups) -> Vec<Arc<ValueFile>> {
        let mut files = groups.at(self.region.prefix).hot.files.clone();
        files.retain(|file| sources.iter().all(|source| source.file.id != file.id));
        files
    }

    /// The run is abandoned, and the index leads to some of the copies and to some of what they were made from. So all
    /// of it is in the group, as after a crash: the next run finds both, and drains both.
    pub(super) fn keep_copies(&self, groups: &mut Groups) {
        let group = groups.at_mut(self.region.prefix);
        if let Some(hot) = &self.hot {
            group.hot.keep_copy(hot, self.copied[HOT] + self.tag_bytes);
        }
        if let Some(cold) = self.cold.as_ref().filter(|_| self.copied[COLD_SEGMENT] > 0) {
            group.cold.keep_copy(cold, self.copied[COLD_SEGMENT]);
        }
    }

    /// From now on the group's files are the copies, and those that commits have begun since.
    pub(super) fn take_effect(&self, unit: FamilyUnit, sources: &[GcSource], groups: &mut Groups) {
        let (clock, begun_since) = (groups.clock, self.begun_since(sources, groups));
        let group = groups.at_mut(self.region.prefix);
        let [(hot_live, hot_hashes), (cold_live, cold_hashes), (tagged_live, tagged_hashes)] = &self.moved;
        let (hot_dead, cold_dead) = (self.copied[HOT] - hot_live, self.copied[COLD_SEGMENT] - cold_live);
        group.hot.files = self.hot.iter().cloned().chain(begun_since).collect();
        group.hot.recount(hot_hashes, *hot_live, hot_dead, clock);
        group.retag(tagged_hashes, *tagged_live, self.tagged_dead, self.tag_bytes);
        for &Since { hash, bytes, is_value } in &self.since {
            // In the cold segment they were counted when they came.
            if is_value {
                group.hot.wrote(hash, bytes)
            } else {
                group.hot.ended(hash, bytes)
            };
        }
        if unit.hot_only {
            group.cold.add(cold_hashes, *cold_live, cold_dead);
        } else {
            group.cold.files.clear();
            group.cold.recount(cold_hashes, *cold_live, cold_dead, clock);
        }
        if let Some(cold) = &self.cold {
            if group.cold.files.iter().all(|file| file.id != cold.id) {
                group.cold.files.push(Arc::clone(cold));
            }
            group.cold.open = true;
        }
        group.end_gc();
    }
}
