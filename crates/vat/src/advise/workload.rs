//! What a program does with its store.

use serde::{Deserialize, Serialize};

use crate::input::{OutOfRange, checked};

/// Zipf's skew stays below this: at 1 the sums have another form.
pub const SKEW_MAX: f64 = 0.999;

/// The most distinct value lengths.
pub const SIZES_MAX: usize = 64;

/// What a program does with its store, once the store has about its final size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    /// Entries in the store.
    pub keys: f64,
    /// Bytes of a key, on average.
    pub key_bytes: f64,
    /// The lengths of values.
    pub values: Vec<ValueSize>,
    /// How often each operation is called.
    pub operations: Operations,
    /// The skew of updates and deletes over keys: θ of Zipf's law, 0 for uniform.
    pub update_skew: f64,
    /// The skew of reads.
    pub read_skew: f64,
}

/// Values of one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ValueSize {
    /// Their length.
    pub bytes: f64,
    /// Their share, relative to the others.
    pub share: f64,
}

/// How often each operation is called, relative to the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Operations {
    /// Writes of new keys.
    pub insert: f64,
    /// Writes of existing keys.
    pub update: f64,
    /// Removals of keys.
    pub delete: f64,
    /// Reads of one key.
    pub read: f64,
    /// Range reads in key order.
    pub scan: f64,
    /// Entries of each range read.
    pub scan_entries: f64,
}

impl Operations {
    fn all(&self) -> f64 {
        self.insert + self.update + self.delete + self.read + self.scan
    }
}

impl Workload {
    /// Checks each figure, and returns the workload with shares that add up to 1.
    ///
    /// # Errors
    /// Negative figures, no operations, sizes that no store accepts.
    pub fn checked(mut self) -> Result<Self, OutOfRange> {
        let size =
            |name, given: f64, least: f64, allowed| checked(name, given, (least..=1e15).contains(&given), allowed);
        size("keys", self.keys, 1.0, "from 1 to 10¹⁵")?;
        size("key_bytes", self.key_bytes, 1.0, "at least 1")?;
        let sizes = self.values.len();
        checked("values", sizes as f64, (1..=SIZES_MAX).contains(&sizes), "1 to 64 lengths")?;
        for value in &self.values {
            size("values.bytes", value.bytes, 0.0, "at least 0")?;
            size("values.share", value.share, 0.0, "at least 0")?;
        }
        let Operations { insert, update, delete, read, scan, scan_entries } = self.operations;
        let named = [
            ("insert", insert),
            ("update", update),
            ("delete", delete),
            ("read", read),
            ("scan", scan),
            ("scan_entries", scan_entries),
        ];
        for (name, given) in named {
            size(name, given, 0.0, "at least 0")?;
        }
        let all = self.operations.all();
        checked("operations", all, all > 0.0, "more than none: say how often each is called")?;
        checked("scan_entries", scan_entries, scan == 0.0 || scan_entries >= 1.0, "at least 1 where there are scans")?;
        for (name, given) in [("update_skew", self.update_skew), ("read_skew", self.read_skew)] {
            checked(name, given, (0.0..=SKEW_MAX).contains(&given), "from 0 to 0.999")?;
        }
        let shares: f64 = self.values.iter().map(|value| value.share).sum();
        checked("values.share", shares, shares > 0.0, "above 0 for one length at least")?;
        self.values.iter_mut().for_each(|value| value.share /= shares);
        let of = |share: f64| share / all;
        self.operations = Operations {
            insert: of(insert),
            update: of(update),
            delete: of(delete),
            read: of(read),
            scan: of(scan),
            scan_entries,
        };
        Ok(self)
    }

    /// Bytes of a value, on average.
    pub fn value_bytes(&self) -> f64 {
        self.values.iter().map(|value| value.share * value.bytes).sum()
    }

    /// Bytes of all entries.
    pub fn data_bytes(&self) -> f64 {
        self.keys * (self.key_bytes + self.value_bytes())
    }
}
