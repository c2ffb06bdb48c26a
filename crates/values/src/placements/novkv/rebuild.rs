//! GC: files become sorted tables without what was dropped of them (NovKV §III-C), and drop files become one.
//!
//! ```text
//! the numbers that the drop-keys of the sources name ─▶ a set
//! sources, front to back: records not in the set ─▶ sorted by key ─▶ a new table, synced
//! one edit: removes the sources, adds the table, removes drop files that are about nothing else
//!           └─ then readers find the table; drop-keys that came meanwhile name its numbers as before
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bifold_contract::{FileId, IoSource, Result, SeqNo, ValueEdit, ValueFileMeta, planted};
use bifold_format::{
    sorted::SortedProperties,
    value::{Stored, ValueKind},
};

use super::{NovKvShared, Tables};
use crate::{
    parts::{
        drop_keys::{self, DropBlock, DropFile},
        hash_map::HashMap,
        scan::Scan,
        sorted_table::{SortedTable, SortedWriter},
        sync::LockExt,
        value_files::{SORTED, ValueFile, ValueFiles},
    },
    placement::{GcContext, GcOutcome},
};

/// What the edit of a rebuild changes for readers.
struct Switch {
    /// The files it removes for good.
    sources: Vec<FileId>,
    /// The file numbers that led to them.
    numbers: Vec<FileId>,
    /// The drop files whose blocks the new table reflects.
    regarded: BTreeSet<FileId>,
    table: Option<Arc<SortedTable>>,
}

impl NovKvShared {
    /// Takes note of the drop files of an installed edit.
    pub(super) fn put_in_force(&self, edit: &ValueEdit) {
        let is_gone = |id: &FileId| edit.removed.contains(id) && edit.added.iter().all(|meta| meta.id != *id);
        let mut drops = self.drops.hold();
        edit.added.iter().for_each(|meta| drops.installed(meta.id));
        edit.removed.iter().filter(|id| is_gone(id)).for_each(|&id| drops.removed(id));
    }

    /// Leads readers to a new table.
    fn switch(&self, switch: &Switch) {
        let mut drops = self.drops.hold();
        let all = drops.files().keys().copied().collect();
        let regarded = if planted!("regard_all_drops") { &all } else { &switch.regarded };
        switch.numbers.iter().for_each(|&number| drops.regarded(number, regarded));
        let mut tables = Tables::clone(&self.tables.load());
        switch.numbers.iter().for_each(|number| drop(tables.by_number.remove(number)));
        switch.sources.iter().for_each(|source| drop(tables.by_file.remove(source)));
        switch.table.iter().for_each(|table| tables.add(Arc::clone(table)));
        self.tables.store(Arc::new(tables));
    }

    /// The drop files that are left out and that one of these files reflects. What it has dropped by them is gone, so
    /// their blocks must not be counted again once they can be read. For the other files that costs what they drop.
    fn regarded_unread(&self, sources: &[Arc<ValueFile>]) -> BTreeSet<FileId> {
        let left_out = if planted!("forget_regarded_unread") { BTreeSet::new() } else { self.files.left_out_files() };
        let tables = self.tables.load();
        let tables = sources.iter().filter_map(|file| tables.by_file.get(&file.id));
        tables.flat_map(|table| &table.properties.regarded).copied().filter(|id| left_out.contains(id)).collect()
    }

    /// The file numbers that lead to a file, and how many bytes of records each has in it.
    pub(super) fn numbers_of(&self, file: &ValueFile) -> Vec<(FileId, u64)> {
        if file.description.class != SORTED {
            return vec![(file.id, file.len() - file.start())];
        }
        self.tables.load().by_file.get(&file.id).map_or_else(Vec::new, |table| table.properties.aliases.clone())
    }
}

/// A version that is not dropped; key and stored value stand in [`Survivors::bytes`].
struct Survivor {
    seqno: SeqNo,
    key: std::ops::Range<usize>,
    stored: Stored<'static>,
    body: std::ops::Range<usize>,
}

/// What the sources hold that was not dropped.
#[derive(Default)]
struct Survivors {
    bytes: Vec<u8>,
    all: Vec<Survivor>,
    record_bytes: u64,
}

impl Survivors {
    fn read(&mut self, file: &ValueFile, values_end: u64, dropped: &HashMap<SeqNo, ()>) -> Result<()> {
        let mut scan = Scan::new(file, file.start(), values_end, IoSource::Gc);
        while let Some((record, len)) = scan.sound()? {
            if record.kind != ValueKind::Value || dropped.contains_key(&record.seqno) {
                continue;
            }
            self.record_bytes += u64::from(len);
            let key = self.put(record.key);
            let body = self.put(record.body());
            self.all.push(Survivor { seqno: record.seqno, key, stored: record.stored().emptied(), body });
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let by_version =
            |a: &Survivor, b: &Survivor| bytes[a.key.clone()].cmp(&bytes[b.key.clone()]).then(b.seqno.cmp(&a.seqno));
        self.all.sort_unstable_by(by_version);
    }

    fn write(&self, writer: &mut SortedWriter) -> Result<()> {
        let put = |survivor: &Survivor| {
            let stored = survivor.stored.with_body(&self.bytes[survivor.body.clone()]);
            writer.add(&self.bytes[survivor.key.clone()], survivor.seqno, stored)
        };
        self.all.iter().try_for_each(put)
    }
}

/// Collects a few files into one table.
pub(super) fn rebuild(shared: &NovKvShared, units: &[FileId], gc: &dyn GcContext) -> Result<GcOutcome> {
    let sources: Vec<Arc<ValueFile>> = units.iter().filter_map(|&id| shared.files.get(id)).collect();
    if sources.is_empty() {
        return Ok(GcOutcome::freed(0));
    }
    let numbers: BTreeMap<FileId, u64> = sources.iter().flat_map(|file| shared.numbers_of(file)).collect();
    let (regarded, blocks): (BTreeSet<FileId>, Vec<_>) = {
        let drops = shared.drops.hold();
        let blocks = numbers.keys().flat_map(|&number| drops.about(number).iter().map(move |b| (number, *b)));
        (drops.files().keys().copied().chain(shared.regarded_unread(&sources)).collect(), blocks.collect())
    };
    let mut live = numbers.clone();
    for (number, block) in &blocks {
        let left = live.entry(*number).or_default();
        *left = left.saturating_sub(block.bytes);
    }
    live.retain(|_, bytes| *bytes > 0);
    let old_bytes: u64 = sources.iter().map(|file| file.len()).sum();
    // Nothing needs to be known of files without any valid value.
    let made = if live.is_empty() { None } else { table(shared, &sources, &blocks, &live, &regarded)? };
    let (added, table) = made.unzip();
    let installed_bytes = added.as_ref().map_or(0, |meta: &ValueFileMeta| meta.bytes);
    let switch = Switch {
        sources: sources.iter().map(|file| file.id).collect(),
        numbers: numbers.into_keys().collect(),
        regarded,
        table: table.map(Arc::new),
    };
    let mut output = GcOutput { files: &shared.files, added };
    let mut edit = || {
        let mut removed = switch.sources.clone();
        removed.extend(shared.drops.hold().only_about(switch.numbers.iter(), &switch.regarded));
        output.edit(removed)
    };
    gc.install(None, &mut edit, &mut || shared.switch(&switch))?;
    Ok(GcOutcome::Collected { freed_bytes: old_bytes.saturating_sub(installed_bytes), installed_bytes })
}

/// A file that GC has made. Once an edit names it, only the manifest knows whether it is needed. Until then it is not.
struct GcOutput<'a> {
    files: &'a ValueFiles,
    added: Option<ValueFileMeta>,
}

impl GcOutput<'_> {
    /// The edit that adds it, if it was made, and removes these.
    fn edit(&mut self, removed: Vec<FileId>) -> ValueEdit {
        ValueEdit { removed, added: self.added.take().into_iter().collect(), ..ValueEdit::default() }
    }
}

impl Drop for GcOutput<'_> {
    fn drop(&mut self) {
        if let Some(meta) = &self.added {
            self.files.remove(meta.id);
        }
    }
}

/// Writes what survives of `sources`: `live` bytes by file number.
fn table(
    shared: &NovKvShared,
    sources: &[Arc<ValueFile>],
    blocks: &[(FileId, DropBlock)],
    live: &BTreeMap<FileId, u64>,
    regarded: &BTreeSet<FileId>,
) -> Result<Option<(ValueFileMeta, SortedTable)>> {
    let tables = shared.tables.load();
    let mut dropped = HashMap::default();
    for (_, block) in blocks {
        drop_keys::read(&shared.files, block, |seqno| {
            dropped.insert(seqno, ());
        })?;
    }
    let mut survivors = Survivors::default();
    let mut epoch = 0;
    for file in sources {
        let table = tables.by_file.get(&file.id);
        epoch = epoch.max(table.map_or(0, |table| table.properties.epoch));
        let values_end = table.map_or(file.len(), |table| table.properties.values_end);
        survivors.read(file, values_end, &dropped)?;
    }
    debug_assert_eq!(survivors.record_bytes, live.values().sum::<u64>(), "drop-keys name records that are not there");
    if survivors.all.is_empty() {
        return Ok(None);
    }
    survivors.sort();
    let mut writer = SortedWriter::begin(&shared.files)?;
    survivors.write(&mut writer)?;
    let aliases = live.iter().map(|(&number, &bytes)| (number, bytes)).collect();
    let regarded = regarded.iter().copied().collect();
    let properties = SortedProperties { epoch: epoch + 1, values_end: 0, aliases, regarded };
    writer.finish(&shared.files, properties).map(Some)
}

/// Merges several drop files into one, with only the blocks in force.
pub(super) fn merge_drops(shared: &NovKvShared, sources: &[FileId], gc: &dyn GcContext) -> Result<GcOutcome> {
    let blocks = shared.drops.hold().of(&sources.iter().copied().collect());
    let mut merged = DropFile::new(&shared.files);
    for (about, block) in blocks {
        merged.add_block(about, &block)?;
    }
    let mut output = GcOutput { files: &shared.files, added: merged.finish(&shared.drops)? };
    gc.install(None, &mut || output.edit(sources.to_vec()), &mut || {})?;
    Ok(GcOutcome::freed(0))
}
