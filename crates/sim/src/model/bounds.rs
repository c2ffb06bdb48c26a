//! Bounds of key ranges.

use std::ops::Bound;

/// A key range.
pub type Bounds = (Bound<Box<[u8]>>, Bound<Box<[u8]>>);

/// The same bounds, borrowed.
#[must_use]
pub fn borrowed(bounds: &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (as_ref(&bounds.0), as_ref(&bounds.1))
}

fn as_ref(bound: &Bound<Box<[u8]>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Whether no key can lie between the bounds: deleting such a range is no operation.
#[must_use]
pub fn is_nothing(bounds: &Bounds) -> bool {
    let (start, end) = keys_of(bounds);
    end.is_some_and(|end| start >= end)
}

/// The first key of a range, and the first one behind it.
#[must_use]
pub fn keys_of(bounds: &Bounds) -> (Vec<u8>, Option<Vec<u8>>) {
    let after = |key: &[u8]| [key, &[0]].concat();
    let start = match &bounds.0 {
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => after(key),
        Bound::Unbounded => Vec::new(),
    };
    let end = match &bounds.1 {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Unbounded => None,
    };
    (start, end)
}

/// Whether a map's `range` accepts these bounds; it panics if the ends are in the wrong order.
pub(super) fn is_range(bounds: &Bounds) -> bool {
    match bounds {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Excluded(a), Bound::Excluded(b)) => a < b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a <= b,
    }
}
