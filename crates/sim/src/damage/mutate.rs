//! One change of a database's files.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use bifold_format::{
    block::sealed::SEAL_BYTES,
    checksum::checksum,
    frame::{self, FILE_HEADER_BYTES, HEADER_BYTES, Step},
    table::{FOOTER_BYTES, Footer, Place},
};

use bifold_io::fs::{APPEND_SLOT_BYTES, APPENDS_NAME};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::is_appended;
use crate::{env::Files, random::Random};

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing is changed.
    None,
    /// One to three bits of one file are flipped.
    Flip,
    /// A block is zeros.
    Zero,
    /// A block is garbage.
    Garbage,
    /// Two blocks of a file are swapped.
    Swap,
    /// A block comes from an older state of the file.
    Stale,
    /// A block comes from another file.
    Misplaced,
    /// The file ends early.
    Truncate,
    /// The file continues with garbage or zeros.
    Extend,
    /// The file is an older one.
    Older,
    /// The file is missing.
    Missing,
    /// There is a file with a number that no file should have.
    Stray,
    /// A record, or an append in the append region, has other contents and matching checksums.
    ForgedRecord,
    /// A record claims to be longer than it is, and its header's checksum matches.
    ForgedLength,
    /// A section or the footer of a table has other contents and a matching checksum.
    ForgedTable,
}

const KINDS: [Harm; 14] = [
    Harm::Flip,
    Harm::Zero,
    Harm::Garbage,
    Harm::Swap,
    Harm::Stale,
    Harm::Misplaced,
    Harm::Truncate,
    Harm::Extend,
    Harm::Older,
    Harm::Missing,
    Harm::Stray,
    Harm::ForgedRecord,
    Harm::ForgedLength,
    Harm::ForgedTable,
];

impl Harm {
    /// Whether checksums were made to match.
    #[must_use]
    pub fn is_forged(self) -> bool {
        matches!(self, Self::ForgedRecord | Self::ForgedLength | Self::ForgedTable)
    }
}

/// A database's files with a change.
pub struct Mutation {
    /// What kind of change.
    pub kind: Harm,
    /// The files.
    pub files: Files,
    /// The files that were changed.
    pub touched: BTreeSet<PathBuf>,
    /// A description.
    pub what: String,
}

impl Mutation {
    /// A random change.
    #[must_use]
    pub fn new(files: &Files, older: &Files, random: &mut Random) -> Self {
        loop {
            let kind = random.pick(&KINDS);
            let mut change = Self { kind, files: files.clone(), touched: BTreeSet::new(), what: String::new() };
            let at = random.below(files.len() as u64) as usize;
            if change.apply(at, older, random).is_some() {
                return change;
            }
        }
    }

    /// Whether a crash of the process or a power loss may leave the same: the end of a log or value file was never
    /// written, it has an older state of the file, or a file is missing. Whatever fails its check in the append
    /// region is taken for the result of a power loss.
    #[must_use]
    pub fn passes_for_a_crash(&self) -> bool {
        if self.touched.iter().all(|path| path.ends_with(APPENDS_NAME)) {
            return true;
        }
        let is_of_the_past =
            matches!(self.kind, Harm::Zero | Harm::Truncate | Harm::Stale | Harm::Older | Harm::Missing);
        is_of_the_past && self.touched.iter().all(|path| is_appended(path) || path.ends_with("MANIFEST"))
    }

    fn apply(&mut self, at: usize, older: &Files, random: &mut Random) -> Option<()> {
        let path = self.files[at].0.clone();
        let name = path.file_name()?.to_string_lossy().into_owned();
        let was = self.files[at].1.clone();
        let len = was.len() as u64;
        let block = random.pick(&[512usize, 4096]);
        let place = random.below(len / block as u64 + 1) as usize * block;
        let old = older.iter().find(|(old, _)| *old == path).map(|(_, bytes)| bytes.clone());
        let bytes = &mut self.files[at].1;
        let end = bytes.len().min(place + block);
        self.what = format!("{name} ({len} bytes), block of {block} at {place}");
        match self.kind {
            Harm::Flip => {
                for _ in 0..random.within(1, 4) {
                    let bit = random.below((len * 8).max(1));
                    *bytes.get_mut((bit / 8) as usize)? ^= 1 << (bit % 8);
                    self.what += &format!(", bit {bit}");
                }
            }
            Harm::Zero => bytes.get_mut(place..end)?.fill(0),
            Harm::Garbage => bytes.get_mut(place..end)?.iter_mut().for_each(|byte| *byte = random.below(256) as u8),
            Harm::Swap => {
                let other = random.below(len / block as u64 + 1) as usize * block;
                let len = (end - place.min(end)).min(bytes.len().saturating_sub(other)).min(place.abs_diff(other));
                let (first, second) = (place.min(other), place.max(other));
                let half = second.min(bytes.len());
                let (left, right) = bytes.split_at_mut(half);
                left.get_mut(first..first + len)?.swap_with_slice(right.get_mut(..len)?);
            }
            Harm::Stale => bytes.get_mut(place..end)?.copy_from_slice(old?.get(place..end)?),
            Harm::Misplaced => {
                let from = random.below(self.files.len() as u64) as usize;
                let foreign = self.files[from].1.get(..end.checked_sub(place)?)?.to_vec();
                self.files[at].1.get_mut(place..end)?.copy_from_slice(&foreign);
            }
            Harm::Truncate => {
                let len = random.below(len.max(1));
                bytes.truncate(len as usize);
                self.what += &format!(", truncated to {len}");
            }
            Harm::Extend => {
                let garbage = random.chance(50);
                let more = random.within(1, 5000);
                bytes.extend((0..more).map(|_| if garbage { random.below(256) as u8 } else { 0 }));
            }
            Harm::Older => *bytes = old?,
            Harm::Missing => drop(self.files.remove(at)),
            Harm::Stray => self.add_stray(&path, random)?,
            Harm::ForgedRecord if path.ends_with(APPENDS_NAME) => forge_append(bytes, random)?,
            Harm::ForgedRecord => forge_record(bytes, random)?,
            Harm::ForgedLength => forge_length(bytes, random)?,
            Harm::ForgedTable => forge_table(bytes, random)?,
            Harm::None => {}
        }
        if self.files.get(at).is_some_and(|(there, bytes)| *there == path && *bytes == was) && self.kind != Harm::Stray
        {
            return None;
        }
        self.touched.insert(path);
        Some(())
    }

    fn add_stray(&mut self, near: &Path, random: &mut Random) -> Option<()> {
        let number = random.pick(&[u64::MAX, u64::MAX - 1, 1 << 63, 1 << 62, (1 << 62) - 1, 1 << 32, 999_999]);
        let extension = random.pick(&["log", "tbl", "val"]);
        let content = if random.chance(50) { Vec::new() } else { self.files.first()?.1.clone() };
        let path = near.with_file_name(format!("{number:06}.{extension}"));
        self.what = format!("{} of {} bytes", path.display(), content.len());
        self.files.push((path.clone(), content));
        self.touched.insert(path);
        Some(())
    }
}

/// Numbers that ask for a lot, as they are stored.
const LARGE: [&[u8]; 7] = [
    &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
    &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
    &[0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x04],
    &[0xFF, 0xFF, 0xFF, 0xFF],
    &[0x00, 0x00, 0x00, 0x40],
    &[0x00],
];

/// Overwrites or inserts a large number in `payload`, or changes a byte.
fn forge(payload: &mut Vec<u8>, random: &mut Random) {
    // Most lengths and counts are near the beginning.
    let reach = if random.chance(70) { payload.len().min(24) } else { payload.len() };
    let at = random.below(reach as u64 + 1) as usize;
    let number = random.pick(&LARGE);
    match random.below(3) {
        0 => drop(payload.splice(at..(at + number.len()).min(payload.len()), number.iter().copied())),
        // Replaces a short number.
        1 => drop(payload.splice(at..(at + 1).min(payload.len()), number.iter().copied())),
        _ => {
            if let Some(byte) = payload.get_mut(at) {
                *byte = random.below(256) as u8;
            }
        }
    }
}

/// Where a random record of the file starts and ends.
fn a_record(bytes: &[u8], random: &mut Random) -> Option<(u64, usize, usize)> {
    let file = u64::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
    let mut starts = Vec::new();
    let mut at = FILE_HEADER_BYTES;
    while let Step::Record(_, len) = frame::step(bytes.get(at..)?, file, at as u64) {
        starts.push((file, at, at + len));
        at += len;
    }
    (!starts.is_empty()).then(|| random.pick(&starts))
}

fn forge_record(bytes: &mut Vec<u8>, random: &mut Random) -> Option<()> {
    let (file, start, end) = a_record(bytes, random)?;
    let Step::Record(record, _) = frame::step(&bytes[start..end], file, start as u64) else { return None };
    let mut payload = record.payload.to_vec();
    forge(&mut payload, random);
    let number = if random.chance(90) { record.number } else { random.pick(&[0, 1, (1 << 56) - 1]) };
    let mut forged = Vec::new();
    frame::begin(&mut forged);
    forged.extend_from_slice(&payload);
    frame::finish(&mut forged, 0, file, start as u64, number, record.before);
    // What follows stays in place if possible: records are bound to their places.
    let len = forged.len();
    if len <= end - start || end == bytes.len() {
        drop(bytes.splice(start..end, forged))
    } else {
        bytes.splice(start..start + len.min(bytes.len() - start), forged).for_each(drop)
    }
    Some(())
}

/// The check of a header, as in `frame.rs`, where it is private because no other code needs it.
fn forge_length(bytes: &mut [u8], random: &mut Random) -> Option<()> {
    let (file, start, _) = a_record(bytes, random)?;
    let header = bytes.get_mut(start..start + HEADER_BYTES)?;
    let length = random.pick(&[u32::MAX, 1 << 31, (2 << 30) - 1, 1 << 30, 1 << 16, 0]);
    header[2..6].copy_from_slice(&length.to_le_bytes());
    let mut checked = *b"header-----------------";
    checked[6..].copy_from_slice(&header[..17]);
    let check = (checksum(&checked, file, start as u64) >> 32) as u32;
    header[17..21].copy_from_slice(&check.to_le_bytes());
    Some(())
}

/// As `io` has a slot of the append region, which is private there because nobody else needs it.
mod slot {
    pub const BASE: usize = 0;
    pub const KIND: usize = 8;
    pub const NAME: usize = 16;
    pub const EPOCH: usize = 56;
    pub const TABLE: usize = 64;
    pub const ENTRY: usize = 16;
    pub const PAYLOAD: usize = 4096;
}

/// Forges one slot's file, place, or first append.
fn forge_append(bytes: &mut [u8], random: &mut Random) -> Option<()> {
    let number = |slot: &[u8], at: usize| slot[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let put = |slot: &mut [u8], at: usize, number: u64| slot[at..at + 8].copy_from_slice(&number.to_le_bytes());
    let is_used = |slot: &&mut [u8]| number(slot, slot::KIND) != 0 && number(slot, slot::TABLE) > 0;
    let slots: Vec<&mut [u8]> = bytes.chunks_exact_mut(APPEND_SLOT_BYTES as usize).filter(is_used).collect();
    let which = random.below(slots.len().max(1) as u64) as usize;
    let slot = slots.into_iter().nth(which)?;
    let len = number(slot, slot::TABLE);
    match random.below(5) {
        // Its checksum cannot fit: there is nothing that it could be of.
        0 => put(slot, slot::TABLE, random.pick(&[u64::MAX, 1 << 63, 1 << 40, 1 << 20, 0])),
        1 => put(slot, slot::KIND, number(slot, slot::KIND).wrapping_add(random.pick(&[1, 1 << 48, u64::MAX, 1 << 7]))),
        2 => {
            let base = number(slot, slot::BASE);
            put(slot, slot::BASE, random.pick(&[u64::MAX, 1 << 63, 1 << 40, 0, base ^ 1, base + len]));
        }
        3 => {
            let name = random.pick(&["MANIFEST", "LOCK", "..", ".", "APPENDS", "000001.log", "000002.tbl", "x/y"]);
            slot[slot::NAME..slot::NAME + name.len()].copy_from_slice(name.as_bytes());
            let kind = number(slot, slot::KIND) & !0xFF | name.len() as u64;
            put(slot, slot::KIND, kind);
        }
        _ => slot[slot::PAYLOAD + random.below(len.min(1 << 15)) as usize] ^= 1 << random.below(8),
    }
    let name_len = (number(slot, slot::KIND) & 0xFF) as usize;
    let name = slot.get(slot::NAME..slot::NAME + name_len)?;
    let seed = xxh3_64_with_seed(name, number(slot, slot::EPOCH));
    let first = slot.get(slot::PAYLOAD..slot::PAYLOAD + len as usize)?;
    let check = xxh3_64_with_seed(first, seed ^ number(slot, slot::BASE).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    put(slot, slot::TABLE + slot::ENTRY / 2, check);
    Some(())
}

fn forge_table(bytes: &mut Vec<u8>, random: &mut Random) -> Option<()> {
    let footer_at = bytes.len().checked_sub(FOOTER_BYTES)?;
    let footer = Footer::decode(bytes[footer_at..].first_chunk()?, bytes.len() as u64).ok()?;
    if random.chance(15) {
        return forge_footer(bytes, footer_at, footer, random);
    }
    // The first block is at the beginning, and no index is needed to find it if there is only one.
    let blocks = Place { start: 0, end: footer.data_bytes };
    let places = [blocks, footer.filter(), footer.tombstones(), footer.index(), footer.properties()];
    let place = random.pick(&places);
    let sealed = bytes.get(place.start as usize..place.end as usize)?;
    let mut body = sealed.get(..sealed.len().checked_sub(SEAL_BYTES)?)?.to_vec();
    let mut method = sealed[body.len()];
    let len = body.len();
    if random.chance(20) {
        // A frame that claims much, in a body as long as before.
        method = random.pick(&[1, 2]);
        let claim = random.pick(&[1u32 << 30, u32::MAX, 1 << 24]);
        body.splice(..4.min(len), claim.to_le_bytes());
        body.splice(4..(4 + 4).min(len).max(4), 0xFD2F_B528u32.to_le_bytes());
    } else {
        forge(&mut body, random);
    }
    body.resize(len, 0);
    body.push(method);
    let check = checksum(&body, footer.file, place.start);
    body.extend_from_slice(&check.to_le_bytes());
    bytes.splice(place.start as usize..place.end as usize, body);
    Some(())
}

fn forge_footer(bytes: &mut [u8], at: usize, mut footer: Footer, random: &mut Random) -> Option<()> {
    let moved = random.below(footer.data_bytes + 1);
    let lengths = [&mut footer.filter_bytes, &mut footer.tombstones_bytes, &mut footer.index_bytes];
    match random.below(4) {
        0 => footer.file = random.pick(&[0, u64::MAX, footer.file + 1]),
        n => {
            footer.data_bytes -= moved;
            *lengths.into_iter().nth(n as usize - 1)? += moved;
        }
    }
    bytes.get_mut(at..)?.copy_from_slice(&footer.encode());
    Some(())
}
