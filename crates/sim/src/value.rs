//! Values that identify themselves: each is named by a tag and a length, which determine its bytes.
//!
//! The model only keeps the name. A value read in the wrong place is recognised by its first bytes, so a report can
//! name the write it came from.

use std::fmt;

use bifold::{MergeOperator, MergeOperators};

use crate::random::mix;

/// An operand has so many bytes at least: its whole tag.
pub const OPERAND_BYTES_MIN: u32 = 4;

/// A value, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spec {
    /// Which write it came from; unique within a history.
    pub tag: u32,
    /// Its length in bytes.
    pub len: u32,
}

impl Spec {
    /// The bytes: the tag, then runs that compress in every second value, and noise in the others.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..self.len.div_ceil(8) as usize).flat_map(|at| self.word(at).to_le_bytes()).collect();
        let head = bytes.len().min(4);
        bytes[..head].copy_from_slice(&self.tag.to_le_bytes()[..head]);
        bytes.truncate(self.len as usize);
        bytes
    }

    /// The value of a key that had `older` and got this operand: the sum of their tags shows one that was lost or came
    /// twice, and the length of the newer one shows their order. A value too short for its tag counts as none.
    #[must_use]
    pub fn on(self, older: Option<Self>) -> Self {
        let tag = older.filter(|older| older.len >= OPERAND_BYTES_MIN).map_or(0, |older| older.tag);
        Self { tag: tag.wrapping_add(self.tag), len: self.len }
    }

    /// This value, or one of the same tag with so many bytes.
    #[must_use]
    pub fn at_least(self, len: u32) -> Self {
        Self { len: self.len.max(len), ..self }
    }

    /// The value that these bytes are.
    fn of(bytes: &[u8]) -> Option<Self> {
        let len = bytes.len() as u32;
        let Some(head) = bytes.first_chunk::<4>() else { return Some(Self { tag: 0, len }) };
        Some(Self { tag: u32::from_le_bytes(*head), len }).filter(|spec| spec.is(bytes))
    }

    /// Whether `bytes` is this value.
    #[must_use]
    pub fn is(self, bytes: &[u8]) -> bool {
        if bytes.len() != self.len as usize {
            return false;
        }
        let mut rest = bytes.chunks(8);
        let head = self.tag.to_le_bytes();
        let first = rest.next().unwrap_or_default();
        let head_fits = first.iter().enumerate().all(|(at, &byte)| byte == self.byte_after(&head, at, 0));
        head_fits && rest.enumerate().all(|(at, chunk)| chunk == &self.word(at + 1).to_le_bytes()[..chunk.len()])
    }

    fn byte_after(self, head: &[u8; 4], at: usize, word: usize) -> u8 {
        if word == 0 && at < 4 { head[at] } else { self.word(word).to_le_bytes()[at] }
    }

    /// The eight bytes at position `at` × 8.
    fn word(self, at: usize) -> u64 {
        let place = if self.tag.is_multiple_of(2) { at / 16 } else { at };
        mix(u64::from(self.tag) << 32 ^ place as u64)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}x{}", self.tag, self.len)
    }
}

/// The merge operator of histories with operands, which does what [`Spec::on`] says.
#[must_use]
pub fn operator() -> MergeOperator {
    let combine = |_: &[u8], older: Option<&[u8]>, newer: &[u8]| {
        let known = |bytes: &[u8]| {
            Spec::of(bytes).ok_or_else(|| format!("neither a value nor an operand: {}", describe(bytes)))
        };
        Ok(known(newer)?.on(older.map(known).transpose()?).bytes())
    };
    MergeOperator::new("tags", combine).unwrap_or_else(|_| unreachable!("the name is allowed"))
}

/// Those that databases of histories are opened with.
#[must_use]
pub fn operators() -> MergeOperators {
    MergeOperators::default().with(operator()).unwrap_or_else(|_| unreachable!("there is one"))
}

/// A short description of unexpected bytes.
#[must_use]
pub fn describe(bytes: &[u8]) -> String {
    let len = bytes.len() as u32;
    match bytes.first_chunk::<4>().map(|head| Spec { tag: u32::from_le_bytes(*head), len }) {
        Some(spec) if spec.is(bytes) => spec.to_string(),
        _ => format!("{len} bytes \"{}\"", bytes[..bytes.len().min(24)].escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_recognised_and_nothing_else_is() {
        for tag in [0, 1, 2, 77, u32::MAX] {
            for len in [0, 1, 3, 4, 5, 8, 9, 15, 100, 2000] {
                let spec = Spec { tag, len };
                let mut bytes = spec.bytes();
                assert!(spec.is(&bytes));
                for at in 0..bytes.len() {
                    bytes[at] ^= 1;
                    assert!(!spec.is(&bytes), "byte {at} of {spec}");
                    bytes[at] ^= 1;
                }
                bytes.push(0);
                assert!(!spec.is(&bytes));
            }
        }
        assert_eq!(describe(&Spec { tag: 9, len: 30 }.bytes()), "#9x30");
    }
}
