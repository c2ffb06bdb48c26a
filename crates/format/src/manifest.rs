//! The manifest: one record per change to the database's state. Page: `docs/formats/manifest.md`.
//!
//! ```text
//! file    header whose id names the database │ record │ …       frames of `frame.rs`, each appended after a sync
//! payload field │ field │ …                                      field: tag varint │ length varint │ body
//! ```
//!
//! A reader must stop at an unknown odd tag and may skip an unknown even tag, so later releases can add fields of
//! both kinds.

use std::sync::Arc;

use bifold_contract::{
    Corruption, Edit, FileId, KeyspaceEdit, LargeFileMeta, LevelEdit, LogFloor, SeqNo, TableMeta, ValueEdit,
    ValueFileMeta,
    edit::{TableAdded, TableRemoved},
    expiry::INSTANT_MAX,
    key::MAX_SEQNO,
};

pub use crate::frame::Tail;
use crate::{
    bytes::{Input, put_slice, put_varint},
    frame::{self, Before, FILE_HEADER_BYTES, Frame, Frames, HEADER_BYTES},
    large,
    names::NUMBER_MAX,
    table::properties::{expiring, put_expiring},
};

const MAGIC: [u8; 8] = *b"bifldman";

/// The version this release writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// The number of a keyspace's only tree. (The field could number several, as partitions.)
const THE_TREE: u64 = 0;

/// Tags of fields. All are odd: none may be skipped.
mod tag {
    pub const NEXT_FILE: u64 = 1;
    pub const LAST_SEQNO: u64 = 3;
    pub const LOG_FLOOR: u64 = 5;
    pub const KEYSPACE_CREATED: u64 = 7;
    pub const KEYSPACE_CONFIGURED: u64 = 9;
    pub const KEYSPACE_DROPPED: u64 = 11;
    pub const KEYSPACE_FLUSHED: u64 = 13;
    /// Starts the changes to one tree. The removals, additions and boundaries that follow belong to it.
    pub const LEVELS: u64 = 15;
    pub const TABLE_REMOVED: u64 = 17;
    pub const TABLE_ADDED: u64 = 19;
    pub const VALUE_REMOVED: u64 = 21;
    pub const VALUE_ADDED: u64 = 23;
    pub const VALUE_GARBAGE: u64 = 25;
    pub const VALUE_TAGGED: u64 = 27;
    /// A key at which the tree of the last [`LEVELS`] is split.
    pub const BOUNDARY: u64 = 29;
    pub const KEYSPACE_EXPIRES: u64 = 31;
    pub const SEEN_TIME: u64 = 33;
    pub const LARGE_REMOVED: u64 = 35;
    pub const LARGE_ADDED: u64 = 37;
}

/// The first bytes of the manifest of the database with this id.
#[must_use]
pub fn header(database_id: u64) -> [u8; FILE_HEADER_BYTES] {
    frame::file_header(MAGIC, VERSION, database_id)
}

/// The record of `edit`, to be appended at `offset` of this database's manifest once everything before it is synced.
#[must_use]
pub fn encode_record(edit: &Edit, database_id: u64, offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let start = frame::begin(&mut out);
    encode(edit, &mut out);
    frame::finish(&mut out, start, database_id, offset, 0, Before::Synced);
    out
}

/// Reads the edits of a whole manifest.
#[derive(Clone, Debug)]
pub struct ManifestReader<'a> {
    frames: Frames<'a>,
    begun: bool,
}

/// One edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestRecord {
    /// Where its record starts.
    pub offset: u64,
    /// What changes.
    pub edit: Edit,
}

impl<'a> ManifestReader<'a> {
    /// Reads `bytes`, the content of a manifest.
    ///
    /// # Errors
    /// If its header is damaged.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Corruption> {
        let frames = Frames::new(bytes, MAGIC, VERSION, None, "manifest record")?;
        // A manifest gets its name only after its first record is synced, so a torn header is damage here.
        if frames.tail() != Tail::Clean {
            return Err(Corruption::new(0, "file header", "a whole header", "an incomplete one"));
        }
        Ok(Self { frames, begun: false })
    }

    /// The id of the database.
    #[must_use]
    pub fn database_id(&self) -> u64 {
        self.frames.file()
    }

    /// Where the last record ends that was read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.frames.position()
    }

    /// How the manifest ends, as far as it has been read.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.frames.tail()
    }
}

impl Iterator for ManifestReader<'_> {
    type Item = Result<ManifestRecord, Corruption>;

    fn next(&mut self) -> Option<Self::Item> {
        let begun = std::mem::replace(&mut self.begun, true);
        let Some(frame) = self.frames.next() else {
            // Nor can the first record be torn. Taken for "no keyspaces", it would have every table deleted as
            // unreferenced.
            let missing =
                || Corruption::new(FILE_HEADER_BYTES as u64, "manifest record", "a whole first record", "none");
            return (!begun).then(|| Err(missing()));
        };
        Some(frame.and_then(|frame| ManifestRecord::of(&frame)))
    }
}

impl ManifestRecord {
    /// The edit of a record.
    ///
    /// # Errors
    /// If it has a field that this release does not know, or cannot read.
    pub fn of(frame: &Frame<'_>) -> Result<Self, Corruption> {
        let edit = decode(frame.payload).map_err(|damage| damage.at(frame.offset + HEADER_BYTES as u64))?;
        Ok(Self { offset: frame.offset, edit })
    }
}

/// Appends the fields of `edit`.
fn encode(edit: &Edit, out: &mut Vec<u8>) {
    let mut body = Vec::new();
    let mut field = |tag: u64, fill: Fill<'_>| {
        body.clear();
        fill(&mut body);
        put_varint(out, tag);
        put_slice(out, &body);
    };
    for (tag, number) in
        [(tag::NEXT_FILE, edit.next_file), (tag::LAST_SEQNO, edit.last_seqno), (tag::SEEN_TIME, edit.seen_time)]
    {
        if let Some(number) = number {
            field(tag, &|b| put_varint(b, number));
        }
    }
    if let Some(floor) = edit.log_floor {
        field(tag::LOG_FLOOR, &|b| {
            put_varint(b, floor.log);
            put_varint(b, floor.first);
        });
    }
    for change in &edit.keyspaces {
        let tag = match change {
            KeyspaceEdit::Created { .. } => tag::KEYSPACE_CREATED,
            KeyspaceEdit::Configured { .. } => tag::KEYSPACE_CONFIGURED,
            KeyspaceEdit::Dropped { .. } => tag::KEYSPACE_DROPPED,
            KeyspaceEdit::Flushed { .. } => tag::KEYSPACE_FLUSHED,
            KeyspaceEdit::Expires { .. } => tag::KEYSPACE_EXPIRES,
        };
        field(tag, &|b| encode_keyspace(change, b));
    }
    for change in &edit.levels {
        field(tag::LEVELS, &|b| {
            put_varint(b, u64::from(change.keyspace));
            put_varint(b, THE_TREE);
        });
        for removed in &change.removed {
            field(tag::TABLE_REMOVED, &|b| {
                b.push(removed.level);
                put_varint(b, removed.run);
                put_varint(b, removed.table);
            });
        }
        for added in &change.added {
            field(tag::TABLE_ADDED, &|b| encode_added(added, b));
        }
        for boundary in &change.boundaries {
            field(tag::BOUNDARY, &|b| put_slice(b, boundary));
        }
    }
    encode_values(&edit.values, &mut field);
}

/// Writes the body of a field.
type Fill<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Appends the fields of value files.
fn encode_values(edit: &ValueEdit, field: &mut dyn FnMut(u64, Fill<'_>)) {
    for &file in &edit.removed {
        field(tag::VALUE_REMOVED, &|b| put_varint(b, file));
    }
    for file in &edit.added {
        field(tag::VALUE_ADDED, &|b| encode_value_file(file, b));
    }
    for &(file, bytes, entries) in &edit.garbage {
        field(tag::VALUE_GARBAGE, &|b| [file, bytes, entries].into_iter().for_each(|n| put_varint(b, n)));
    }
    for &(file, tags) in &edit.tagged {
        field(tag::VALUE_TAGGED, &|b| {
            put_varint(b, file);
            put_varint(b, u64::from(tags));
        });
    }
    for &file in &edit.large.removed {
        field(tag::LARGE_REMOVED, &|b| put_varint(b, file));
    }
    for file in &edit.large.added {
        field(tag::LARGE_ADDED, &|b| {
            put_varint(b, u64::from(file.keyspace));
            put_varint(b, file.bytes);
            large::encode(file.named, b);
        });
    }
}

fn encode_keyspace(change: &KeyspaceEdit, out: &mut Vec<u8>) {
    match change {
        KeyspaceEdit::Created { id, name, options } => {
            put_varint(out, u64::from(*id));
            put_slice(out, name.as_bytes());
            put_slice(out, options.as_bytes());
        }
        KeyspaceEdit::Configured { id, options } => {
            put_varint(out, u64::from(*id));
            put_slice(out, options.as_bytes());
        }
        KeyspaceEdit::Dropped { id } | KeyspaceEdit::Expires { id } => put_varint(out, u64::from(*id)),
        KeyspaceEdit::Flushed { id, seqno } => {
            put_varint(out, u64::from(*id));
            put_varint(out, *seqno);
        }
    }
}

fn encode_added(added: &TableAdded, out: &mut Vec<u8>) {
    out.push(added.level);
    put_varint(out, added.run);
    encode_table(&added.table, out);
}

/// Appends what the manifest knows about a table.
pub fn encode_table(table: &TableMeta, out: &mut Vec<u8>) {
    let numbers = [
        table.id,
        table.bytes,
        table.entries,
        table.tombstones,
        table.range_tombstones,
        table.min_seqno,
        table.max_seqno,
        u64::from(table.unbounded),
    ];
    numbers.into_iter().for_each(|n| put_varint(out, n));
    put_slice(out, &table.smallest);
    put_slice(out, &table.largest);
    put_expiring(out, table.expiring);
}

/// Decodes what [`encode_table`] wrote.
///
/// # Errors
/// If the bytes are truncated or not of that form.
pub fn decode_table(input: &mut Input<'_>) -> Result<TableMeta, Corruption> {
    Ok(TableMeta {
        id: file_number(input)?,
        bytes: input.varint()?,
        entries: input.varint()?,
        tombstones: input.varint()?,
        range_tombstones: input.varint()?,
        min_seqno: input.varint()?,
        max_seqno: input.varint()?,
        unbounded: match input.varint()? {
            0 => false,
            1 => true,
            other => return Err(input.damage("0 or 1", other.to_string())),
        },
        smallest: input.slice()?.into(),
        largest: input.slice()?.into(),
        expiring: expiring(input)?,
    })
}

/// The tag of a deleted value file, which has a sequence number in place of its records.
const DELETED: u32 = 1;

/// How often a value file has been rewritten, which no release has ever counted here.
const EPOCH: u32 = 0;

fn encode_value_file(file: &ValueFileMeta, out: &mut Vec<u8>) {
    out.extend_from_slice(&[file.class, file.level]);
    let deleted = if file.deleted.is_some() { DELETED } else { 0 };
    let numbers = [
        file.id,
        u64::from(file.keyspace),
        file.group,
        u64::from(EPOCH),
        u64::from(file.tags | deleted),
        file.bytes,
        file.deleted.unwrap_or(file.entries),
    ];
    numbers.into_iter().for_each(|n| put_varint(out, n));
    put_slice(out, &file.smallest);
    put_slice(out, &file.largest);
}

/// Decodes the fields of one record.
fn decode(payload: &[u8]) -> Result<Edit, Corruption> {
    let mut input = Input::new(payload, "manifest field");
    let mut edit = Edit::default();
    while !input.is_empty() {
        let field = input;
        let (tag, body) = (input.varint()?, input.slice()?);
        let base = (input.position() - body.len()) as u64;
        let mut body = Input::new(body, "manifest field");
        if decode_field(tag, &mut body, &mut edit).map_err(|damage| damage.at(base))? == Known::No {
            if tag % 2 == 1 {
                return Err(field.damage("a field this release knows (upgrade Bifold)", format!("field {tag}")));
            }
            continue;
        }
        body.end().map_err(|damage| damage.at(base))?;
    }
    Ok(edit)
}

#[derive(PartialEq, Eq)]
enum Known {
    Yes,
    No,
}

fn decode_field(tag: u64, body: &mut Input<'_>, edit: &mut Edit) -> Result<Known, Corruption> {
    match tag {
        // At most half of all numbers, so enough are left.
        tag::NEXT_FILE => edit.next_file = Some(body.varint_up_to(NUMBER_MAX / 2)?),
        tag::LAST_SEQNO => edit.last_seqno = Some(seqno(body)?),
        tag::LOG_FLOOR => edit.log_floor = Some(log_floor(body)?),
        tag::SEEN_TIME => edit.seen_time = Some(body.varint_up_to(INSTANT_MAX)?),
        tag::KEYSPACE_CREATED
        | tag::KEYSPACE_CONFIGURED
        | tag::KEYSPACE_DROPPED
        | tag::KEYSPACE_FLUSHED
        | tag::KEYSPACE_EXPIRES => {
            edit.keyspaces.push(decode_keyspace(tag, body)?);
        }
        tag::LEVELS => {
            edit.levels.push(LevelEdit { keyspace: body.varint32()?, ..LevelEdit::default() });
            let tree = *body;
            match body.varint()? {
                THE_TREE => {}
                other => return Err(tree.damage("tree 0, the keyspace's only tree", other.to_string())),
            }
        }
        tag::TABLE_REMOVED => {
            let removed = TableRemoved { level: body.u8()?, run: body.varint()?, table: file_number(body)? };
            levels(edit, body)?.removed.push(removed);
        }
        tag::TABLE_ADDED => {
            let (level, run) = (body.u8()?, body.varint()?);
            let table = Arc::new(decode_table(body)?);
            levels(edit, body)?.added.push(TableAdded { level, run, table });
        }
        tag::BOUNDARY => {
            let boundary = body.slice()?.into();
            levels(edit, body)?.boundaries.push(boundary);
        }
        tag::VALUE_REMOVED => edit.values.removed.push(file_number(body)?),
        tag::VALUE_ADDED => edit.values.added.push(decode_value_file(body)?),
        tag::VALUE_GARBAGE => {
            let ValueEdit { garbage, .. } = &mut edit.values;
            garbage.push((body.varint()?, body.varint()?, body.varint()?));
        }
        tag::VALUE_TAGGED => edit.values.tagged.push((body.varint()?, body.varint32()?)),
        tag::LARGE_REMOVED => edit.values.large.removed.push(file_number(body)?),
        tag::LARGE_ADDED => {
            let (keyspace, bytes) = (body.varint32()?, body.varint()?);
            edit.values.large.added.push(LargeFileMeta { keyspace, bytes, named: large::decode_from(body)? });
        }
        _ => return Ok(Known::No),
    }
    Ok(Known::Yes)
}

/// The number of a file. A number above [`NUMBER_MAX`] would leave none for new files.
fn file_number(body: &mut Input<'_>) -> Result<FileId, Corruption> {
    body.varint_up_to(NUMBER_MAX)
}

/// The sequence number of a commit. The largest of all is never handed out: there is always a next one.
fn seqno(body: &mut Input<'_>) -> Result<SeqNo, Corruption> {
    body.varint_up_to(MAX_SEQNO - 1)
}

fn log_floor(body: &mut Input<'_>) -> Result<LogFloor, Corruption> {
    let log = file_number(body)?;
    let at = *body;
    match body.varint_up_to(MAX_SEQNO)? {
        0 => Err(at.damage("a commit's number, 1 or more", "0")),
        first => Ok(LogFloor { log, first }),
    }
}

fn levels<'e>(edit: &'e mut Edit, body: &Input<'_>) -> Result<&'e mut LevelEdit, Corruption> {
    edit.levels
        .last_mut()
        .ok_or_else(|| body.damage("a tree before its tables and boundaries", "a table or boundary without a tree"))
}

fn decode_keyspace(tag: u64, body: &mut Input<'_>) -> Result<KeyspaceEdit, Corruption> {
    let id = body.varint32()?;
    Ok(match tag {
        tag::KEYSPACE_CREATED => KeyspaceEdit::Created { id, name: text(body)?, options: text(body)? },
        tag::KEYSPACE_CONFIGURED => KeyspaceEdit::Configured { id, options: text(body)? },
        tag::KEYSPACE_DROPPED => KeyspaceEdit::Dropped { id },
        tag::KEYSPACE_EXPIRES => KeyspaceEdit::Expires { id },
        _ => KeyspaceEdit::Flushed { id, seqno: seqno(body)? },
    })
}

fn text(body: &mut Input<'_>) -> Result<String, Corruption> {
    let at = *body;
    std::str::from_utf8(body.slice()?).map(str::to_owned).map_err(|e| at.damage("UTF-8 text", e.to_string()))
}

fn decode_value_file(body: &mut Input<'_>) -> Result<ValueFileMeta, Corruption> {
    let (class, level) = (body.u8()?, body.u8()?);
    let (id, keyspace, group) = (file_number(body)?, body.varint32()?, body.varint()?);
    let (_epoch, tags, bytes, entries) = (body.varint32()?, body.varint32()?, body.varint()?, body.varint()?);
    let is_deleted = tags & DELETED != 0;
    Ok(ValueFileMeta {
        class,
        level,
        id,
        keyspace,
        group,
        tags: tags & !DELETED,
        bytes,
        entries: if is_deleted { 0 } else { entries },
        deleted: is_deleted.then_some(entries),
        smallest: body.slice()?.into(),
        largest: body.slice()?.into(),
    })
}

#[cfg(test)]
mod tests;
