//! How far the manifest of a running database has been read.

use std::{collections::BTreeSet, fmt};

use bifold_contract::{Corruption, Edit, FileId, IoSource, KeyspaceEdit, KeyspaceId, Result, planted};
use bifold_format::{
    frame::{FILE_HEADER_BYTES, HEADER_BYTES},
    manifest::{ManifestReader, ManifestRecord},
    names,
    walk::{Met, Walk},
};
use bifold_io::{Dir, pins::Position};

use crate::open::recover::{ManifestState, read_whole};

/// The header of the file and that of its first record. Both have checksums, and the record says which file number is
/// next, which is another one in each manifest: so these bytes distinguish manifests.
const BEGINNING_BYTES: usize = FILE_HEADER_BYTES + HEADER_BYTES;

/// A place in one manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestPlace {
    beginning: Vec<u8>,
    position: Position,
    /// How long the file was.
    seen_bytes: u64,
}

impl fmt::Display for ManifestPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the manifest from file number {} on", self.position.offset, self.position.manifest)
    }
}

/// What edits have changed.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub keyspaces: BTreeSet<KeyspaceId>,
    /// Value files that are no longer there, even if this process keeps them from being deleted.
    pub removed: BTreeSet<FileId>,
}

impl ManifestPlace {
    /// Reads the manifest; `None` if there is none.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn read_all(dir: &Dir) -> Result<Option<(Self, ManifestState)>> {
        if dir.len(names::MANIFEST)?.is_none() {
            return Ok(None);
        }
        let bytes = read_whole(dir, names::MANIFEST, IoSource::Recovery)?;
        let path = dir.file(names::MANIFEST);
        let mut reader = ManifestReader::new(&bytes).map_err(|e| e.of(&path))?;
        let mut state = ManifestState { database_id: reader.database_id(), ..ManifestState::default() };
        let mut begun_at = None;
        for record in reader.by_ref() {
            let record = record.map_err(|e| e.of(&path))?;
            begun_at.get_or_insert(record.edit.next_file.unwrap_or(0));
            apply(&mut state, record).map_err(|e| e.of(&path))?;
        }
        let beginning = bytes.get(..BEGINNING_BYTES).unwrap_or_default().to_vec();
        let position = Position { manifest: begun_at.unwrap_or(0), offset: reader.position() };
        Ok(Some((Self { beginning, position, seen_bytes: bytes.len() as u64 }, state)))
    }

    /// The end of the last record that was read.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Whether this is a later place than `earlier`, or the same one, in the history of one database. Each manifest
    /// begins with a larger number than the one before.
    pub fn goes_on_from(&self, earlier: &Self) -> bool {
        match self.beginning == earlier.beginning {
            true => self.position >= earlier.position,
            false => self.position.manifest > earlier.position.manifest,
        }
    }

    /// Whether nothing was appended since.
    ///
    /// # Errors
    /// I/O errors.
    pub fn is_all(&self, dir: &Dir) -> Result<bool> {
        let file = dir.open(names::MANIFEST)?;
        Ok(file.len() == self.seen_bytes && self.is_same(&file)?)
    }

    fn is_same(&self, file: &bifold_io::Reader) -> Result<bool> {
        if file.len() < self.position.offset {
            return Ok(false);
        }
        let mut beginning = vec![0; self.beginning.len()];
        file.read_at(&mut beginning, 0, IoSource::Recovery)?;
        Ok(beginning == self.beginning)
    }

    /// Applies what was appended since to `state`. `None` if there is another manifest now.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn read_on(mut self, dir: &Dir, state: &mut ManifestState) -> Result<Option<(Self, Touched)>> {
        let file = dir.open(names::MANIFEST)?;
        if !self.is_same(&file)? {
            return Ok(None);
        }
        let mut touched = Touched::default();
        let mut walk = Walk::new(state.database_id, self.position.offset, file.len());
        let read = |buffer: &mut [u8], at: u64| file.read_at(buffer, at, IoSource::Recovery);
        loop {
            match walk.step(read)? {
                Met::Record(frame, len) => {
                    let record = ManifestRecord::of(&frame).map_err(|e| e.of(file.path()))?;
                    self.position.offset = record.offset + u64::from(len);
                    touched.add(&record.edit, state);
                    apply(state, record).map_err(|e| e.of(file.path()))?;
                }
                Met::Torn(offset) if planted!("torn_end_is_damage") => {
                    return Err(Corruption::new(offset, "manifest record", "a whole one", "a torn one").of(file.path()));
                }
                // The writer is appending it.
                Met::Torn(_) | Met::End => break,
                Met::Damaged { offset, expected, found } => {
                    return Err(Corruption::new(offset, "manifest record", expected, found).of(file.path()));
                }
            }
        }
        self.seen_bytes = file.len();
        Ok(Some((self, touched)))
    }
}

fn apply(state: &mut ManifestState, record: ManifestRecord) -> std::result::Result<(), Corruption> {
    let offset = record.offset;
    let unfit = |what| Corruption::new(offset, "manifest record", "an edit that fits the state before it", what);
    state.apply(record.edit).map_err(unfit)
}

impl Touched {
    /// Notes what an edit changes, before it is applied to `state`.
    fn add(&mut self, edit: &Edit, state: &ManifestState) {
        let Edit { keyspaces, levels, values, .. } = edit;
        let touched = &mut self.keyspaces;
        touched.extend(keyspaces.iter().map(|change| match *change {
            KeyspaceEdit::Created { id, .. }
            | KeyspaceEdit::Configured { id, .. }
            | KeyspaceEdit::Dropped { id }
            | KeyspaceEdit::Expires { id }
            | KeyspaceEdit::Flushed { id, .. } => id,
        }));
        touched.extend(levels.iter().map(|change| change.keyspace));
        touched.extend(values.added.iter().map(|file| file.keyspace));
        let of_file = |id: &FileId| state.values.get(id).map(|file| file.keyspace);
        touched.extend(values.removed.iter().filter_map(of_file));
        touched.extend(values.garbage.iter().filter_map(|(id, ..)| of_file(id)));
        touched.extend(values.tagged.iter().filter_map(|(id, _)| of_file(id)));
        // One whose description changes is in both.
        let stays = |id: &FileId| values.added.iter().any(|file| file.id == *id);
        self.removed.extend(values.removed.iter().filter(|id| !stays(id)));
    }
}
