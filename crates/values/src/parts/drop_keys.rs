//! Drop-keys: which versions in value files flush and compaction have dropped (NovKV §III-B).
//!
//! ```text
//! rewrite drops versions ─▶ one drop file, synced: a block for each value file they were in
//!                           └─ recorded by the edit that installs the rewrite: with it, or not at all
//! GC of a value file ─▶ reads its blocks ─▶ the new table says which drop files it reflects
//!                                          └─ its edit removes drop files without any other block
//! ```
//!
//! The paper appends each block to the value file that it is about. Here the blocks of one rewrite share a file. That
//! takes one sync for each rewrite and not one for each value file (`docs/placements/novkv.md` has figures), a failed
//! rewrite leaves nothing in the way of its retry, and a block that comes during GC of its value file needs no
//! carrying over: it names versions, and their numbers stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use bifold_contract::{Error, FileId, IoSource, Result, SeqNo, ValueFileMeta};
use bifold_format::{
    sorted::{self, Dropped},
    value::{self, ValueKind},
};

use super::{
    hash_map::HashMap,
    scan::Scan,
    sync::LockExt,
    value_files::{Copy, DROPS, ValueFile, ValueFiles},
};

/// The place of a block, and how much it drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropBlock {
    /// The drop file it is in.
    pub drop_file: FileId,
    offset: u64,
    len: u32,
    /// Versions it drops.
    pub count: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// The installed drop blocks, by the number of the value file they are about.
#[derive(Debug, Default)]
pub struct DropKeys {
    blocks: BTreeMap<FileId, Vec<DropBlock>>,
    /// Installed blocks in each drop file.
    files: BTreeMap<FileId, usize>,
    /// Blocks in drop files that no edit has installed yet.
    pending: BTreeMap<FileId, Vec<(FileId, DropBlock)>>,
}

impl DropKeys {
    /// The blocks in drop files of an earlier session, except those for which `is_regarded(value file, drop file)`
    /// says that the value file already lacks what they drop.
    ///
    /// A drop file that cannot be read is passed to `leave_out`, and no table regards it. What it drops then counts as
    /// live, and is known again once it can be read.
    ///
    /// # Errors
    /// I/O errors that say nothing of what is stored.
    pub fn open(
        files: &[Arc<ValueFile>],
        is_regarded: impl Fn(FileId, FileId) -> bool,
        leave_out: impl Fn(FileId, &Error),
    ) -> Result<Self> {
        let mut keys = Self::default();
        for file in files {
            match blocks_in(file) {
                Ok(mut blocks) => {
                    blocks.retain(|(about, block)| !is_regarded(*about, block.drop_file));
                    keys.put_in_force(file.id, blocks);
                }
                Err(error) if error.is_unreadable() => leave_out(file.id, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(keys)
    }

    /// Notes a drop file that the next edit may install.
    pub fn written(&mut self, drop_file: FileId, blocks: Vec<(FileId, DropBlock)>) {
        self.pending.insert(drop_file, blocks);
    }

    /// An edit has installed a drop file.
    pub fn installed(&mut self, drop_file: FileId) {
        if let Some(blocks) = self.pending.remove(&drop_file) {
            self.put_in_force(drop_file, blocks);
        }
    }

    /// The edit that would have installed a drop file is abandoned.
    pub fn given_up(&mut self, drop_file: FileId) {
        self.pending.remove(&drop_file);
    }

    fn put_in_force(&mut self, drop_file: FileId, blocks: Vec<(FileId, DropBlock)>) {
        self.files.insert(drop_file, blocks.len());
        for (about, block) in blocks {
            self.blocks.entry(about).or_default().push(block);
        }
    }

    /// An edit has removed a drop file: its blocks are applied, or stand in another one.
    pub fn removed(&mut self, drop_file: FileId) {
        self.files.remove(&drop_file);
        self.blocks.retain(|_, blocks| {
            blocks.retain(|block| block.drop_file != drop_file);
            !blocks.is_empty()
        });
    }

    /// A table is installed that lacks what these drop files drop of `about`.
    pub fn regarded(&mut self, about: FileId, drop_files: &BTreeSet<FileId>) {
        let Some(blocks) = self.blocks.get_mut(&about) else { return };
        for block in blocks.iter().filter(|block| drop_files.contains(&block.drop_file)) {
            if let Some(count) = self.files.get_mut(&block.drop_file) {
                *count -= 1;
            }
        }
        blocks.retain(|block| !drop_files.contains(&block.drop_file));
        if blocks.is_empty() {
            self.blocks.remove(&about);
        }
    }

    /// The blocks about a value file.
    #[must_use]
    pub fn about(&self, file: FileId) -> &[DropBlock] {
        self.blocks.get(&file).map_or(&[], Vec::as_slice)
    }

    /// Bytes that are dropped of a value file.
    #[must_use]
    pub fn dropped_bytes(&self, file: FileId) -> u64 {
        self.about(file).iter().map(|block| block.bytes).sum()
    }

    /// The installed drop files, oldest first, with the number of their blocks.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<FileId, usize> {
        &self.files
    }

    /// Drop files without any block about files other than these.
    #[must_use]
    pub fn only_about<'a>(&self, abouts: impl Iterator<Item = &'a FileId>, regarded: &BTreeSet<FileId>) -> Vec<FileId> {
        let mut left = self.files.clone();
        for block in abouts.flat_map(|about| self.about(*about)).filter(|b| regarded.contains(&b.drop_file)) {
            if let Some(count) = left.get_mut(&block.drop_file) {
                *count -= 1;
            }
        }
        left.into_iter().filter(|&(_, count)| count == 0).map(|(file, _)| file).collect()
    }

    /// The blocks of some drop files, by the value file they are about.
    #[must_use]
    pub fn of(&self, drop_files: &BTreeSet<FileId>) -> Vec<(FileId, DropBlock)> {
        let all = self.blocks.iter().flat_map(|(&about, blocks)| blocks.iter().map(move |&block| (about, block)));
        all.filter(|(_, block)| drop_files.contains(&block.drop_file)).collect()
    }

    /// Memory for what is known of blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.blocks.values().map(|blocks| (blocks.capacity() * size_of::<DropBlock>()) as u64).sum()
    }
}

/// The blocks of a drop file, each with the value file that it is about.
fn blocks_in(file: &ValueFile) -> Result<Vec<(FileId, DropBlock)>> {
    let mut scan = Scan::new(file, file.start(), file.len(), IoSource::Recovery);
    let mut blocks = Vec::new();
    while let Some((record, len)) = scan.sound()? {
        if record.kind == ValueKind::Drops {
            let totals = sorted::drop_totals(record.body()).map_err(|d| d.of(file.reader().path()))?;
            let (count, bytes) = (totals.count, totals.bytes);
            let block = DropBlock { drop_file: file.id, offset: record.offset, len, count, bytes };
            blocks.push((record.seqno, block));
        }
    }
    Ok(blocks)
}

/// So many drop-keys are held in memory before they are written: 8 MiB.
const HELD_MAX: u64 = 1 << 20;

/// What a rewrite drops. Dropping it before it is finished leaves nothing.
pub struct DropFile {
    files: Arc<ValueFiles>,
    held: HashMap<FileId, Dropped>,
    held_count: u64,
    /// The output file, begun when there is something to write.
    copy: Option<Copy>,
    blocks: Vec<(FileId, DropBlock)>,
    count: u64,
}

impl DropFile {
    /// An empty one.
    #[must_use]
    pub fn new(files: &Arc<ValueFiles>) -> Self {
        let (files, held) = (Arc::clone(files), HashMap::default());
        Self { files, held, held_count: 0, copy: None, blocks: Vec::new(), count: 0 }
    }

    /// How many versions were dropped so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Version `seqno` in the file `about` is dropped, with a record of `len` bytes.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&mut self, about: FileId, seqno: SeqNo, len: u32) -> Result<()> {
        let dropped = self.held.entry(about).or_default();
        dropped.seqnos.push(seqno);
        dropped.bytes += u64::from(len);
        self.count += 1;
        self.held_count += 1;
        if self.held_count < HELD_MAX { Ok(()) } else { self.write_held() }
    }

    /// Copies a block of another drop file.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn add_block(&mut self, about: FileId, block: &DropBlock) -> Result<()> {
        let dropped = self.held.entry(about).or_default();
        dropped.bytes += block.bytes;
        read(&self.files, block, |seqno| dropped.seqnos.push(seqno))?;
        self.count += block.count;
        self.held_count += block.count;
        if self.held_count < HELD_MAX { Ok(()) } else { self.write_held() }
    }

    fn write_held(&mut self) -> Result<()> {
        let mut held: Vec<(FileId, Dropped)> = std::mem::take(&mut self.held).into_iter().collect();
        self.held_count = 0;
        held.sort_unstable_by_key(|(about, _)| *about);
        if self.copy.is_none() {
            self.copy = Some(self.files.begin_copy(DROPS, 0)?);
        }
        let Some(copy) = &mut self.copy else { unreachable!("begun above") };
        for (about, mut dropped) in held {
            let pointer = copy.append_with(|out, place| sorted::encode_drops(out, place, about, &mut dropped))?;
            let count = dropped.seqnos.len() as u64;
            let (drop_file, offset, len) = (pointer.file, pointer.offset, pointer.len);
            self.blocks.push((about, DropBlock { drop_file, offset, len, count, bytes: dropped.bytes }));
        }
        Ok(())
    }

    /// Makes the file durable except for its name, if there is anything in it, and gives `keys` what the edit that
    /// records the result may install.
    ///
    /// # Errors
    /// I/O errors; nothing is left then.
    pub fn finish(mut self, keys: &Mutex<DropKeys>) -> Result<Option<ValueFileMeta>> {
        if self.held_count > 0 {
            self.write_held()?;
        }
        let Some(copy) = self.copy.take() else { return Ok(None) };
        let meta = self.files.finish_alone(copy)?;
        keys.hold().written(meta.id, std::mem::take(&mut self.blocks));
        Ok(Some(meta))
    }
}

/// Reads a block: passes the numbers of the versions it drops to `each`.
///
/// # Errors
/// I/O errors and corruption.
pub fn read(files: &ValueFiles, block: &DropBlock, each: impl FnMut(SeqNo)) -> Result<()> {
    let Some(file) = files.get(block.drop_file) else {
        unreachable!("a drop file is there as long as one of its blocks is in force")
    };
    let mut bytes = vec![0; block.len as usize];
    file.reader().read_at(&mut bytes, block.offset, IoSource::Gc)?;
    let decode = || {
        let frame = value::frame_at(&bytes, file.id, block.offset)?;
        sorted::decode_drops(value::decode(frame)?.body(), each)
    };
    decode().map_err(|damage| damage.of(file.reader().path()))
}
