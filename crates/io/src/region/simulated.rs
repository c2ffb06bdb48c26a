//! The simulated disk under a region.
//!
//! `APPENDS` is a file of [`MemoryFs`] that is stored to. A killed process leaves every store, in order, and each
//! store is a moment at which images can be taken. A power loss leaves each sector as it was at some moment. A
//! [`FaultyFs`] can make any call fail, including stores: a failed store stores nothing and breaks the map.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold_contract::Result;

use super::{
    ground::{Ground, GroundFile, GroundMap},
    writer::FullSlots,
};
use crate::{
    faulty::{FaultKind, FaultyFs, calls::APPEND},
    fs::{FileSystem, ReadFile, WriteFile},
    memory::{MemoryFile, MemoryFs},
    random::mix,
};

/// Files in memory.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    memory: MemoryFs,
    faults: Option<FaultyFs>,
}

impl Simulated {
    /// The files of `memory`; calls fail as `faults` plans.
    pub fn new(memory: MemoryFs, faults: Option<FaultyFs>) -> Self {
        Self { memory, faults }
    }

    fn file(&self, path: &Path, file: Arc<MemoryFile>) -> SimulatedFile {
        SimulatedFile { file, path: path.into(), faults: self.faults.clone() }
    }

    fn pass(&self, op: &'static str, path: &Path) -> Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.pass(op, path))
    }
}

impl Ground for Simulated {
    type File = SimulatedFile;
    type Map = SimulatedMap;

    /// So small that there is room for it on the small disks of simulations.
    const GROWTH: usize = 2;

    /// So few that the small files of simulations fill some.
    const FULL: usize = 2 << 10;

    fn writes_full_slots(&self) -> FullSlots {
        FullSlots::ByNextAppend
    }

    fn fs(&self) -> &dyn FileSystem {
        match &self.faults {
            Some(faults) => faults,
            None => &self.memory,
        }
    }

    fn create(&self, path: &Path) -> Result<SimulatedFile> {
        self.pass("create", path)?;
        Ok(self.file(path, self.memory.create_file(path)?))
    }

    fn open(&self, path: &Path) -> Result<SimulatedFile> {
        self.pass("open", path)?;
        Ok(self.file(path, self.memory.open_file(path)?))
    }

    fn open_mapped(&self, _path: &Path) -> Result<Option<File>> {
        Ok(None)
    }

    fn map(&self, path: &Path, _bytes: usize) -> Option<SimulatedMap> {
        let file = self.create(path).ok()?;
        file.file.map();
        Some(SimulatedMap { file, broken: AtomicBool::new(false) })
    }

    fn give_back(&self, path: &Path, offset: u64, len: u64) -> io::Result<()> {
        let file = self.open(path).map_err(io::Error::other)?;
        file.pass("give back space of")?;
        file.file.give_back(offset, len)
    }
}

/// A file being appended to.
#[derive(Debug)]
pub(crate) struct SimulatedFile {
    file: Arc<MemoryFile>,
    path: PathBuf,
    faults: Option<FaultyFs>,
}

impl SimulatedFile {
    fn fault(&self, op: &'static str) -> Option<FaultKind> {
        self.faults.as_ref().and_then(|faults| faults.next_fault(op, &self.path))
    }

    fn pass(&self, op: &'static str) -> io::Result<()> {
        self.fault(op).map_or(Ok(()), |kind| Err(kind.error()))
    }
}

/// The system's error alone: the caller adds the operation and the path.
fn bare(error: bifold_contract::Error) -> io::Error {
    match error {
        bifold_contract::Error::Io { source, .. } => {
            source.raw_os_error().map_or_else(|| source.kind().into(), io::Error::from_raw_os_error)
        }
        other => io::Error::other(other),
    }
}

impl GroundFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        self.pass("look up")?;
        ReadFile::len(&*self.file).map_err(bare)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.pass("read")?;
        self.file.read_at(buffer, offset).map_err(bare)
    }

    fn read_past_cache(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Some(kind) = self.fault(APPEND) else { return self.file.write_at(bytes, offset) };
        if kind == FaultKind::ShortWrite {
            self.file.write_at(&bytes[..bytes.len() / 2], offset)?;
        }
        Err(kind.error())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.pass("truncate")?;
        self.file.truncate(len)
    }

    fn sync(&self) -> io::Result<()> {
        let passed = self.pass("sync");
        if passed.is_err() {
            self.file.break_sync();
        }
        passed?;
        WriteFile::sync(&*self.file).map_err(bare)
    }

    fn will_need(&self, _offset: u64, _len: u64) {}

    fn is_in_memory(&self, _offset: u64) -> bool {
        true
    }

    fn expect_short_reads(&self) {}

    fn mappable(&self) -> Option<&File> {
        None
    }
}

/// The file `APPENDS`.
#[derive(Debug)]
pub(crate) struct SimulatedMap {
    file: SimulatedFile,
    broken: AtomicBool,
}

impl SimulatedMap {
    fn try_store(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.pass("store to")?;
        self.file.file.store(bytes, at as u64)
    }
}

impl GroundMap for SimulatedMap {
    fn epoch(&self) -> u64 {
        mix(self.file.file.id())
    }

    fn free_bytes(&self) -> Option<u64> {
        self.file.file.free_bytes()
    }

    fn reserve(&self, offset: usize, len: usize) -> bool {
        self.file.pass("reserve").and_then(|()| self.file.file.reserve((offset + len) as u64)).is_ok()
    }

    fn keep_in_memory(&self, _offset: usize, _len: usize) {}

    fn store(&self, at: usize, bytes: &[u8]) {
        if self.is_broken() || self.try_store(at, bytes).is_err() {
            self.broken.store(true, Relaxed);
        }
    }

    fn store_number(&self, at: usize, number: u64) {
        self.store(at, &number.to_le_bytes());
    }

    fn with<T>(&self, at: usize, len: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        let mut bytes = vec![0; len];
        let is_there = self.file.file.read_at(&mut bytes, at as u64);
        debug_assert!(is_there.is_ok(), "a slot is within the file");
        look(&bytes)
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    fn write_number(&self, at: usize, number: u64) -> io::Result<()> {
        self.try_store(at, &number.to_le_bytes())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}
