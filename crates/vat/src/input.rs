//! The model's inputs. Each type holds only values that make sense, so the equations need no checks and never return
//! NaN or infinity where the paper has a number.

use std::{error::Error, fmt};

/// How many levels a tree may have. Ten levels of growth 4 hold a million times as much as memory.
pub const LEVELS_MAX: u32 = 100;

/// How many times as much as memory a tree may hold, and so how fast it may grow: 64 MiB of memory and 64 ZiB of
/// data.
pub const SIZE_RATIO_MAX: f64 = 1e15;

/// A value for which the model has no meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct OutOfRange {
    /// Which input, by the name of its option without the dashes, such as `key-share`.
    pub name: &'static str,
    /// What was given.
    pub given: f64,
    /// What is allowed, in words.
    pub allowed: &'static str,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, given, allowed } = self;
        // `{}` would print 1e300 with 301 digits.
        if given.is_finite() && (given.abs() >= 1e16 || (*given != 0.0 && given.abs() < 1e-5)) {
            return write!(f, "{name} must be {allowed}, not {given:.2e}");
        }
        write!(f, "{name} must be {allowed}, not {given}")
    }
}

impl Error for OutOfRange {}

/// Returns `given` if it is `fine`. `fine` must be false for NaN; every comparison with NaN is.
pub(crate) fn checked(name: &'static str, given: f64, fine: bool, allowed: &'static str) -> Result<f64, OutOfRange> {
    if fine { Ok(given) } else { Err(OutOfRange { name, given, allowed }) }
}

/// l: the number of levels on the device (§2). The level in memory does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Levels(pub(crate) u32);

impl Levels {
    /// # Errors
    /// Unless 1 ≤ `levels` ≤ [`LEVELS_MAX`].
    pub fn new(levels: u32) -> Result<Self, OutOfRange> {
        let fine = (1..=LEVELS_MAX).contains(&levels);
        checked("levels", f64::from(levels), fine, "a whole number from 1 to 100").map(|_| Self(levels))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// f: how many times larger each level is than the one above it (§2).
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Growth(pub(crate) f64);

impl Growth {
    /// # Errors
    /// Unless 1 < `growth` ≤ [`SIZE_RATIO_MAX`].
    pub fn new(growth: f64) -> Result<Self, OutOfRange> {
        let fine = growth > 1.0 && growth <= SIZE_RATIO_MAX;
        checked("growth", growth, fine, "a number above 1 and at most 1e15").map(Self)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// N = Sₗ / S₀: how many times as much as memory the last level holds (§3.1).
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct SizeRatio(pub(crate) f64);

impl SizeRatio {
    /// # Errors
    /// Unless 1 < `ratio` ≤ [`SIZE_RATIO_MAX`].
    pub fn new(ratio: f64) -> Result<Self, OutOfRange> {
        let fine = ratio > 1.0 && ratio <= SIZE_RATIO_MAX;
        checked("size ratio", ratio, fine, "a number above 1 and at most 1e15: data are larger than memory").map(Self)
    }

    /// From the bytes of the data set (Sₗ) and of the level in memory (S₀).
    ///
    /// # Errors
    /// Unless there is some memory, more data than that, and at most [`SIZE_RATIO_MAX`] times as much.
    pub fn of_bytes(data_bytes: u64, memory_bytes: u64) -> Result<Self, OutOfRange> {
        // Without memory the ratio is infinite, or NaN without data as well: both are refused.
        Self::new(data_bytes as f64 / memory_bytes as f64)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// α: the share of the lower level that a merge reads and writes (§3.2, the *merge amplification parameter*). 1 where
/// levels are merged as a whole, 0 where data arrive sorted. Table 1 has 0.68 for RocksDB, 0.8 for BlobDB, 0.25 for
/// Kreon, 0 for PebblesDB.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct MergeAmplification(pub(crate) f64);

impl MergeAmplification {
    /// # Errors
    /// Unless 0 ≤ `alpha` ≤ 1.
    pub fn new(alpha: f64) -> Result<Self, OutOfRange> {
        checked("alpha", alpha, (0.0..=1.0).contains(&alpha), "a number from 0 to 1").map(Self)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// β: the throughput of the device at the store's unit of transfer and queue depth over its sequential throughput
/// (§3.2, the *achieved throughput parameter*). 1 for large tables; the paper measured 0.91 for Kreon's 8 KiB on NVMe
/// (§5).
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Throughput(pub(crate) f64);

impl Throughput {
    /// The device at its best.
    pub const FULL: Self = Self(1.0);

    /// # Errors
    /// Unless 0 < `beta` ≤ 1, and not so small that a cost divided by it overflows (1e-9, nine orders below any disk).
    pub fn new(beta: f64) -> Result<Self, OutOfRange> {
        checked("beta", beta, (1e-9..=1.0).contains(&beta), "a number above 0 (at least 1e-9) and at most 1").map(Self)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// p = K / (K + V): the share of keys in keys and values (§3.3, *VAT for key-value separation*). A pointer that a
/// store puts with the key in place of the value belongs to K.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct KeyShare(pub(crate) f64);

impl KeyShare {
    /// # Errors
    /// Unless 0 < `p` ≤ 1.
    pub fn new(p: f64) -> Result<Self, OutOfRange> {
        checked("key-share", p, p > 0.0 && p <= 1.0, "a number above 0 and at most 1").map(Self)
    }

    /// From the bytes of a key, including its pointer, and of a value.
    ///
    /// # Errors
    /// When a key has no bytes.
    pub fn of_bytes(key_bytes: u64, value_bytes: u64) -> Result<Self, OutOfRange> {
        let key = key_bytes as f64;
        Self::new(key / (key + value_bytes as f64))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that no input may have.
    const NEVER: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0];

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for bad in NEVER {
            for (name, error) in [
                ("growth", Growth::new(bad).err()),
                ("size ratio", SizeRatio::new(bad).err()),
                ("alpha", MergeAmplification::new(bad).err()),
                ("beta", Throughput::new(bad).err()),
                ("key-share", KeyShare::new(bad).err()),
            ] {
                let error = error.unwrap_or_else(|| panic!("{name} takes {bad}"));
                assert_eq!(error.name, name);
                assert!(error.to_string().ends_with(&format!("not {bad}")), "{error}");
            }
        }
    }

    #[test]
    fn limits_are_where_the_documents_say() {
        assert!(Growth::new(1.0).is_err() && Growth::new(1.1).is_ok());
        assert!(Growth::new(1e15).is_ok() && Growth::new(1.1e15).is_err());
        assert!(SizeRatio::new(1.0).is_err() && SizeRatio::new(1e15).is_ok() && SizeRatio::new(1.1e15).is_err());
        assert!(MergeAmplification::new(0.0).is_ok() && MergeAmplification::new(1.0).is_ok());
        assert!(MergeAmplification::new(1.01).is_err());
        assert!(Throughput::new(0.0).is_err() && Throughput::new(1.0).is_ok() && Throughput::new(1.01).is_err());
        assert!(KeyShare::new(0.0).is_err() && KeyShare::new(1.0).is_ok() && KeyShare::new(1.01).is_err());
        assert!(Levels::new(0).is_err() && Levels::new(1).is_ok());
        assert!(Levels::new(100).is_ok() && Levels::new(101).is_err());
    }

    #[test]
    fn sizes_in_bytes_make_ratios() {
        assert_eq!(SizeRatio::of_bytes(1000 << 20, 1 << 20).unwrap().get(), 1000.0);
        assert_eq!(KeyShare::of_bytes(10, 990).unwrap().get(), 0.01);
        for bad in [SizeRatio::of_bytes(0, 0), SizeRatio::of_bytes(1, 0), SizeRatio::of_bytes(1, 2)] {
            assert!(bad.is_err());
        }
        assert!(KeyShare::of_bytes(0, 0).is_err() && KeyShare::of_bytes(0, 9).is_err());
    }

    #[test]
    fn an_error_says_what_was_given_in_a_few_digits() {
        let far = Growth::new(1e300).unwrap_err();
        assert_eq!(far.to_string(), "growth must be a number above 1 and at most 1e15, not 1.00e300");
        assert_eq!(Throughput::new(1e-300).unwrap_err().to_string().rsplit(' ').next(), Some("1.00e-300"));
    }
}
