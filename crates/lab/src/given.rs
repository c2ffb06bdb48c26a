//! The user's own keys and values.
//!
//! Entry number i is the i-th of the input; if a key occurs several times, its last value counts. Version 0 of a value
//! is the input's; an update writes the value of one of the next entries, so that sizes and contents stay those of real
//! data. A value that is read is checked: it must be one of those that can have been written.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::{Failure, Result};

/// An update writes the value of one of this many entries after it.
const VERSIONS: u64 = 8;

/// The description of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its path.
    pub path: String,
    /// Its format: `tsv`, `jsonl` or `dir`.
    pub format: String,
    /// The number of keys.
    #[serde(rename = "pairs")]
    pub entries: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// A digest of all keys and values in their order.
    pub digest: String,
}

/// Entries in memory.
#[derive(Debug, Default)]
pub struct Given {
    bytes: Vec<u8>,
    /// Where each key begins, where it ends and its value begins, where that ends.
    places: Vec<(usize, usize, usize)>,
    numbers: HashMap<Vec<u8>, usize>,
}

impl Given {
    /// Adds an entry, or replaces the value of its key.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let place = (begin, begin + key.len(), self.bytes.len());
        match self.numbers.get(key) {
            Some(&number) => self.places[number] = place,
            None => {
                self.numbers.insert(key.to_vec(), self.places.len());
                self.places.push(place);
            }
        }
    }

    /// Ends adding, and frees the memory that only adding needs.
    ///
    /// # Errors
    /// [`Failure::Plan`] if there is no entry.
    pub fn done(mut self) -> Result<Self> {
        self.numbers = HashMap::new();
        if self.places.is_empty() {
            return Err(Failure::Plan("the input has no keys: give another one".to_owned()));
        }
        Ok(self)
    }

    /// The description of these entries.
    #[must_use]
    pub fn input(&self, path: &str, format: &str) -> Input {
        let mut digest = Xxh3::new();
        let mut bytes = 0;
        for number in 0..self.len() {
            let (key, value) = (self.key(number), self.value(number, 0));
            for part in [key, value] {
                digest.update(&(part.len() as u64).to_le_bytes());
                digest.update(part);
            }
            bytes += (key.len() + value.len()) as u64;
        }
        let digest = format!("{:016x}", digest.digest());
        Input { path: path.to_owned(), format: format.to_owned(), entries: self.len(), bytes, digest }
    }

    /// How many keys there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> u64 {
        self.places.len() as u64
    }

    /// Key number `index`, which is below [`Given::len`].
    #[must_use]
    pub fn key(&self, index: u64) -> &[u8] {
        let (begin, middle, _) = self.places[index as usize];
        &self.bytes[begin..middle]
    }

    /// The value of key number `index` in a version.
    #[must_use]
    pub fn value(&self, index: u64, version: u32) -> &[u8] {
        let other = (index + u64::from(version) % VERSIONS) % self.len();
        let (_, middle, end) = self.places[other as usize];
        &self.bytes[middle..end]
    }

    /// Checks that `value` is some version of the value of key number `index`.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub fn check(&self, index: u64, value: &[u8]) -> std::result::Result<(), String> {
        let written = (0..VERSIONS as u32).any(|version| self.value(index, version) == value);
        if written { Ok(()) } else { Err(format!("its {} bytes are none that were written", value.len())) }
    }

    /// The longest value.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.places.iter().map(|&(_, middle, end)| end - middle).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Given {
        let mut given = Given::default();
        for (key, value) in [("b", "1"), ("a", "22"), ("b", "333")] {
            given.push(key.as_bytes(), value.as_bytes());
        }
        given.done().unwrap()
    }

    #[test]
    fn the_last_value_of_a_key_counts() {
        let given = given();
        assert_eq!(
            (given.len(), given.key(0), given.value(0, 0), given.value(0, 1)),
            (2, &b"b"[..], &b"333"[..], &b"22"[..])
        );
        assert!(given.check(0, b"333").is_ok() && given.check(0, b"22").is_ok());
        assert!(given.check(0, b"1").unwrap_err().contains("1 bytes"));
        assert!(Given::default().done().is_err());
    }

    #[test]
    fn another_input_has_another_digest() {
        let mut other = given();
        other.push(b"c", b"");
        let (a, b) = (given().input("x", "tsv"), other.input("x", "tsv"));
        assert!(a.digest != b.digest && (a.entries, a.bytes, b.entries, b.bytes) == (2, 7, 3, 8), "{a:?} {b:?}");
    }
}
