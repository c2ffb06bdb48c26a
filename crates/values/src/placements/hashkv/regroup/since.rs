//! What commits and ingests write while GC of groups runs.

use std::{
    collections::BTreeMap,
    mem::replace,
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, IoSource, Result};
use bifold_format::{filter::key_hash, value::ValueKind};

use super::Family;
use crate::{
    parts::{scan::Scan, segment_groups::Groups, sync::LockExt, value_files::ValueFile},
    placements::hashkv::HashKvState,
};

/// A record that a commit has written during GC.
pub(super) struct Since {
    pub hash: u64,
    pub bytes: u64,
    pub is_value: bool,
}

impl Family {
    /// Skips keys that commits have written since: they stay where those put them.
    pub(super) fn pass_over_since(&mut self, state: &Mutex<HashKvState>) -> Result<()> {
        let begun_since = self.begun_since(&state.hold().groups);
        for file in begun_since.into_values() {
            let end = file.len();
            let begin = replace(self.seen.entry(file.id).or_insert_with(|| file.start()), end);
            let mut scan = Scan::new(&file, begin, end, IoSource::Gc);
            while let Some((record, len)) = scan.sound()? {
                // A tag left by GC of the cold log belongs to a value that nobody has written since.
                if record.kind == ValueKind::Tag {
                    continue;
                }
                let hash = key_hash(record.key);
                // The file of an ingest may be that of other groups, too.
                let Some(leaf) = self.leaves.iter_mut().find(|leaf| leaf.region.covers(hash)) else { continue };
                leaf.since.push(Since { hash, bytes: u64::from(len), is_value: record.kind == ValueKind::Value });
                let copied = self.keys.find(hash, record.key).and_then(|number| self.keys.at(number).copied);
                if let Some(copied) = copied {
                    self.copied[copied.get() as usize - 1].is_old = true;
                }
            }
        }
        Ok(())
    }

    /// The files of its groups that this run does not collect, each once.
    fn begun_since(&self, groups: &Groups) -> BTreeMap<FileId, Arc<ValueFile>> {
        let files = self.leaves.iter().flat_map(|leaf| leaf.begun_since(&self.sources, groups));
        files.map(|file| (file.id, file)).collect()
    }
}
