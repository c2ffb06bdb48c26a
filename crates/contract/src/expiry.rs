//! When entries expire.
//!
//! ```text
//! payload of a kind that expires    instant, 6 bytes │ value or encoded pointer
//! instant                           milliseconds since the beginning of 1970, little-endian
//! ```
//!
//! The instant is in the index entry, so whatever happens to a value, it stays with the key: placements need not know
//! of it. From its instant on, an entry is a tombstone to everyone who reads with the time of now.

/// A moment, in milliseconds since the beginning of 1970.
pub type Millis = u64;

/// Bytes of an instant before the rest of a payload.
pub const INSTANT_BYTES: usize = 6;

/// The last instant that can be stored, in the year 10889.
pub const INSTANT_MAX: Millis = (1 << (8 * INSTANT_BYTES)) - 1;

/// An instant as payloads have it.
#[must_use]
pub fn encode(instant: Millis) -> [u8; INSTANT_BYTES] {
    let bytes = instant.min(INSTANT_MAX).to_le_bytes();
    std::array::from_fn(|at| bytes[at])
}

/// The instant at the beginning of a payload, and the rest. Whoever lets entries in has checked that it is there; of
/// a shorter payload the instant is 0.
#[must_use]
#[inline]
pub fn split(payload: &[u8]) -> (Millis, &[u8]) {
    match payload.split_first_chunk::<INSTANT_BYTES>() {
        Some((instant, rest)) => {
            let mut bytes = [0; 8];
            bytes[..INSTANT_BYTES].copy_from_slice(instant);
            (u64::from_le_bytes(bytes), rest)
        }
        None => (0, &[]),
    }
}

/// What a table has of entries that expire. All of it is 0 if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiring {
    /// How many they are.
    pub entries: u64,
    /// The first of their instants.
    pub first: Millis,
    /// The last one.
    pub last: Millis,
}

impl Expiring {
    /// Counts one more.
    pub fn add(&mut self, instant: Millis) {
        self.first = if self.entries == 0 { instant } else { self.first.min(instant) };
        self.last = self.last.max(instant);
        self.entries += 1;
    }

    /// About how many of them have expired at `now`, as if their instants were spread evenly.
    #[must_use]
    pub fn expired_at(&self, now: Millis) -> u64 {
        if self.entries == 0 || now < self.first {
            return 0;
        }
        if now >= self.last {
            return self.entries;
        }
        let share = (now - self.first) as f64 / (self.last - self.first) as f64;
        (self.entries as f64 * share) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_come_back_and_leave_the_rest() {
        for instant in [0, 1, 1_764_000_000_000, INSTANT_MAX] {
            let payload = [&encode(instant)[..], b"rest"].concat();
            assert_eq!(split(&payload), (instant, &b"rest"[..]));
        }
        assert_eq!(split(&encode(u64::MAX)), (INSTANT_MAX, &b""[..]));
        assert_eq!(split(b"short"), (0, &b""[..]));
    }

    #[test]
    fn how_many_have_expired_lies_between_none_and_all() {
        let mut expiring = Expiring::default();
        assert_eq!(expiring.expired_at(INSTANT_MAX), 0);
        [300, 100, 200].into_iter().for_each(|instant| expiring.add(instant));
        assert_eq!(expiring, Expiring { entries: 3, first: 100, last: 300 });
        assert_eq!([99, 200, 299, 300].map(|now| expiring.expired_at(now)), [0, 1, 2, 3]);
    }
}
