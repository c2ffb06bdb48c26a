//! Large values: how users write and read them piece by piece. Page: `docs/large-values.md`.

use std::{
    fmt,
    io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom},
    sync::Arc,
};

use bifold_contract::{Error, Result};

use crate::{
    api::{db::Db, keyspace::Keyspace, snapshot::Snapshot},
    commit::large::put_large,
    read::{get::Reader, large::OpenedValue},
    settings::options::Durability,
};

/// Large values.
impl Keyspace {
    /// Sets `key` to what `value` yields until its end, up to 1 GiB, of which one piece of 256 KiB is in memory at a
    /// time.
    ///
    /// A value of more than 64 KiB gets a file of its own, which is synced before the commit, whatever the durability
    /// of that is; other writes go on meanwhile. A shorter one is put like any other. Until the commit readers see the
    /// older value. [`Keyspace::get_reader`] reads it piece by piece; all other reads, too, have it, in memory.
    ///
    /// ```
    /// use std::io::Read;
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-large-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let keyspace = db.default_keyspace();
    /// keyspace.put_reader("zeros", std::io::repeat(0).take(1 << 20))?;
    /// let mut value = keyspace.get_reader("zeros")?.unwrap();
    /// assert_eq!(value.len(), 1 << 20);
    /// let mut begin = [1; 4];
    /// value.read_exact(&mut begin)?;
    /// assert_eq!(begin, [0; 4]);
    /// # drop(value); db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`InvalidArgument`](crate::Error::InvalidArgument) also if the keyspace has a
    /// [`ttl`](crate::KeyspaceOptions::ttl); [`Io`](crate::Error::Io) also with the error of `value`. The key is as it
    /// was then, unless the commit itself failed: see [`Db::commit`].
    pub fn put_reader(&self, key: impl AsRef<[u8]>, value: impl Read) -> Result<()> {
        self.put_reader_with(key, value, self.durability())
    }

    /// [`Keyspace::put_reader`] with the given durability of the commit.
    ///
    /// # Errors
    /// As [`Keyspace::put_reader`].
    pub fn put_reader_with(&self, key: impl AsRef<[u8]>, mut value: impl Read, durability: Durability) -> Result<()> {
        let engine = &self.handle().engine;
        put_large(&engine.committer, self.tree(), key.as_ref(), &mut value, durability)?;
        engine.waits.run_due_work();
        Ok(())
    }

    /// The newest value of `key`, to be read piece by piece. What is written later does not change it.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let reader = &self.handle().engine.reader;
        Ok(ValueReader::of(reader, reader.open_value(self.tree(), key.as_ref(), None)?))
    }
}

/// Large values.
impl Snapshot {
    /// The value that `key` had when the snapshot was taken, to be read piece by piece, also when the snapshot is
    /// dropped.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_reader(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        self.read(keyspace, |reader, tree| {
            Ok(ValueReader::of(reader, reader.open_value(tree, key.as_ref(), Some(self.sight()))?))
        })
    }
}

/// Short forms for the default keyspace: large values.
impl Db {
    /// [`Keyspace::put_reader`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::put_reader`].
    pub fn put_reader(&self, key: impl AsRef<[u8]>, value: impl Read) -> Result<()> {
        self.default_keyspace().put_reader(key, value)
    }

    /// [`Keyspace::get_reader`] on the default keyspace.
    ///
    /// # Errors
    /// As [`Keyspace::get_reader`].
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        self.default_keyspace().get_reader(key)
    }
}

/// A value that is read piece by piece: see [`Keyspace::get_reader`] and [`Db::change_reader`].
///
/// Of a large value it has one piece of 256 KiB in memory, any other value is in memory as a whole. Nothing of a piece
/// is handed out before its checksum has matched: if it does not, reads fail with [`ErrorKind::InvalidData`] and an
/// [`Error`] that names file and offset. Until it is dropped, the file of the value stays, whatever is written, and
/// nobody else can open the database for writing.
pub struct ValueReader {
    value: OpenedValue,
    position: u64,
    reader: Arc<Reader>,
}

impl ValueReader {
    fn of(reader: &Arc<Reader>, value: Option<OpenedValue>) -> Option<Self> {
        value.map(|value| Self::begin(reader, value))
    }

    pub(crate) fn begin(reader: &Arc<Reader>, value: OpenedValue) -> Self {
        Self { value, position: 0, reader: Arc::clone(reader) }
    }

    /// Bytes of the whole value.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.value {
            OpenedValue::InMemory(value) => value.len() as u64,
            OpenedValue::Large(reading) => reading.len(),
        }
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the next read begins, in bytes from the beginning of the value.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl BufRead for ValueReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match &mut self.value {
            OpenedValue::InMemory(value) => {
                let from = usize::try_from(self.position).unwrap_or(usize::MAX);
                Ok(value.get(from..).unwrap_or_default())
            }
            OpenedValue::Large(reading) => reading.bytes_at(self.position).map_err(as_io),
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.position += bytes as u64;
        if let OpenedValue::Large(_) = self.value {
            self.reader.counters.scanned(0, bytes as u64);
        }
    }
}

impl Read for ValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut rest = self.fill_buf()?;
        let bytes = rest.read(buffer)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

impl Seek for ValueReader {
    /// To any position, also behind the end. Costs nothing; the next read may have to load another piece.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let before = || io::Error::new(ErrorKind::InvalidInput, "a position before the beginning of the value");
        self.position = position.ok_or_else(before)?;
        Ok(self.position)
    }
}

impl fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueReader").field("len", &self.len()).field("position", &self.position).finish()
    }
}

/// The same error, as a reader reports it.
fn as_io(error: Error) -> io::Error {
    let kind = match &error {
        Error::Corruption { .. } => ErrorKind::InvalidData,
        // Whoever reads to the end would try again and say nothing. Calls that can be repeated were repeated below.
        Error::Io { source, .. } if source.kind() == ErrorKind::Interrupted => ErrorKind::Other,
        Error::Io { source, .. } => source.kind(),
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
