//! Reads large values chunk by chunk. Nothing of a chunk is handed out before its check has matched.

use std::sync::Arc;

use bifold_contract::{Corruption, IoSource, LargeRef, Result, Value, planted};
use bifold_format::large::{self, CHUNK_BYTES, LargeLayout};
use bifold_io::Reader;

use super::LargeFile;
use crate::parts::buffers::Held;

/// One reader of a large value. It has one chunk in memory, and keeps the file.
#[derive(Debug)]
pub struct LargeReading {
    file: Arc<LargeFile>,
    layout: LargeLayout,
    source: IoSource,
    /// The index of the chunk in `bytes`.
    index: Option<u64>,
    /// The chunk, which has been checked, and its check.
    bytes: Vec<u8>,
    memory: Held,
}

impl LargeReading {
    /// A reader of `file`, which has the value of `key`.
    ///
    /// # Errors
    /// I/O errors; corruption.
    pub fn new(file: Arc<LargeFile>, key: &[u8], source: IoSource) -> Result<Self> {
        let layout = LargeLayout::of(key.len(), file.named.len);
        let _is_checked = file.reader(key)?;
        let memory = file.home.buffers.hold(0, 0);
        Ok(Self { file, layout, source, index: None, bytes: Vec::new(), memory })
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file.named.len
    }

    /// Never: a value without bytes has no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the value from `position` on, up to the end of a chunk. None behind the end of the value.
    ///
    /// # Errors
    /// I/O errors; corruption.
    pub fn bytes_at(&mut self, position: u64) -> Result<&[u8]> {
        if position >= self.len() {
            return Ok(&[]);
        }
        let index = position / CHUNK_BYTES;
        if self.index != Some(index) {
            self.index = None;
            self.load(index)?;
            self.index = Some(index);
        }
        let (_, len) = self.layout.chunk(index);
        Ok(&self.bytes[(position % CHUNK_BYTES) as usize..len])
    }

    fn load(&mut self, index: u64) -> Result<()> {
        let reader = self.file.reader.get().ok_or_else(|| unopened(&self.file))?;
        let len = self.layout.chunk(index).1;
        self.bytes.resize(len + 8, 0);
        self.memory.grow_to(self.bytes.len());
        load(reader, self.layout, self.file.named, index, self.source, &mut self.bytes).map(drop)
    }

    /// All of the value, also checked as a whole.
    ///
    /// # Errors
    /// I/O errors; corruption.
    pub fn read_all(&mut self) -> Result<Value> {
        let reader = self.file.reader.get().ok_or_else(|| unopened(&self.file))?;
        let mut value = Vec::with_capacity(usize::try_from(self.len()).unwrap_or(0));
        each_chunk(reader, self.layout, self.file.named, self.source, |chunk| value.extend_from_slice(chunk))?;
        Ok(Value::from(value))
    }
}

fn unopened(file: &LargeFile) -> bifold_contract::Error {
    let name = bifold_format::names::large(file.named.file);
    Corruption::new(0, "large value", "an open file", "none").of(file.home.dir.file(&name))
}

/// Reads a chunk and its check into `bytes`, which has just the room for both. Returns the check.
fn load(
    reader: &Reader,
    layout: LargeLayout,
    named: LargeRef,
    index: u64,
    source: IoSource,
    bytes: &mut [u8],
) -> Result<u64> {
    let (at, _) = layout.chunk(index);
    reader.call_at(bytes, at, source)?;
    if planted!("large_unverified") {
        return Ok(0);
    }
    large::checked(bytes, named.file, at).map(|(_, check)| check).map_err(|damage| damage.of(reader.path()))
}

fn each_chunk(
    reader: &Reader,
    layout: LargeLayout,
    named: LargeRef,
    source: IoSource,
    mut see: impl FnMut(&[u8]),
) -> Result<()> {
    let (mut bytes, mut sum) = (Vec::new(), 0);
    for index in 0..layout.chunks() {
        let len = layout.chunk(index).1;
        bytes.resize(len + 8, 0);
        sum = large::sum_with(sum, load(reader, layout, named, index, source, &mut bytes)?);
        see(&bytes[..len]);
    }
    if sum == named.sum || planted!("large_unverified") {
        return Ok(());
    }
    let (expected, found) = (format!("chunks with sum {:016x}", named.sum), format!("sum {sum:016x}"));
    Err(Corruption::new(layout.head_bytes() as u64, "large value", expected, found).of(reader.path()))
}

/// Reads all chunks and checks them.
pub(super) fn check_all(reader: &Reader, layout: LargeLayout, named: LargeRef) -> Result<()> {
    each_chunk(reader, layout, named, IoSource::Maintenance, |_| {})
}
