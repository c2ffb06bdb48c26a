//! Value files of an earlier session: opening them, what logs find in them, and truncating what was never committed.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{Corruption, Error, FileId, IoSource, Pointer, Result, SeqNo, ValueFileMeta, planted};
use bifold_format::{
    names::{self, FileKind},
    value::{self, DESCRIPTION_BYTES_MAX, Description},
};
use bifold_io::Dir;

use super::{APPENDED, COLD, Extent, FileAccess, ORDERED, ValueFile, ValueFiles};
use crate::{
    parts::{
        hash_map::HashMap,
        scan::{Met, Scan, no_record},
        sync::LockExt,
    },
    placement::Located,
};

/// What follows the length of a file that the manifest records.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Whole records before the first torn one: the number of each, and where it ends.
    records: Vec<(SeqNo, u64)>,
    /// Damaged ranges between them, which no crash explains.
    damaged: Vec<(u64, u64)>,
    /// Where the file ends.
    pub(super) file_end: u64,
    /// The ends of the records that commits point at, each with the number of the commit; and the bytes of these
    /// records.
    referred: Vec<(SeqNo, u64)>,
    referred_bytes: u64,
}

impl Tail {
    /// Where the records end that commits up to `last` have written or point at. The first record with a later number
    /// ends them: records that commits append have ascending numbers, and a copy is never newer than the commit that
    /// points at it.
    fn end(&self, start: u64, last: SeqNo) -> u64 {
        let whole = self.records.iter().take_while(|(seqno, _)| *seqno <= last).last();
        let referred = self.referred.iter().map(|&(_, end)| end).max();
        whole.map_or(start, |&(_, end)| end).max(referred.unwrap_or(start))
    }

    /// How much of the file is on disk. `recorded_len` bytes are. A sync covers a file up to its end, so everything
    /// before a record that a durable commit points at is on disk. The numbers of the records themselves say nothing:
    /// copies and tags have those of their originals.
    fn on_disk(&self, recorded_len: u64, durable: SeqNo) -> u64 {
        let durable = self.referred.iter().filter(|(commit, _)| *commit <= durable);
        durable.map(|&(_, end)| end).max().unwrap_or(recorded_len)
    }
}

impl ValueFiles {
    /// Opens a file of an earlier session. An unrecorded one counts if its header names this keyspace.
    pub(super) fn adopt(&self, id: FileId, meta: Option<&ValueFileMeta>) -> Result<()> {
        let name = names::value(id);
        let path = self.context.dir.file(&name);
        if meta.is_some() && self.context.dir.len(&name)?.is_none() {
            return Err(Corruption::new(0, "value file", "a file recorded in MANIFEST", "no such file").of(path));
        }
        let reader = self.context.dir.open(&name)?;
        let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
        reader.read_at(&mut first, 0, IoSource::Recovery)?;
        let described = value::describe(&first).and_then(|(found, description, start)| {
            if found == id { Ok((description, start)) } else { Err(wrong_id(id, found)) }
        });
        let (description, start) = match described {
            Ok(described) => described,
            Err(damage) if meta.is_some() => return Err(damage.of(path)),
            // Begun right before a crash: what it held was not durable.
            Err(_) if value::is_torn_beginning(&first, id) => return Ok(()),
            Err(damage) => {
                self.unreadable.hold().insert(id, damage.of(path));
                return Ok(());
            }
        };
        if description.keyspace != self.context.keyspace {
            return Ok(());
        }
        let whole = meta.map_or(start, |meta| meta.bytes);
        if reader.len() < whole {
            let (expected, found) = (format!("at least {whole} bytes"), format!("{} bytes", reader.len()));
            return Err(Corruption::new(reader.len(), "value file", expected, found).of(path));
        }
        let end = reader.len();
        // It is opened for appending by the first append.
        let writes = self.context.access == FileAccess::Write;
        let reader = if writes { self.context.dir.open_mapped(&name)? } else { reader };
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
            recorded_len: AtomicU64::new(meta.map_or(0, |_| whole)),
            dead: AtomicU64::new(0),
            recorded_dead: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            is_of_flush: false,
            // Who only reads need not know, and the file may have its second name just now.
            sealed: AtomicBool::new(writes && self.context.dir.is_shared(&name)?),
            extent: extent.map_or_else(OnceLock::new, OnceLock::from),
            tags: AtomicU32::new(meta.filter(|_| !planted!("forget_tags")).map_or(0, |meta| meta.tags)),
            syncing: AtomicU64::new(0),
            synced: AtomicU64::new(whole),
        });
        self.walk_tail(&file, end)?;
        self.insert(std::slice::from_ref(&file));
        Ok(())
    }

    /// Notes what follows the recorded length of the file.
    fn walk_tail(&self, file: &Arc<ValueFile>, end: u64) -> Result<()> {
        let mut tail = Tail { file_end: end, ..Tail::default() };
        if self.context.access == FileAccess::Follow {
            self.tails.hold().insert(file.id, tail);
            return Ok(());
        }
        let mut scan = Scan::new(file, file.len(), end, IoSource::Recovery);
        loop {
            match scan.step()? {
                Met::Record(record, len) => {
                    let record_end = record.offset + u64::from(len);
                    tail.records.push((record.seqno, record_end));
                    file.len.store(record_end, Relaxed);
                }
                Met::Damage(offset) if !planted!("damage_is_torn") => {
                    let next = scan.find_next()?;
                    tail.damaged.push((offset, next.unwrap_or(end)));
                    if next.is_none() {
                        break;
                    }
                }
                Met::Damage(_) | Met::Torn(_) | Met::End => break,
            }
        }
        if end > file.recorded_len.load(Relaxed) {
            self.tails.hold().insert(file.id, tail);
        }
        Ok(())
    }

    /// What a pointer in the log leads to.
    ///
    /// # Errors
    /// Corruption, if the file does not say which keyspace it belongs to.
    pub fn locate(&self, pointer: Pointer) -> Result<Located> {
        if let Some(damage) = self.unreadable.hold().get(&pointer.file) {
            return Err(damage.clone());
        }
        if self.context.access == FileAccess::Follow {
            return self.locate_followed(pointer);
        }
        let end = pointer.offset.saturating_add(u64::from(pointer.len));
        let is_damaged = |tail: &Tail| tail.damaged.iter().any(|&(from, to)| pointer.offset < to && end > from);
        Ok(match self.get(pointer.file) {
            Some(_) if self.tails.hold().get(&pointer.file).is_some_and(is_damaged) => Located::Damaged,
            Some(file) if end <= file.len() => Located::Whole,
            None if self.deleted.hold().contains_key(&pointer.file) => Located::Whole,
            _ => Located::Missing,
        })
    }

    /// The commit of this number, which is kept, points there.
    pub fn refer(&self, pointer: Pointer, commit: SeqNo) {
        if self.context.access == FileAccess::Follow {
            return;
        }
        let end = pointer.offset.saturating_add(u64::from(pointer.len));
        let mut tails = self.tails.hold();
        let tail = tails.get_mut(&pointer.file);
        if let (Some(tail), Some(file)) = (tail, self.get(pointer.file))
            && end > file.recorded_len.load(Relaxed)
        {
            tail.referred_bytes += u64::from(pointer.len);
            tail.referred.push((commit, end.min(tail.file_end)));
        }
    }

    /// The last commit that was durable before the deletion of a file that logs may still point into.
    #[must_use]
    pub(crate) fn durable_before(&self) -> SeqNo {
        self.deleted.hold().values().copied().max().unwrap_or(0)
    }

    /// Truncates each recorded file to what commits up to `last` have written, and keeps an unrecorded file only if
    /// commits point into it. Returns the numbers of the records beyond the recorded lengths that are kept,
    /// ascending, without those in cold segments.
    ///
    /// What was appended up to the commit `durable` is on disk. The rest is written again in place: no byte is copied
    /// elsewhere, so a full disk has room for it.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn truncate_tails(&self, last: SeqNo, durable: SeqNo) -> Result<Vec<SeqNo>> {
        if self.context.access == FileAccess::Follow {
            return Ok(Vec::new());
        }
        let (mut stay, mut unnamed) = (Vec::new(), Vec::new());
        for (id, tail) in std::mem::take(&mut *self.tails.hold()) {
            let Some(file) = self.get(id) else { continue };
            if !file.is_known() && tail.referred_bytes == 0 {
                // Left by a crash during GC, or by commits that never happened.
                self.forget(id);
                continue;
            }
            let recorded_len = file.recorded_len.load(Relaxed).max(file.start);
            let end = tail.end(recorded_len, last);
            file.len.store(end, Relaxed);
            if file.description.class != APPENDED {
                // Copies whose moves were not committed: the index still points at the originals.
                file.add_dead((end - recorded_len).saturating_sub(tail.referred_bytes));
            }
            // A note that GC has moved to a cold segment ends nothing in the hot one: the file that it came from may be
            // forgotten above, while older files, which were drained too, are in use again. It is written again.
            if file.description.class != COLD || planted!("cold_notes_suffice") {
                stay.extend(tail.records.iter().filter(|(_, record_end)| *record_end <= end).map(|(seqno, _)| *seqno));
            }
            if self.context.access == FileAccess::Write {
                let (is_named, on_disk) = (file.is_known(), tail.on_disk(0, durable));
                self.truncate_file(&file, &tail, end, durable)?;
                if !is_named && on_disk == 0 {
                    unnamed.push(names::value(id));
                }
            }
        }
        if !planted!("trust_cached_names") {
            name_again(&self.context.dir, &unnamed)?;
        }
        stay.sort_unstable();
        Ok(stay)
    }

    fn truncate_file(&self, file: &Arc<ValueFile>, tail: &Tail, end: u64, durable: SeqNo) -> Result<()> {
        let (name, known) = (names::value(file.id), file.recorded_len.load(Relaxed));
        if tail.file_end > end {
            self.context.dir.truncate(&name, end)?;
        }
        let on_disk = tail.on_disk(known, durable);
        if on_disk < end && !planted!("trust_cached_tail") {
            self.context.dir.write_again(&name, on_disk)?;
        }
        file.recorded_len.store(end, Relaxed);
        file.synced.store(end, Relaxed);
        Ok(())
    }

    /// Readers no longer find the file.
    fn forget(&self, id: FileId) {
        let _alone = self.change.hold();
        let mut all = HashMap::clone(&self.all.load());
        all.remove(&id);
        self.all.store(Arc::new(all));
    }
}

/// Makes file names durable that perhaps only a failed sync of the directory has covered. As with bytes, another sync
/// alone would change nothing. Each file has one of its two names at any moment; [`restore_names`] repairs a crash in
/// between.
///
/// # Errors
/// I/O errors.
pub fn name_again(dir: &Dir, files: &[String]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    files.iter().try_for_each(|name| dir.rename(name, &names::again(name)))?;
    dir.sync()?;
    files.iter().try_for_each(|name| dir.rename(&names::again(name), name))?;
    dir.sync()
}

/// Restores the names of files that a crash during recovery left under their other names, and removes unfinished
/// copies.
///
/// # Errors
/// I/O errors; [`Error::InvalidArgument`] where that is needed and nothing may be written.
pub fn restore_names(dir: &Dir, writes: bool) -> Result<()> {
    for name in dir.list()? {
        if writes && names::parse(&name) == FileKind::Temporary && name != names::MANIFEST_TEMPORARY {
            dir.remove(&name)?;
        }
        let Some(known) = names::named_again(&name) else { continue };
        if !writes {
            let reason = format!("a crash interrupted its recovery and left {name}: open it for writing once");
            return Err(Error::invalid("read-only database", reason));
        }
        dir.rename(&name, known)?;
    }
    Ok(())
}

/// Reads every byte of a recorded value file.
///
/// # Errors
/// The first damage; I/O errors.
pub fn verify(dir: &Dir, meta: &ValueFileMeta) -> Result<()> {
    if meta.deleted.is_some() {
        return Ok(());
    }
    let name = names::value(meta.id);
    let path = dir.file(&name);
    if dir.len(&name)?.is_none() {
        return Err(Corruption::new(0, "value file", "a file recorded in MANIFEST", "no such file").of(path));
    }
    let reader = dir.open(&name)?;
    if reader.len() < meta.bytes {
        let (expected, found) = (format!("at least {} bytes", meta.bytes), format!("{} bytes", reader.len()));
        return Err(Corruption::new(reader.len(), "value file", expected, found).of(path));
    }
    let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
    reader.read_at(&mut first, 0, IoSource::Maintenance)?;
    let recorded = Description { class: meta.class, keyspace: meta.keyspace, group: meta.group };
    let start = match value::describe(&first) {
        Ok((id, described, start)) if (id, described) == (meta.id, recorded) => start,
        Ok((id, described, _)) => {
            let (expected, found) = (format!("file {}, {recorded:?}", meta.id), format!("file {id}, {described:?}"));
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

/// Reads what follows the first `recorded_len` bytes of a value file, the length in the manifest, if it is recorded. A
/// crash may have torn it. All damage that no crash explains is reported.
///
/// # Errors
/// I/O errors.
pub fn verify_tail(dir: &Dir, id: FileId, recorded_len: Option<u64>) -> Result<Vec<Error>> {
    let reader = dir.open(&names::value(id))?;
    let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
    reader.read_at(&mut first, 0, IoSource::Maintenance)?;
    // A file without a valid beginning was begun right before a crash, and nothing points there.
    let Ok((_, _, start)) = value::describe(&first) else { return Ok(Vec::new()) };
    let (path, end) = (dir.file(&names::value(id)), reader.len());
    let mut scan = Scan::of(id, reader, recorded_len.unwrap_or(start), end, IoSource::Maintenance);
    let mut damage = Vec::new();
    loop {
        match scan.step()? {
            Met::Record(..) => {}
            Met::Damage(offset) => {
                damage.push(no_record(offset).of(&path));
                if scan.find_next()?.is_none() {
                    return Ok(damage);
                }
            }
            Met::Torn(_) | Met::End => return Ok(damage),
        }
    }
}

fn wrong_id(expected: FileId, found: FileId) -> Corruption {
    Corruption::new(16, "file header", format!("file id {expected}"), format!("file id {found}"))
}
