//! The manifest file: every change of tables, value files and keyspaces, one record each.
//!
//! ```text
//! MANIFEST   header │ snapshot of the whole state │ edit │ edit │ …
//! ```
//!
//! A record is appended and synced before the change it describes is visible or any file it releases is deleted. A
//! new manifest is written as `MANIFEST.tmp`, synced and renamed over the old one, so there is always exactly one
//! complete manifest. Opening a database for writing always writes a new one: so everything that recovery read is
//! durable before it is served, even if the last sync before the crash failed.

use bifold_contract::{Edit, IoSource, Result, planted};
use bifold_format::{manifest, names};
use bifold_io::{Dir, Writer, pins::Position};

/// The manifest is rewritten when the edits since its snapshot exceed this many bytes plus the snapshot's own size.
const EDIT_BYTES_MAX: u64 = 1 << 20;

/// The same for a disk that is short of room.
const EDIT_BYTES_SHORT: u64 = 16 << 10;

/// The manifest of an open database.
pub(crate) struct ManifestFile {
    dir: Dir,
    /// `None` when the database is open read-only.
    file: Option<Writer>,
    snapshot_bytes: u64,
    database_id: u64,
    /// The next file number when it was begun.
    begun_at: u64,
}

impl ManifestFile {
    /// A manifest that holds only `state`. It replaces any existing manifest.
    ///
    /// # Errors
    /// I/O errors; the old manifest is then still valid.
    pub fn create(dir: &Dir, database_id: u64, state: &Edit) -> Result<Self> {
        let mut manifest = Self::frozen(dir, database_id);
        manifest.rewrite(state)?;
        Ok(manifest)
    }

    /// The manifest of a database open read-only: it takes no edits.
    pub fn frozen(dir: &Dir, database_id: u64) -> Self {
        Self { dir: dir.clone(), file: None, snapshot_bytes: 0, database_id, begun_at: 0 }
    }

    /// The id of the database, by which files of different databases differ.
    pub fn database_id(&self) -> u64 {
        self.database_id
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, Writer::len)
    }

    /// Makes `edit` durable.
    ///
    /// # Errors
    /// I/O errors; whether the edit took effect is then unknown until the database is opened again.
    pub fn append(&mut self, edit: &Edit) -> Result<()> {
        if let Some(file) = &self.file {
            file.append(&[&manifest::encode_record(edit, self.database_id, file.len())])?;
            if !planted!("skip_manifest_sync") {
                file.sync()?;
            }
            self.note_position();
        }
        Ok(())
    }

    /// From now on readers may have read this far.
    fn note_position(&self) {
        if let Some(pins) = self.dir.pins() {
            pins.note_position(Position { manifest: self.begun_at, offset: self.bytes() });
        }
    }

    /// Its size when it was last rewritten, in bytes.
    pub fn snapshot_bytes(&self) -> u64 {
        self.snapshot_bytes
    }

    /// Whether it is time to rewrite it: earlier if the disk is short of room.
    pub fn is_long(&self, is_short: bool) -> bool {
        self.bytes() > self.snapshot_bytes * 2 + if is_short { EDIT_BYTES_SHORT } else { EDIT_BYTES_MAX }
    }

    /// Rewrites it as one snapshot.
    ///
    /// # Errors
    /// I/O errors; either the old manifest or the new one is then valid, and nothing must be appended.
    pub fn rewrite(&mut self, state: &Edit) -> Result<()> {
        let header = manifest::header(self.database_id);
        let record = manifest::encode_record(state, self.database_id, header.len() as u64);
        self.dir.remove(names::MANIFEST_TEMPORARY)?;
        let file = self.dir.create(names::MANIFEST_TEMPORARY, IoSource::Manifest)?;
        file.append(&[&header, &record])?;
        if !planted!("skip_manifest_sync") {
            file.sync()?;
        }
        self.dir.rename(names::MANIFEST_TEMPORARY, names::MANIFEST)?;
        if !planted!("skip_dir_sync") {
            self.dir.sync()?;
        }
        self.snapshot_bytes = file.len();
        // Opened by its final name: errors must not name the temporary file.
        self.file = Some(self.dir.open_append(names::MANIFEST, IoSource::Manifest)?);
        self.begun_at = state.next_file.unwrap_or(0);
        self.note_position();
        Ok(())
    }
}
