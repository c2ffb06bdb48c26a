//! Tables for tests.

use std::{path::Path, sync::Arc};

use bifold_contract::{Entry, IoSource, Kind, SeqNo, TableMeta};
use bifold_io::{Dir, memory::MemoryFs};

use crate::table::{Table, TableContext, TableOptions, TableWriter};

/// An entry that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedEntry {
    pub key: Vec<u8>,
    pub seqno: SeqNo,
    pub kind: Kind,
    pub payload: Vec<u8>,
}

impl OwnedEntry {
    pub(crate) fn of(entry: Entry<'_>) -> Self {
        Self { key: entry.key.into(), seqno: entry.seqno, kind: entry.kind, payload: entry.payload.into() }
    }

    pub(crate) fn borrow(&self) -> Entry<'_> {
        Entry { key: &self.key, seqno: self.seqno, kind: self.kind, payload: &self.payload }
    }
}

/// A directory in memory.
pub(crate) struct Disk {
    pub fs: MemoryFs,
    pub dir: Dir,
    pub context: Arc<TableContext>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let fs = MemoryFs::new();
        let dir = Dir::new(Arc::new(fs.clone()), Path::new("/db"));
        dir.create_dir().unwrap();
        Self { fs, dir, context: Arc::new(TableContext::new(1 << 20, 1 << 20)) }
    }

    pub(crate) fn write(&self, id: u64, entries: &[OwnedEntry], options: &TableOptions) -> TableMeta {
        let mut writer = TableWriter::create(&self.dir, id, IoSource::Flush, options).unwrap();
        entries.iter().for_each(|entry| writer.add(&entry.borrow()).unwrap());
        writer.finish().unwrap()
    }

    pub(crate) fn open(&self, meta: &TableMeta) -> Arc<Table> {
        Table::open(&self.dir, Arc::new(meta.clone()), &self.context).unwrap()
    }
}

pub(crate) fn options() -> TableOptions {
    TableOptions::default()
}

/// This many keys, each with one version and a value of about 100 bytes.
pub(crate) fn sample(keys: u64) -> Vec<OwnedEntry> {
    let entry = |at: u64| OwnedEntry {
        key: format!("key{at:08}").into_bytes(),
        seqno: at + 1,
        kind: Kind::Inline,
        payload: format!("value {at} ").repeat(8).into_bytes(),
    };
    (0..keys).map(entry).collect()
}
