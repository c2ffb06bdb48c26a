//! The sections of a sorted table. Page: `docs/formats/table.md`.
//!
//! ```text
//! table    data block │ … │ filter │ range tombstones │ index │ properties │ footer 72 B
//! footer   lengths of data, filter, tombstones, index, properties: 5 × u64 │ file id u64 │
//!          footer length u32 │ version u32 │ magic 8 │ checksum u64
//! ```
//!
//! Every section is one sealed block (see [`sealed`](crate::block::sealed)), or is missing and has length 0. The
//! footer holds lengths, not offsets, so sections cannot overlap or leave gaps: they fill the file, or the footer is
//! damaged.

pub mod index;
pub mod parts;
pub mod properties;
pub mod tombstones;

use bifold_contract::{Corruption, FileId};

use crate::{bytes::Input, checksum::checksum};

const MAGIC: [u8; 8] = *b"bifldtbl";

/// The newest version.
pub const VERSION: u32 = VERSION_OF_PARTS + MORE_IF_EXPIRING;

/// The version of tables whose index is in parts.
const VERSION_OF_PARTS: u32 = 2;

/// The version of tables whose index is in one piece.
const VERSION_OF_WHOLE: u32 = 1;

/// So much more is the version of a table with entries that expire.
const MORE_IF_EXPIRING: u32 = 2;

/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 72;

/// Bytes of the footer before its checksum, which comes last in every version.
const COVERED_BYTES: usize = FOOTER_BYTES - 8;

/// A byte range of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

impl Place {
    /// Bytes in it.
    #[must_use]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// The bytes from the beginning of the one that begins first to the end of the other.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Whether it is empty: the section is missing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// The lengths of a table's sections, in file order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// All data blocks together.
    pub data_bytes: u64,
    /// The filter.
    pub filter_bytes: u64,
    /// The range tombstones.
    pub tombstones_bytes: u64,
    /// The index.
    pub index_bytes: u64,
    /// The properties.
    pub properties_bytes: u64,
    /// The id of the file.
    pub file: FileId,
    /// Whether the index is in one piece or in parts.
    pub index_form: IndexForm,
    /// Whether it has entries that expire. Older releases would not know their kinds.
    pub expires: bool,
}

/// How the index of a table is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexForm {
    /// In one piece: version 1.
    #[default]
    Whole,
    /// In parts, with an index of the parts: version 2.
    Parts,
}

impl IndexForm {
    fn version(self) -> u32 {
        match self {
            Self::Whole => VERSION_OF_WHOLE,
            Self::Parts => VERSION_OF_PARTS,
        }
    }
}

impl Footer {
    /// The last bytes of the file.
    #[must_use]
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        let words = self.lengths().into_iter().chain([self.file]);
        for (slot, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *slot = word.to_le_bytes();
        }
        out[48..52].copy_from_slice(&(FOOTER_BYTES as u32).to_le_bytes());
        out[52..56].copy_from_slice(&self.version().to_le_bytes());
        out[56..COVERED_BYTES].copy_from_slice(&MAGIC);
        let check = checksum(&out[..COVERED_BYTES], 0, self.sum().unwrap_or(0));
        out[COVERED_BYTES..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Decodes the last bytes of a file of `file_bytes`.
    ///
    /// # Errors
    /// If they are damaged, belong to another kind of file, have a newer version, or do not describe a file of that
    /// length.
    pub fn decode(bytes: &[u8; FOOTER_BYTES], file_bytes: u64) -> Result<Self, Corruption> {
        let offset = file_bytes.saturating_sub(FOOTER_BYTES as u64);
        let damage = |expected: String, found: String| Corruption::new(offset, "table footer", expected, found);
        let mut input = Input::new(bytes, "table footer");
        let footer = Self {
            data_bytes: input.u64()?,
            filter_bytes: input.u64()?,
            tombstones_bytes: input.u64()?,
            index_bytes: input.u64()?,
            properties_bytes: input.u64()?,
            file: input.u64()?,
            index_form: IndexForm::Whole,
            expires: false,
        };
        let (footer_bytes, version, magic) = (input.u32()?, input.u32()?, input.take(MAGIC.len())?);
        let index_form = if version.is_multiple_of(2) { IndexForm::Parts } else { IndexForm::Whole };
        let footer = Self { index_form, expires: version > MORE_IF_EXPIRING, ..footer };
        if magic != MAGIC {
            return Err(damage(format!("magic {}", MAGIC.escape_ascii()), magic.escape_ascii().to_string()));
        }
        let (expected, found) = (input.u64()?, checksum(&bytes[..COVERED_BYTES], 0, offset));
        if version > VERSION {
            // A newer footer may be longer, so its checksum cannot be verified here.
            let expected = format!("a version up to {VERSION} (upgrade Bifold to read newer ones)");
            return Err(damage(expected, format!("version {version}")));
        }
        if expected != found {
            return Err(damage(format!("checksum {expected:016x}"), format!("{found:016x}")));
        }
        match footer.sum().and_then(|sum| sum.checked_add(u64::from(footer_bytes))) {
            Some(sum) if sum == file_bytes => Ok(footer),
            sum => Err(damage(format!("sections that fill {file_bytes} bytes"), format!("{sum:?} bytes"))),
        }
    }

    fn version(&self) -> u32 {
        self.index_form.version() + if self.expires { MORE_IF_EXPIRING } else { 0 }
    }

    fn lengths(&self) -> [u64; 5] {
        [self.data_bytes, self.filter_bytes, self.tombstones_bytes, self.index_bytes, self.properties_bytes]
    }

    /// Bytes of all sections, which is also the offset of the footer.
    fn sum(&self) -> Option<u64> {
        self.lengths().into_iter().try_fold(0u64, u64::checked_add)
    }

    /// The place of a section of `bytes` bytes after the sections `before`.
    fn place(before: &[u64], bytes: u64) -> Place {
        let start = before.iter().sum();
        Place { start, end: start + bytes }
    }

    /// Where the filter is.
    #[must_use]
    pub fn filter(&self) -> Place {
        Self::place(&self.lengths()[..1], self.filter_bytes)
    }

    /// Where the range tombstones are.
    #[must_use]
    pub fn tombstones(&self) -> Place {
        Self::place(&self.lengths()[..2], self.tombstones_bytes)
    }

    /// Where the index is.
    #[must_use]
    pub fn index(&self) -> Place {
        Self::place(&self.lengths()[..3], self.index_bytes)
    }

    /// Where the properties are.
    #[must_use]
    pub fn properties(&self) -> Place {
        Self::place(&self.lengths()[..4], self.properties_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOOTER: Footer = Footer {
        data_bytes: 4096,
        filter_bytes: 74,
        tombstones_bytes: 0,
        index_bytes: 120,
        properties_bytes: 60,
        file: 12,
        index_form: IndexForm::Whole,
        expires: false,
    };
    const FILE_BYTES: u64 = 4096 + 74 + 120 + 60 + FOOTER_BYTES as u64;

    #[test]
    fn a_footer_comes_back_and_its_sections_are_contiguous() {
        let footer = Footer::decode(&FOOTER.encode(), FILE_BYTES).unwrap();
        assert_eq!(footer, FOOTER);
        assert_eq!(footer.filter(), Place { start: 4096, end: 4170 });
        let parts = Footer { index_form: IndexForm::Parts, ..FOOTER };
        for footer in [parts, Footer { expires: true, ..parts }, Footer { expires: true, ..FOOTER }] {
            assert_eq!(Footer::decode(&footer.encode(), FILE_BYTES).unwrap(), footer);
        }
        assert!(footer.tombstones().is_empty());
        assert_eq!(footer.index(), Place { start: 4170, end: 4290 });
        assert_eq!(footer.properties(), Place { start: 4290, end: 4350 });
    }

    #[test]
    fn every_flipped_bit_and_another_file_length_are_found() {
        let mut bytes = FOOTER.encode();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&bytes, FILE_BYTES).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(Footer::decode(&bytes, FILE_BYTES - 1).is_err());
        assert!(Footer::decode(&bytes, FILE_BYTES + 1).is_err());
    }

    #[test]
    fn a_newer_version_is_distinguished_from_damage() {
        let mut bytes = FOOTER.encode();
        bytes[52] = VERSION as u8 + 1;
        assert!(Footer::decode(&bytes, FILE_BYTES).unwrap_err().expected.contains("upgrade"));
    }
}
