//! Sorted byte strings by their heads: the eight bytes after the common prefix, as a number.
//!
//! Heads are adjacent, so a search touches one or two cache lines where one by keys touches a line per step.
//! Strings with equal heads have to be compared as a whole; with the common prefix out of the way they are rare.

use std::{cmp::Ordering, ops::Range};

/// Bytes of a head.
pub const HEAD_BYTES: usize = 8;

/// The first eight bytes as a number with the same order. Shorter strings are padded with zeros, so equal heads do
/// not decide the order.
#[inline]
#[must_use]
pub fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<HEAD_BYTES>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; HEAD_BYTES];
            chunk[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(chunk)
        }
    }
}

/// The length of the common prefix of two strings.
#[inline]
#[must_use]
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (a_words, _) = a.as_chunks::<8>();
    let (b_words, _) = b.as_chunks::<8>();
    for (at, (x, y)) in a_words.iter().zip(b_words).enumerate() {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return at * 8 + differing.trailing_zeros() as usize / 8;
        }
    }
    let done = a_words.len().min(b_words.len()) * 8;
    done + a[done..].iter().zip(&b[done..]).take_while(|(x, y)| x == y).count()
}

/// How a key compares with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest<'a> {
    /// It is less than all strings with the prefix.
    Before,
    /// It is greater than all of them.
    After,
    /// It has the prefix too, followed by these bytes.
    Of(&'a [u8]),
}

/// How `key` compares with `prefix`.
#[inline]
#[must_use]
pub fn rest<'a>(key: &'a [u8], prefix: &[u8]) -> Rest<'a> {
    // Word by word, without a call: prefixes are a few words long.
    match key.split_at_checked(prefix.len()) {
        Some((begin, rest)) if common_prefix(begin, prefix) == prefix.len() => Rest::Of(rest),
        // A key that ends inside the prefix is less than all the strings, and `cmp` says so.
        _ if key.cmp(prefix) == Ordering::Less => Rest::Before,
        _ => Rest::After,
    }
}

/// The position of a key among strings with these heads (little-endian) and this common prefix. Strings before the
/// range are less, strings after it are greater, and those in the range have to be compared.
#[inline]
#[must_use]
pub fn search(heads: &[[u8; HEAD_BYTES]], prefix: &[u8], key: &[u8]) -> Range<usize> {
    let rest = match rest(key, prefix) {
        Rest::Before => return 0..0,
        Rest::After => return heads.len()..heads.len(),
        Rest::Of(rest) => rest,
    };
    equal(heads, head(rest))
}

/// The positions of the heads (little-endian) that are equal to this one.
#[inline]
#[must_use]
pub fn equal(heads: &[[u8; HEAD_BYTES]], sought: u64) -> Range<usize> {
    let less = heads.partition_point(|head| u64::from_le_bytes(*head) < sought);
    less..less + ties(&heads[less..], |head| u64::from_le_bytes(*head) == sought)
}

/// How many of the first items tie, where those that do come first. One look if none does, as mostly, and twice the
/// logarithm of their number if many do.
#[inline]
pub(crate) fn ties<T>(items: &[T], is_tie: impl Fn(&T) -> bool) -> usize {
    let mut bound = 1;
    while items.get(bound - 1).is_some_and(&is_tie) {
        bound *= 2;
    }
    // The first half of `bound` ties, and its last item does not, or is not there.
    let known = bound / 2;
    known + items[known..items.len().min(bound - 1)].partition_point(is_tie)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0), Just(1), Just(255)], 0..14)
    }

    #[test]
    fn ties_are_counted_with_few_looks_at_them() {
        for len in 0..200usize {
            let items: Vec<usize> = (0..len).collect();
            for tied in 0..=len {
                let looks = Cell::new(0);
                let counted = ties(&items, |&item| {
                    looks.set(looks.get() + 1);
                    item < tied
                });
                assert_eq!(counted, tied, "of {len}");
                let looks: u32 = looks.get();
                let most = if tied == 0 { 1 } else { 2 * tied.ilog2() + 3 };
                assert!(looks <= most, "{looks} looks at {tied} ties of {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_search_leaves_only_equal_heads_open(mut strings in prop::collection::vec(bytes(), 1..30), key in bytes()) {
            strings.sort();
            let prefix = strings[0][..common_prefix(&strings[0], &strings[strings.len() - 1])].to_vec();
            let heads: Vec<_> = strings.iter().map(|s| head(&s[prefix.len()..]).to_le_bytes()).collect();
            for key in strings.iter().chain([&key]) {
                let open = search(&heads, &prefix, key);
                prop_assert!(strings[..open.start].iter().all(|s| s < key));
                prop_assert!(strings[open.end..].iter().all(|s| s > key));
            }
        }

        #[test]
        fn the_common_prefix_is_what_counting_says(a in bytes(), b in bytes()) {
            let counted = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            prop_assert_eq!(common_prefix(&a, &b), counted);
        }
    }
}
