//! A store of its own for tests: flushes and merges of given rows, installs, reopening.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

use bifold_contract::{
    Entry, FileId, IoSource, Kept as Written, Kind, Pointer, Result, SeqNo, ValueEdit, ValueFileMeta,
};
use bifold_format::pointer;
use bifold_io::{Dir, fs::FileSystem, memory::MemoryFs};

use super::super::{options::DiffKvOptions, *};
use crate::{
    parts::{
        budget::Memory,
        value_files::{FileAccess, StoreContext},
    },
    placements::SMALL,
    store::ValueStore,
};

/// An entry of the index, as tables have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub key: Vec<u8>,
    pub seqno: SeqNo,
    pub kind: Kind,
    pub payload: Vec<u8>,
}

impl Row {
    pub fn value(key: u32, seqno: SeqNo, len: usize) -> Self {
        Self { key: format!("{key:05}").into(), seqno, kind: Kind::Inline, payload: vec![seqno as u8; len] }
    }

    pub fn entry(&self) -> Entry<'_> {
        Entry { key: &self.key, seqno: self.seqno, kind: self.kind, payload: &self.payload }
    }

    pub fn pointer(&self) -> Pointer {
        assert_eq!(self.kind, Kind::Pointer, "{self:?}");
        pointer::decode(&self.payload).unwrap()
    }
}

pub(super) struct Stage {
    pub fs: MemoryFs,
    pub next: Arc<AtomicU64>,
    pub options: ValueOptions,
    pub placement: ValueStore<DiffKv>,
    pub recorded: BTreeMap<FileId, ValueFileMeta>,
    pub dead: BTreeMap<FileId, u64>,
}

pub(super) fn with(diffkv: DiffKvOptions) -> ValueOptions {
    ValueOptions { diffkv, ..SMALL }
}

pub(super) fn job(from: Option<u8>, to: u8) -> RewriteJob {
    RewriteJob { from, to, deepest: 6, moving: Vec::new() }
}

impl Stage {
    pub fn new(options: ValueOptions) -> Self {
        Self::with_memory(options, &Memory::new(1 << 20, 1 << 20))
    }

    pub fn with_memory(options: ValueOptions, memory: &Memory) -> Self {
        let (fs, next) = (MemoryFs::new(), Arc::new(AtomicU64::new(1)));
        let placement = open(&fs, &next, options, &ValueEdit::default(), memory);
        Self { fs, next, options, placement, recorded: BTreeMap::new(), dead: BTreeMap::new() }
    }

    pub fn try_rewrite(&self, job: &RewriteJob, kept: &[Row], dropped: &[Row]) -> Result<(Vec<Row>, ValueEdit)> {
        let mut rewriter = self.placement.rewriter(job)?;
        let mut rows = Vec::new();
        for row in kept {
            let (kind, payload) = match rewriter.keep(&row.entry())? {
                Written::Unchanged => (row.kind, row.payload.clone()),
                Written::Pointer(to) | Written::Moved(to) => {
                    let mut payload = Vec::new();
                    pointer::encode(to, &mut payload);
                    (Kind::Pointer, payload)
                }
            };
            rows.push(Row { kind, payload, ..row.clone() });
        }
        dropped.iter().try_for_each(|row| rewriter.discard(&row.entry(), row.seqno + 1))?;
        Ok((rows, rewriter.finish()?))
    }

    pub fn rewrite(&mut self, job: &RewriteJob, kept: &[Row], dropped: &[Row]) -> (Vec<Row>, ValueEdit) {
        let (rows, edit) = self.try_rewrite(job, kept, dropped).unwrap();
        self.install(&edit);
        (rows, edit)
    }

    pub fn flush(&mut self, kept: &[Row]) -> Vec<Row> {
        self.rewrite(&job(None, 0), kept, &[]).0
    }

    pub fn install(&mut self, edit: &ValueEdit) {
        let drained = self.placement.drained_by(edit).into_iter().map(|(id, _)| id);
        let edit = &ValueEdit { removed: edit.removed.iter().copied().chain(drained).collect(), ..edit.clone() };
        edit.removed.iter().for_each(|id| assert!(self.recorded.remove(id).is_some(), "file {id} is not there"));
        for meta in &edit.added {
            assert!(self.recorded.insert(meta.id, meta.clone()).is_none(), "file {} is there already", meta.id);
        }
        edit.garbage.iter().for_each(|&(id, bytes, _)| *self.dead.entry(id).or_default() += bytes);
        for (id, tags) in &edit.tagged {
            self.recorded.get_mut(id).unwrap().tags |= tags;
        }
        self.placement.installed(edit);
    }

    /// The edit of some other job records what commits and GC have begun.
    pub fn list(&mut self) {
        self.install(&ValueEdit { added: self.placement.unrecorded(), ..ValueEdit::default() });
    }

    pub fn reopen(&mut self) {
        let mut recorded = ValueEdit { added: self.recorded.values().cloned().collect(), ..ValueEdit::default() };
        recorded.garbage = self.dead.iter().map(|(&id, &bytes)| (id, bytes, 0)).collect();
        self.placement = open(&self.fs, &self.next, self.options, &recorded, &Memory::new(1 << 20, 1 << 20));
    }

    pub fn check(&self, rows: &[Row], len: usize) {
        for row in rows {
            let found = self.placement.read(&row.key, row.seqno, row.pointer(), IoSource::Get).unwrap().unwrap();
            assert_eq!(&found[..], vec![row.seqno as u8; len]);
        }
    }

    pub fn levels(&self) -> Vec<(u8, u64)> {
        self.placement.order().levels.iter().map(|level| (level.level, level.groups)).collect()
    }
}

pub(super) fn open(
    fs: &MemoryFs,
    next: &Arc<AtomicU64>,
    options: ValueOptions,
    recorded: &ValueEdit,
    memory: &Memory,
) -> ValueStore<DiffKv> {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let dir = Dir::new(fs, Path::new("/db"));
    dir.create_dir().unwrap();
    let next = Arc::clone(next);
    let new_file = Arc::new(move || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let context = StoreContext {
        dir,
        keyspace: 1,
        new_file,
        access: FileAccess::Write,
        memory: memory.clone(),
        unsynced: Arc::default(),
    };
    let files = Arc::new(ValueFiles::open(context, recorded, &[]).unwrap());
    ValueStore::of(Arc::clone(&files), Box::new(DiffKv::open(&files, &Settings::new(options))))
}

/// Values of every `step`th of these keys.
pub(super) fn values(keys: std::ops::Range<u32>, step: usize, seqno: SeqNo, len: usize) -> Vec<Row> {
    keys.step_by(step).zip(seqno..).map(|(key, seqno)| Row::value(key, seqno, len)).collect()
}
