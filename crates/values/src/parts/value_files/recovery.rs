//! Value files of an earlier session: opening them, what logs may find in them, and cutting off what never happened.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{
    Corruption, FileId, IoSource, Pointer, Result, SeqNo, Value, ValueFileMeta, placement::Replayed,
};
use bifold_format::{
    names,
    value::{self, DESCRIPTION_BYTES_MAX, Description},
};
use bifold_io::Dir;

use super::{Extent, GONE, ORDERED, ValueFile, ValueFiles};
use crate::parts::{
    hash_map::HashMap,
    scan::{Met, Scan},
    sync::LockExt,
};

/// What is to become of a replayed operation's pointer.
#[derive(Debug)]
pub enum Kept<'a> {
    /// It stays as it is.
    As(Option<Pointer>),
    /// The value is written anew.
    Value(&'a [u8], Value),
}

impl ValueFiles {
    /// Opens a file of an earlier session. One that is not listed counts if it says that it is of this keyspace.
    pub(super) fn adopt(&self, id: FileId, meta: Option<&ValueFileMeta>) -> Result<()> {
        let name = names::value(id);
        let path = self.home.dir.file(&name);
        if meta.is_some() && self.home.dir.len(&name)?.is_none() {
            return Err(Corruption::new(0, "value file", "a file that MANIFEST lists", "no such file").of(path));
        }
        let reader = self.home.dir.open(&name)?;
        let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
        reader.read_at(&mut first, 0, IoSource::Recovery)?;
        let described = value::describe(&first).and_then(|(found, description, start)| {
            if found == id { Ok((description, start)) } else { Err(wrong_id(id, found)) }
        });
        let (description, start) = match described {
            Ok(described) => described,
            Err(damage) if meta.is_some() => return Err(damage.of(path)),
            // Begun right before a crash: nothing in it was ever pointed at.
            Err(_) => return Ok(()),
        };
        if description.keyspace != self.home.keyspace {
            return Ok(());
        }
        let whole = meta.map_or(start, |meta| meta.bytes);
        if reader.len() < whole {
            let (expected, found) = (format!("at least {whole} bytes"), format!("{} bytes", reader.len()));
            return Err(Corruption::new(reader.len(), "value file", expected, found).of(path));
        }
        let end = reader.len();
        // For appending it is opened by what is appended.
        let reader = if self.home.writes { self.home.dir.open_mapped(&name)? } else { reader };
        let extent = meta.filter(|meta| meta.class == ORDERED).map(|meta| Extent {
            level: meta.level,
            entries: meta.entries,
            smallest: meta.smallest.clone(),
            largest: meta.largest.clone(),
        });
        let file = Arc::new(ValueFile {
            id,
            description,
            reader,
            writer: Mutex::default(),
            start,
            len: AtomicU64::new(whole),
            listed: AtomicU64::new(meta.map_or(0, |_| whole)),
            dead: AtomicU64::new(0),
            listed_dead: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            sealed: AtomicBool::new(self.home.dir.is_shared(&name)?),
            extent: extent.map_or_else(OnceLock::new, OnceLock::from),
            tags: AtomicU32::new(meta.filter(|_| cfg!(not(planted = "forget_tags"))).map_or(0, |meta| meta.tags)),
            syncing: AtomicU64::new(0),
            synced: AtomicU64::new(whole),
        });
        self.walk_tail(&file, end)?;
        self.insert(std::slice::from_ref(&file));
        // As durable as the logs that point at it, before anything that is replayed becomes a table.
        if self.home.writes && file.len() > whole.max(start) { self.writer(&file)?.sync() } else { Ok(()) }
    }

    /// Notes which records stand behind the part of the file that is known to be whole.
    fn walk_tail(&self, file: &Arc<ValueFile>, end: u64) -> Result<()> {
        let mut scan = Scan::new(file, file.len(), end, IoSource::Recovery);
        let mut tail = Vec::new();
        while let Met::Record(record, len) = scan.step()? {
            let record_end = record.offset + u64::from(len);
            tail.push((record.seqno, record_end));
            file.len.store(record_end, Relaxed);
        }
        self.tails.hold().insert(file.id, tail);
        Ok(())
    }

    /// During recovery: what is to become of a replayed operation's pointer.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn unlisted_value<'a>(&self, op: Replayed<'a>) -> Result<Kept<'a>> {
        let Replayed::Pointer { key, pointer } = op else { return Ok(Kept::As(None)) };
        match self.get(pointer.file) {
            Some(file) if pointer.offset + u64::from(pointer.len) > file.listed.load(Relaxed) => {
                let value = self.read(key, pointer, IoSource::Recovery)?;
                Ok(value.map_or(Kept::As(Some(pointer)), |value| Kept::Value(key, value)))
            }
            _ => Ok(Kept::As(Some(pointer))),
        }
    }

    /// Whether a pointer met in the log leads to a whole record, or to a file that is gone because all it held has moved.
    #[must_use]
    pub fn resolves(&self, pointer: Pointer) -> bool {
        match self.get(pointer.file) {
            Some(file) => pointer.offset + u64::from(pointer.len) <= file.len(),
            None => self.gone.hold().contains_key(&pointer.file),
        }
    }

    /// The last commit that was durable before a file was deleted which logs may still point into.
    #[must_use]
    pub fn durable_before(&self) -> SeqNo {
        self.gone.hold().values().copied().max().unwrap_or(0)
    }

    /// Forgets what the manifest does not list or, when nothing is written, what follows `last`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn settle(&self, last: SeqNo) -> Result<()> {
        let writes = self.home.writes;
        for (id, tail) in self.tails.hold().iter() {
            let Some(file) = self.get(*id) else { continue };
            let listed = file.listed.load(Relaxed).max(file.start);
            let happened = tail.iter().take_while(|(seqno, _)| *seqno <= last).last();
            let len = if writes { listed } else { happened.map_or(listed, |(_, end)| *end) };
            file.len.store(len, Relaxed);
            if writes && file.listed.load(Relaxed) == 0 {
                self.forgotten.hold().insert(*id);
            }
        }
        Ok(())
    }

    /// Cuts off what was forgotten.
    ///
    /// # Errors
    /// I/O errors.
    pub fn cut(&self) -> Result<()> {
        self.is_replaying.store(false, Relaxed);
        let forgotten = std::mem::take(&mut *self.forgotten.hold());
        {
            let _alone = self.change.hold();
            let mut all = HashMap::clone(&self.all.load());
            all.retain(|id, _| !forgotten.contains(id));
            self.all.store(Arc::new(all));
        }
        for id in std::mem::take(&mut *self.tails.hold()).into_keys() {
            let Some(file) = self.get(id) else { continue };
            let name = names::value(id);
            if self.home.dir.len(&name)?.is_some_and(|len| len > file.len()) {
                self.home.dir.truncate(&name, file.len())?;
            }
        }
        Ok(())
    }
}

/// Reads every byte of a value file that the manifest lists.
///
/// # Errors
/// The first damage; I/O errors.
pub fn verify(dir: &Dir, meta: &ValueFileMeta) -> Result<()> {
    if meta.tags & GONE != 0 {
        return Ok(());
    }
    let name = names::value(meta.id);
    let path = dir.file(&name);
    if dir.len(&name)?.is_none() {
        return Err(Corruption::new(0, "value file", "a file that MANIFEST lists", "no such file").of(path));
    }
    let reader = dir.open(&name)?;
    if reader.len() < meta.bytes {
        let (expected, found) = (format!("at least {} bytes", meta.bytes), format!("{} bytes", reader.len()));
        return Err(Corruption::new(reader.len(), "value file", expected, found).of(path));
    }
    let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
    reader.read_at(&mut first, 0, IoSource::Maintenance)?;
    let listed = Description { class: meta.class, keyspace: meta.keyspace, group: meta.group };
    let start = match value::describe(&first) {
        Ok((id, described, start)) if (id, described) == (meta.id, listed) => start,
        Ok((id, described, _)) => {
            let (expected, found) = (format!("file {}, {listed:?}", meta.id), format!("file {id}, {described:?}"));
            return Err(Corruption::new(0, "file header", expected, found).of(path));
        }
        Err(damage) => return Err(damage.of(path)),
    };
    let mut scan = Scan::of(meta.id, reader, start, meta.bytes, IoSource::Maintenance);
    while let Some((record, _)) = scan.sound()? {
        record.check().map_err(|damage| damage.of(&path))?;
    }
    Ok(())
}

fn wrong_id(expected: FileId, found: FileId) -> Corruption {
    Corruption::new(16, "file header", format!("file id {expected}"), format!("file id {found}"))
}
