//! How far a scan reads ahead, so that values come from the device concurrently and hardly any in vain.
//!
//! ```text
//! entries that were asked for │ entries read ahead, their values announced │ not touched
//! ────────────────────────────┼────────────────────────────────────────────┼────────────
//!                          yielded                                yielded + window
//! ```
//!
//! While values are in memory, the window grows from 2 to 16: the processor fetches 4 to 8 at a time. While they come
//! from the device, the window is what the scan will surely ask for: up to its limit, or as many entries as recent
//! scans of the keyspace have asked for ([`Habits`](crate::state::habits::Habits)). Beyond that, a scan is expected to
//! go on for half as long as it already has.

/// The largest window for values in memory.
const IN_MEMORY_MAX: usize = 16;

/// The largest window for values that come from the device: more than any device serves at once.
const COLD_MAX: usize = 128;

/// The window beyond what is expected: enough for a device to be busy, few enough to be read in vain.
const COLD_MIN: usize = 8;

/// The window after one of `last` entries, while values are in memory.
pub(crate) fn in_memory(last: usize) -> usize {
    (last * 2).clamp(2, IN_MEMORY_MAX)
}

/// The window after `yielded` entries of a scan that should take `expected`, while values come from the device.
pub(crate) fn cold(yielded: usize, expected: usize) -> usize {
    let window = match expected.checked_sub(yielded) {
        Some(rest) if rest > 0 => rest,
        _ => COLD_MIN + (yielded - expected) / 2,
    };
    window.min(COLD_MAX)
}

#[cfg(test)]
mod tests {
    use std::{ops::Bound, sync::Arc};

    use super::*;
    use crate::{background::bed::Bed, settings::options::KeyspaceOptions, state::snapshot::Holder};

    /// A scan announces `yielded + window` entries at most.
    #[test]
    fn little_is_announced_in_vain() {
        assert_eq!((cold(0, 100), cold(50, 100), cold(99, 100)), (100, 50, 1), "exactly what is expected");
        assert_eq!((cold(0, 0), cold(8, 0), cold(100, 0)), (8, 12, 58), "half as much again");
        assert_eq!((cold(100, 100), cold(120, 100)), (8, 18), "beyond what was expected");
        assert_eq!((cold(0, 100_000), cold(100_000, 0)), (COLD_MAX, COLD_MAX));
    }

    #[test]
    fn the_window_for_values_in_memory_grows_to_its_end() {
        let mut window = 0;
        let windows = [(); 5].map(|()| {
            window = in_memory(window);
            window
        });
        assert_eq!(windows, [2, 4, 8, 16, 16]);
    }

    #[test]
    fn a_limit_may_be_as_large_as_can_be() {
        let bed = Bed::new(KeyspaceOptions::default());
        bed.fill((0..20).map(|n| (n, vec![1])));
        let engine = &bed.engine;
        let snapshot = engine.snapshots.open(&engine.visible, Holder::Iterator, engine.env.clock.now());
        let mut range = engine.reader.range(&bed.tree, (Bound::Unbounded, Bound::Unbounded), Arc::new(snapshot));
        assert!(range.next().is_some());
        range.pinned.note_value_asked();
        bed.tree.scans.note_cold(true);
        assert_eq!(range.limit(usize::MAX).count(), 19);
    }
}
