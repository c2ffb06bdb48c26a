//! Tables for tests.

use std::{path::Path, sync::Arc};

use bifold_contract::{Entry, IoSource, Kind, SeqNo, TableMeta};
use bifold_format::{checksum::checksum, names};
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

    /// Changes the content of a block that is not compressed, as if it had been so when it was sealed.
    pub(crate) fn change_block(&self, meta: &TableMeta, block: usize, change: impl FnOnce(&mut [u8])) {
        let table = self.open(meta);
        let section = table.index().unwrap().unwrap();
        let place = table.parse(&section).unwrap().place(block).unwrap();
        let path = self.dir.file(&names::table(meta.id));
        let mut bytes = self.fs.read(&path).unwrap();
        let sealed = &mut bytes[place.start as usize..place.end as usize];
        let (covered, sum) = sealed.split_last_chunk_mut::<8>().unwrap();
        change(covered);
        *sum = checksum(covered, meta.id, place.start).to_le_bytes();
        self.fs.write_durable(&path, &bytes);
    }

    /// Changes in this way the last byte of a key, that of entry `at` of a [`sample`].
    pub(crate) fn change_key(&self, meta: &TableMeta, at: u64, last_byte: u8) {
        let table = self.open(meta);
        let section = table.index().unwrap().unwrap();
        let block = table.parse(&section).unwrap().find(format!("key{at:08}").as_bytes());
        self.change_block(meta, block, |block| {
            let value = format!("value {at} ").into_bytes();
            let value_at = block.windows(value.len()).position(|window| window == value).unwrap();
            // Number and kind are in between.
            block[value_at - 9] = last_byte;
        });
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
