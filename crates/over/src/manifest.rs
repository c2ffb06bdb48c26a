//! The manifest, in Bifold's format (`docs/formats/manifest.md`): which value files and logs count, and up to which
//! commit the index was synced. It names one keyspace, whose options Bifold's engine refuses: the keys are elsewhere.
//!
//! A record is synced before what it describes is relied on, or a file that it releases is deleted. Opening a store
//! writes a new manifest, as `MANIFEST.tmp`, which is renamed when it is synced.

use std::collections::BTreeMap;

use bifold_contract::{
    Corruption, Edit, Error, FileId, IoSource, KeyspaceEdit, LogFloor, Result, SeqNo, ValueEdit, ValueFileMeta,
};
use bifold_format::{manifest, names};
use bifold_io::{Dir, Writer};

use crate::{log::KEYSPACE, options::Placement};

/// The manifest is rewritten when its edits exceed this many bytes plus twice its size after the last time.
const EDIT_BYTES_MAX: u64 = 1 << 20;

/// The manifest of an open store.
pub(crate) struct Manifest {
    dir: Dir,
    file: Writer,
    /// Its length when it was written.
    first_bytes: u64,
    store: u64,
    placement: Placement,
    /// All commits up to this one are in the index, and were when it was last synced.
    pub flushed: SeqNo,
    /// All commits up to this one are in the index, perhaps not durably.
    pub applied: SeqNo,
    /// Where replay begins: what is before that is in the index for good.
    log_floor: LogFloor,
}

/// What the manifest says.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub store: u64,
    pub placement: Placement,
    pub next_file: FileId,
    pub log_floor: LogFloor,
    pub flushed: SeqNo,
    values: BTreeMap<FileId, ValueFileMeta>,
    garbage: BTreeMap<FileId, u64>,
}

/// The options of the keyspace, which say who keeps its keys.
fn options_of(placement: Placement) -> String {
    format!("keys_are_in = \"another engine: open this with bifold-over\"\nplacement = \"{}\"\n", placement.name())
}

impl Manifest {
    /// Replaces the manifest by one that says this.
    ///
    /// # Errors
    /// I/O errors. Then either the old one or the new one is valid, and nothing must be appended.
    pub fn create(dir: &Dir, recorded: &Recorded, now: &Edit) -> Result<Self> {
        let Recorded { store, placement, flushed, .. } = *recorded;
        let file = write(dir, store, now)?;
        let (first_bytes, log_floor) = (file.len(), now.log_floor.unwrap_or_default());
        Ok(Self { dir: dir.clone(), file, first_bytes, store, placement, flushed, applied: flushed, log_floor })
    }

    /// The number of the store.
    pub fn store(&self) -> u64 {
        self.store
    }

    /// Makes `edit` durable.
    ///
    /// # Errors
    /// I/O errors; whether it took effect is then unknown until the store is opened again.
    pub fn append(&mut self, edit: &Edit) -> Result<()> {
        self.file.append(&[&manifest::encode_record(edit, self.store, self.file.len())])?;
        self.log_floor = edit.log_floor.unwrap_or(self.log_floor);
        self.file.sync()
    }

    /// Rewrites it if it is long. `values` says what edits have recorded of value files.
    ///
    /// # Errors
    /// As [`Manifest::create`].
    pub fn keep_short(&mut self, next_file: FileId, values: impl FnOnce() -> ValueEdit) -> Result<()> {
        if self.file.len() <= EDIT_BYTES_MAX + 2 * self.first_bytes {
            return Ok(());
        }
        let now = whole(self.placement, self.flushed, (next_file, self.log_floor), values());
        self.file = write(&self.dir, self.store, &now)?;
        self.first_bytes = self.file.len();
        Ok(())
    }
}

fn write(dir: &Dir, store: u64, now: &Edit) -> Result<Writer> {
    let header = manifest::header(store);
    let record = manifest::encode_record(now, store, header.len() as u64);
    dir.remove(names::MANIFEST_TEMPORARY)?;
    let file = dir.create(names::MANIFEST_TEMPORARY, IoSource::Manifest)?;
    file.append(&[&header, &record])?;
    file.sync()?;
    dir.rename(names::MANIFEST_TEMPORARY, names::MANIFEST)?;
    dir.sync()?;
    // By its final name: errors must not name the temporary file.
    dir.open_append(names::MANIFEST, IoSource::Manifest)
}

/// Everything, as the edit with which a manifest begins.
pub(crate) fn whole(
    placement: Placement,
    flushed: SeqNo,
    (next_file, log_floor): (FileId, LogFloor),
    values: ValueEdit,
) -> Edit {
    let created = KeyspaceEdit::Created { id: KEYSPACE, name: "over".to_owned(), options: options_of(placement) };
    let flushed = KeyspaceEdit::Flushed { id: KEYSPACE, seqno: flushed };
    Edit {
        next_file: Some(next_file),
        log_floor: Some(log_floor),
        keyspaces: vec![created, flushed],
        values,
        ..Edit::default()
    }
}

impl Recorded {
    /// What there is to say of a new store.
    pub fn of_new(store: u64, placement: Placement, log_floor: LogFloor) -> Self {
        Self { store, placement, log_floor, ..Self::default() }
    }

    /// What the manifest of `dir` says; `None` if there is none.
    ///
    /// # Errors
    /// I/O errors; corruption; [`Error::InvalidArgument`] for the manifest of a Bifold database.
    pub fn read(dir: &Dir) -> Result<Option<Self>> {
        let Some(len) = dir.len(names::MANIFEST)? else { return Ok(None) };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        dir.open(names::MANIFEST)?.read_at(&mut bytes, 0, IoSource::Recovery)?;
        let path = dir.file(names::MANIFEST);
        let reader = manifest::ManifestReader::new(&bytes).map_err(|damage| damage.of(&path))?;
        let mut recorded = Self { store: reader.database_id(), ..Self::default() };
        let mut is_ours = false;
        for record in reader {
            let record = record.map_err(|damage| damage.of(&path))?;
            if !is_ours {
                recorded.placement = placement_of(&record.edit).ok_or_else(|| {
                    let reason = format!("{} holds a Bifold database: open it with Bifold", dir.path().display());
                    Error::invalid("directory", reason)
                })?;
                is_ours = true;
            }
            recorded.apply(record.edit).map_err(|what| {
                let expected = "an edit that fits what is before it";
                Corruption::new(record.offset, "manifest record", expected, what).of(&path)
            })?;
        }
        Ok(Some(recorded))
    }

    fn apply(&mut self, edit: Edit) -> std::result::Result<(), String> {
        self.next_file = self.next_file.max(edit.next_file.unwrap_or(0));
        self.log_floor = edit.log_floor.unwrap_or(self.log_floor);
        for change in edit.keyspaces {
            match change {
                KeyspaceEdit::Created { id: KEYSPACE, .. } => {}
                KeyspaceEdit::Flushed { id: KEYSPACE, seqno } => self.flushed = self.flushed.max(seqno),
                other => return Err(format!("{other:?}")),
            }
        }
        for id in edit.values.removed {
            if self.values.remove(&id).is_none() {
                return Err(format!("value file {id} removed, but it does not exist"));
            }
        }
        for file in edit.values.added {
            let id = file.id;
            if file.keyspace != KEYSPACE || self.values.insert(id, file).is_some() {
                return Err(format!("value file {id} added twice, or of another keyspace"));
            }
        }
        for (id, bytes, _) in edit.values.garbage {
            let sum = self.garbage.entry(id).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let values = &self.values;
        self.garbage.retain(|id, _| values.contains_key(id));
        Ok(())
    }

    /// What it says of value files.
    pub fn value_edit(&self) -> ValueEdit {
        ValueEdit {
            added: self.values.values().cloned().collect(),
            garbage: self.garbage.iter().map(|(&id, &bytes)| (id, bytes, 0)).collect(),
            ..ValueEdit::default()
        }
    }

    /// Whether a value file is named.
    pub fn names(&self, id: FileId) -> bool {
        self.values.contains_key(&id)
    }
}

/// The placement of the store whose manifest begins with this edit; `None` if it is not one of ours.
fn placement_of(first: &Edit) -> Option<Placement> {
    first.keyspaces.iter().find_map(|change| match change {
        KeyspaceEdit::Created { id: KEYSPACE, options, .. } => {
            Placement::ALL.into_iter().find(|&placement| *options == options_of(placement))
        }
        _ => None,
    })
}
