//! From a key's number to its bytes: distinct, all of one length, in hashed or in numeric order.
//!
//! Keys of 17 bytes and more begin with 16 hexadecimal digits, shorter ones with the same 8 bytes in binary; the rest
//! is filled with `k`. A *missing* key ends in `m` instead, so it lies between two present keys, where
//! neither the bounds of a table nor the order of keys reveal it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Failure, Result, given::Given, random::mix};

/// The shortest key: 8 bytes that distinguish keys, and one that says whether it is present.
pub const MIN_KEY_BYTES: usize = 9;

/// The order of keys by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Scattered over the whole key space, always in the same way.
    Hashed,
    /// Ascending with the number.
    Sequential,
}

/// Makes keys.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Of made ones.
    len: usize,
    order: Order,
    /// Those of a user's own.
    given: Option<Arc<Given>>,
}

impl Keys {
    /// Keys of `len` bytes.
    ///
    /// # Errors
    /// [`Failure::Plan`] for keys that are too short to differ or longer than a store accepts.
    pub fn new(len: usize, order: Order) -> Result<Self> {
        if !(MIN_KEY_BYTES..=bifold::MAX_KEY_LEN).contains(&len) {
            return Err(Failure::Plan(format!(
                "keys of {len} bytes: the size must be between {MIN_KEY_BYTES} and {}",
                bifold::MAX_KEY_LEN
            )));
        }
        Ok(Self { len, order, given: None })
    }

    /// The user's own keys.
    #[must_use]
    pub fn given(given: Arc<Given>) -> Self {
        Self { len: 0, order: Order::Sequential, given: Some(given) }
    }

    /// Bytes of each key; 0 if they differ.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "this is the size of every key, not of a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes the key of number `index` to `out`, which is cleared first.
    pub fn present(&self, index: u64, out: &mut Vec<u8>) {
        match &self.given {
            Some(given) => {
                out.clear();
                out.extend_from_slice(given.key(index));
            }
            None => self.write(index, b'k', out),
        }
    }

    /// Bytes of key number `index` if they differ; 0 if all keys have [`Keys::len`].
    #[must_use]
    pub fn own_bytes(&self, index: u64) -> usize {
        self.given.as_ref().map_or(0, |given| given.key(index).len())
    }

    /// Writes a key that is never present, next to the one of number `index`.
    pub fn missing(&self, index: u64, out: &mut Vec<u8>) {
        match &self.given {
            Some(_) => {
                self.present(index, out);
                // What no key of an input ends in, with all but certainty.
                out.extend(mix(index ^ 0x6d69_7373).to_be_bytes());
                out.push(b'm');
            }
            None => self.write(index, b'm', out),
        }
    }

    fn write(&self, index: u64, last: u8, out: &mut Vec<u8>) {
        let number = match self.order {
            Order::Hashed => mix(index),
            Order::Sequential => index,
        };
        out.clear();
        if self.len > 16 {
            out.extend((0..16).rev().map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]));
        } else {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.resize(self.len - 1, b'k');
        out.push(last);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn key(keys: &Keys, index: u64) -> Vec<u8> {
        let mut out = Vec::new();
        keys.present(index, &mut out);
        out
    }

    #[test]
    fn keys_have_one_length_and_none_comes_twice() {
        for len in [9, 16, 17, 24, 100] {
            for order in [Order::Hashed, Order::Sequential] {
                let keys = Keys::new(len, order).unwrap();
                let mut seen = BTreeSet::new();
                let mut out = Vec::new();
                for index in 0..2000 {
                    keys.present(index, &mut out);
                    assert!(out.len() == len && seen.insert(out.clone()), "{len} {order:?} {index}");
                    keys.missing(index, &mut out);
                    assert!(out.len() == len && seen.insert(out.clone()), "{len} {order:?} {index}");
                }
            }
        }
    }

    #[test]
    fn sequential_keys_ascend_and_hashed_ones_do_not() {
        let sequential = Keys::new(24, Order::Sequential).unwrap();
        assert!((0..1000).all(|i| key(&sequential, i) < key(&sequential, i + 1)));
        let hashed = Keys::new(24, Order::Hashed).unwrap();
        let ascents = (0..1000).filter(|&i| key(&hashed, i) < key(&hashed, i + 1)).count();
        assert!((400..600).contains(&ascents), "{ascents}");
    }

    #[test]
    fn sizes_no_store_takes_are_refused() {
        assert!(Keys::new(8, Order::Hashed).is_err());
        assert!(Keys::new(bifold::MAX_KEY_LEN + 1, Order::Hashed).is_err());
    }
}
