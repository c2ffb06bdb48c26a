//! One group during its GC: its copies, what commits write meanwhile, and the switch to the copies.

use std::sync::Arc;

use bifold_contract::{FileId, IoSource, Pointer, Result};
use bifold_format::{
    filter::key_hash,
    value::{ValueKind, ValueRecord},
};

use super::{
    CopyContext, GcSource,
    newest::{COLD_LOG, COLD_SEGMENT, HOT},
};
use crate::{
    parts::{
        scan::Scan,
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
    /// What commits have written since GC began, and how far their files have been read.
    since: Vec<Since>,
    seen: Vec<(FileId, u64)>,
}

/// A record that a commit has written during GC.
struct Since {
    hash: u64,
    bytes: u64,
    is_value: bool,
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
            seen: Vec::new(),
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

    /// Reports the keys of what was appended to these files.
    pub(super) fn look_at(&mut self, files: &[Arc<ValueFile>], mut report: impl FnMut(u64, &[u8])) -> Result<()> {
        for file in files {
            let at = self.seen.iter().position(|(id, _)| *id == file.id).unwrap_or_else(|| {
                self.seen.push((file.id, file.start()));
                self.seen.len() - 1
            });
            let end = file.len();
            let begin = std::mem::replace(&mut self.seen[at].1, end);
            let mut scan = Scan::new(file, begin, end, IoSource::Gc);
            while let Some((record, len)) = scan.sound()? {
                // A tag left by GC of the cold log belongs to a value that nobody has written since.
                if record.kind == ValueKind::Tag {
                    continue;
                }
                let hash = key_hash(record.key);
                report(hash, record.key);
                let is_value = record.kind == ValueKind::Value;
                self.since.push(Since { hash, bytes: u64::from(len), is_value });
            }
        }
        Ok(())
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
        group.busy = false;
    }
}
