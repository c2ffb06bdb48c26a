//! A single value file, damaged or not: every whole record, and every stretch without one. Format:
//! `docs/formats/value.md`.
//!
//! ```text
//!  at a whole record ──▶ report it, continue behind it
//!  at a sound header with a damaged payload, and right behind that another header, or the end ──▶ one damaged record
//!  else ──▶ try every following offset for one of the two; what was skipped is one damaged stretch
//! ```
//!
//! * A record proves itself: its checks are seeded with the file's number and its own offset, so bytes that look like
//!   one but were copied from elsewhere fail the checks. A chance match takes 88 bits.
//! * A header alone, 48 bits, is not believed: a false one in a terabyte of garbage could hide gigabytes behind the
//!   length it claims. With another header where it says the next one starts, or the end of the file, it is. Its
//!   payload is then not searched: bytes inside a value are not records.
//! * Nothing is an error. Blocks that the disk cannot read count as damage, and everything around them is read, 4 KiB
//!   at a time.
//! * Memory: the largest record and a chunk.

mod window;

#[cfg(test)]
mod tests;

use bifold_contract::{FileId, IoSource, MAX_KEY_LEN, Result};
use bifold_format::{
    forward,
    frame::{self, HEADER_BYTES, Step, TRAILER_BYTES},
    names::{self, FileKind},
    sorted,
    value::{self, DESCRIPTION_BYTES_MAX, Description, Identity, ValueKind, ValueRecord},
};
use bifold_io::{Dir, Reader};

use window::Window;

/// The longest record: header, longest payload, trailer.
const SPAN_MAX: u64 = (HEADER_BYTES + frame::PAYLOAD_BYTES_MAX + TRAILER_BYTES) as u64;

/// A value file found somewhere.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its number, from its header or else from its name.
    pub file: FileId,
    /// What it says about itself; `None` when that is damaged.
    pub description: Option<Description>,
    /// Damage of its header; the walk reports damage of the description.
    pub head: Option<Damage>,
    reader: Reader,
    start: u64,
}

/// A stretch of a file that holds no whole record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it starts, in bytes from the start of the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// What was found there, in words.
    pub problem: String,
}

/// What is at some place of a file.
#[derive(Debug)]
pub enum Found<'a> {
    /// A whole record, and how long it is.
    Record(ValueRecord<'a>, u32),
    /// None.
    Damage(Damage),
    /// The end.
    End,
}

impl Source {
    /// Opens the file `name` of `dir`, for reading only.
    ///
    /// # Errors
    /// I/O errors of opening it; corruption when it is another kind of file, of a newer version, or nothing that its
    /// header or its name could explain.
    pub fn open(dir: &Dir, name: &str) -> Result<Self> {
        let reader = dir.open(name)?;
        let mut window = Window::new(reader.clone(), IoSource::Maintenance);
        let first = window.at(0, DESCRIPTION_BYTES_MAX as u64).to_vec();
        let (file, head) = match value::identify(&first).map_err(|other| other.of(reader.path()))? {
            Identity::Whole(file) => (file, None),
            Identity::Damaged(stored) => {
                let named = match names::parse(name) {
                    FileKind::Value(id) => Some(id),
                    _ => None,
                };
                let file = guess(&reader, &first, named, stored)?;
                let bytes = (frame::FILE_HEADER_BYTES as u64).min(reader.len());
                let problem = format!("the file's header fails its check; read as value file {file}");
                (file, Some(Damage { offset: 0, bytes, problem }))
            }
        };
        let described = value::describe_as(&first, file).ok();
        let start = described.map_or(frame::FILE_HEADER_BYTES as u64, |(_, start)| start);
        Ok(Self { file, description: described.map(|(description, _)| description), head, reader, start })
    }

    /// Its length, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.reader.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Walks it from front to back.
    #[must_use]
    pub fn salvage(&self) -> Salvage {
        Salvage {
            file: self.file,
            window: Window::new(self.reader.clone(), IoSource::Maintenance),
            position: self.start.min(self.len()),
        }
    }

    /// Reads once more the record of `len` bytes that was whole at `offset`, and hands it to `take`; `None` when it is
    /// not whole any more.
    pub fn again<T>(&self, offset: u64, len: u32, take: impl FnOnce(&ValueRecord<'_>) -> T) -> Option<T> {
        let mut bytes = vec![0; len as usize];
        self.reader.read_at(&mut bytes, offset, IoSource::Maintenance).ok()?;
        match frame::step(&bytes, self.file, offset) {
            Step::Record(frame, _) => value::decode(frame).ok().map(|record| take(&record)),
            Step::Short(_) | Step::Damaged => None,
        }
    }
}

/// The number of a file whose header is damaged: that under which its description checks, or else any record.
///
/// # Errors
/// Corruption when there is none and the file's name names none.
fn guess(reader: &Reader, first: &[u8], named: Option<FileId>, stored: FileId) -> Result<FileId> {
    let candidates = || named.into_iter().chain([stored]);
    let has_record = |&file: &FileId| {
        let window = Window::new(reader.clone(), IoSource::Maintenance);
        let mut salvage = Salvage { file, window, position: 0 };
        loop {
            match salvage.step() {
                Found::Record(..) => return true,
                Found::Damage(_) => {}
                Found::End => return false,
            }
        }
    };
    let described = candidates().find(|&file| value::describe_as(first, file).is_ok());
    described.or_else(|| candidates().find(has_record)).or(named).ok_or_else(|| {
        let expected = "a value file: a sound header, or the name it had in its database, such as 000014.val";
        bifold_contract::Corruption::new(0, "value file", expected, "neither").of(reader.path())
    })
}

/// A walk through a value file that may be damaged anywhere.
#[derive(Debug)]
pub struct Salvage {
    file: FileId,
    window: Window,
    position: u64,
}

/// What one look at an offset finds.
enum Look {
    /// A whole record of so many bytes.
    Record(u64),
    /// So many bytes that belong to one record, and what is wrong with it.
    Bad(u64, String),
    /// Nothing that says where it ends.
    Unknown(String),
}

impl Salvage {
    /// The position, in bytes from the start of the file.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next record or damaged stretch.
    pub fn step(&mut self) -> Found<'_> {
        let start = self.position;
        if start >= self.window.end() {
            return Found::End;
        }
        match self.look(start) {
            Look::Record(span) => {
                self.position = start + span;
                self.record(start, span)
            }
            Look::Bad(span, problem) => self.damage(start, start + span, problem),
            Look::Unknown(problem) => {
                let (end, zeros) = self.search(start);
                let problem = if zeros { "zeros: never written, or lost".to_owned() } else { problem };
                self.damage(start, end, problem)
            }
        }
    }

    /// What is at `offset`.
    fn look(&mut self, offset: u64) -> Look {
        let (file, end) = (self.file, self.window.end());
        let Some(span) = frame::header_span(self.window.at(offset, HEADER_BYTES as u64), file, offset) else {
            return Look::Unknown("no sound record header here".to_owned());
        };
        if span > SPAN_MAX || span > end - offset {
            return Look::Unknown(format!("the file ends inside a record of {span} bytes"));
        }
        let next = offset + span;
        let bytes = self.window.at(offset, span + HEADER_BYTES as u64);
        if let Step::Record(frame, _) = frame::step(bytes, file, offset) {
            return match check(frame) {
                Ok(()) => Look::Record(span),
                Err(problem) => Look::Bad(span, problem),
            };
        }
        let problem = "a record whose payload does not match its checksum".to_owned();
        let behind = bytes.get(span as usize..).unwrap_or_default();
        if next == end || frame::header_span(behind, file, next).is_some() {
            Look::Bad(span, problem)
        } else {
            Look::Unknown(problem)
        }
    }

    /// The first offset from `from` on at which a record starts, whole or not, or the end of the file; and whether
    /// there are only zeros up to there.
    fn search(&mut self, from: u64) -> (u64, bool) {
        let (file, end) = (self.file, self.window.end());
        let (mut at, mut zeros) = (from, true);
        while at < end {
            let bytes = self.window.at(at, HEADER_BYTES as u64);
            let found = frame::find_header(bytes, file, at).map(|(skip, _)| skip);
            // If there is none, all but the last bytes are skipped: a header may begin in these.
            let skip = found.unwrap_or((bytes.len() + 1).saturating_sub(HEADER_BYTES).max(1));
            zeros &= bytes.iter().take(skip).all(|&byte| byte == 0);
            at = end.min(at + skip as u64);
            if found.is_some() {
                if !matches!(self.look(at), Look::Unknown(_)) {
                    break;
                }
                (at, zeros) = (at + 1, false);
            }
        }
        (at, zeros)
    }

    /// Skips a damaged stretch.
    fn damage(&mut self, start: u64, end: u64, problem: String) -> Found<'_> {
        self.position = end;
        let problem = self.window.unreadable(start, end).unwrap_or(problem);
        Found::Damage(Damage { offset: start, bytes: end - start, problem })
    }

    /// The record that was just looked at.
    fn record(&mut self, start: u64, span: u64) -> Found<'_> {
        let file = self.file;
        let bytes = self.window.at(start, span);
        match frame::step(bytes, file, start) {
            Step::Record(frame, len) => match value::decode(frame) {
                Ok(record) => Found::Record(record, len as u32),
                Err(damage) => Found::Damage(Damage { offset: start, bytes: span, problem: damage.to_string() }),
            },
            Step::Short(_) | Step::Damaged => {
                let problem = "a record that changed while it was read".to_owned();
                Found::Damage(Damage { offset: start, bytes: span, problem })
            }
        }
    }
}

/// Checks what no checksum does: that a whole frame is a record, with a key that a database takes and a body that can
/// be read.
fn check(frame: frame::Frame<'_>) -> std::result::Result<(), String> {
    let record = value::decode(frame).map_err(|damage| format!("a whole frame, but not a record: {damage}"))?;
    match record.kind {
        ValueKind::Value | ValueKind::Delete | ValueKind::Stub | ValueKind::Tag => {
            if record.key.is_empty() || record.key.len() > MAX_KEY_LEN {
                return Err(format!("a record with a key of {} bytes", record.key.len()));
            }
        }
        ValueKind::DeleteRange | ValueKind::DeleteRangeUnbounded => {}
        ValueKind::Drops => {
            let decoded = sorted::decode_drops(record.body(), |_| ());
            return decoded.map_err(|damage| format!("a drop block that does not decode: {damage}"));
        }
        ValueKind::Forwards => {
            let decoded = forward::decode(record.body()).map(drop);
            return decoded.map_err(|damage| format!("forwards that do not decode: {damage}"));
        }
        ValueKind::Index | ValueKind::Properties => return Ok(()),
    }
    record.check().map_err(|damage| format!("a body that cannot be read: {damage}"))
}
