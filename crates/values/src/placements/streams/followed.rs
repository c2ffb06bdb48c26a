//! How much time readers lose to rows of forwarding files, and when all addresses are renewed for them.
//!
//! Following a row takes a reader about as long as a rewrite takes for an entry. So addresses are due to be renewed
//! when readers have followed as many rows as there are values. Whatever they do next, rows and renewals together then
//! take at most twice the time that the better of the two takes, and what nobody reads is never renewed for readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bifold_io::striped::Striped;

/// One reader that asks in so many looks: the counters are in as many cache lines as there are threads.
const ASKED_FOR_A_LOOK: u64 = 32;

/// Rows that readers have followed.
pub(super) struct Followed {
    rows: Striped<1>,
    /// How many there were at the last renewal.
    renewed_at: AtomicU64,
    /// As many make the next one due.
    values: AtomicU64,
    asked: AtomicU64,
}

impl Followed {
    /// None yet. Until [`Followed::count_values`] nothing is due.
    pub fn new() -> Self {
        Self {
            rows: Striped::default(),
            renewed_at: AtomicU64::new(0),
            values: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
        }
    }

    /// A reader has followed a row.
    pub fn note(&self) {
        self.rows.add(0, 1);
    }

    /// There are so many values now, and some rows lead to them.
    pub fn count_values(&self, values: u64) {
        self.values.store(values.max(1), Relaxed);
    }

    /// Whether addresses are due to be renewed.
    pub fn is_much(&self) -> bool {
        self.rows.sum(0).wrapping_sub(self.renewed_at.load(Relaxed)) >= self.values.load(Relaxed)
    }

    /// The same, for one reader of some.
    pub fn is_much_for_a_reader(&self) -> bool {
        self.asked.fetch_add(1, Relaxed).is_multiple_of(ASKED_FOR_A_LOOK) && self.is_much()
    }

    /// All addresses are renewed, or cannot be now.
    pub fn renewed(&self) {
        self.renewed_at.store(self.rows.sum(0), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rows_as_values_make_a_renewal_due_and_it_begins_anew() {
        let followed = Followed::new();
        (0..1000).for_each(|_| followed.note());
        assert!(!followed.is_much(), "how many values there are is not known");
        for _ in 0..3 {
            followed.count_values(100);
            followed.renewed();
            (0..99).for_each(|_| followed.note());
            assert!(!followed.is_much());
            followed.note();
            assert!(followed.is_much());
            let due = (0..2 * ASKED_FOR_A_LOOK).filter(|_| followed.is_much_for_a_reader()).count();
            assert_eq!(due, 2, "few readers look");
        }
    }
}
