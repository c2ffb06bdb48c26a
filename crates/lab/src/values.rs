//! From a key's number and a version to a value, and the check of a value.
//!
//! A value is a slice of one random buffer, so making it costs a copy; its first 16 bytes are a stamp of the key's
//! number and the version. Size and offset in the buffer follow from number, version and seed, so every byte of a value
//! that is read can be checked. Values shorter than the stamp have no room for a version: their bytes follow from the
//! key's number alone.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    Failure, Result,
    choose::{self, Zipf},
    given::Given,
    random::{Random, mix, to_unit},
};

/// The key's number (8 bytes), the version (4) and a seal over both (4).
const STAMP_BYTES: usize = 16;

/// Values start anywhere in this many bytes: small enough to stay in the second-level cache, so that making values
/// costs little; far larger than the window of LZ4 or a block, so that values do not compress each other.
const STARTS: usize = 1 << 20;

/// Compressible values repeat this pattern: some random bytes, then zeros.
const PATTERN_BYTES: usize = 128;

/// The sizes of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// All of this many bytes.
    Fixed(usize),
    /// The generalised Pareto distribution that fits values of a production store at Facebook (Cao et al.,
    /// *Characterizing, modeling, and benchmarking RocksDB key-value workloads*, FAST 2020): shape 0.92, scale 226,
    /// location 0, at most 128 KiB. Half of the values are below 220 bytes; the mean is about 1 KB.
    Pareto,
    /// Two sizes; each key keeps its own (HashKV, experiment 7).
    Two {
        /// The one, in bytes.
        small: usize,
        /// The other, in bytes.
        large: usize,
        /// How many of 100 keys have small values.
        small_percent: u64,
    },
    /// All sizes from `min` to `max`, small ones most often, by Zipf's law; each key keeps its own (HashKV,
    /// experiments 8 and 12).
    Zipf {
        /// The smallest, in bytes.
        min: usize,
        /// The largest, in bytes.
        max: usize,
        /// The skew, between 0 and 1, both excluded.
        theta: f64,
    },
}

const PARETO_SHAPE: f64 = 0.92;
const PARETO_SCALE: f64 = 226.0;

/// Longest value of [`Sizes::Pareto`].
pub const PARETO_BYTES_MAX: usize = 128 << 10;

impl Sizes {
    /// Longest value there can be.
    #[must_use]
    pub fn max(self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Pareto => PARETO_BYTES_MAX,
            Self::Two { small, large, .. } => small.max(large),
            Self::Zipf { max, .. } => max,
        }
    }

    /// Whether all values of a key have the same size.
    fn kept(self) -> bool {
        matches!(self, Self::Two { .. } | Self::Zipf { .. })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes} B"),
            Self::Pareto => f.write_str("Pareto"),
            Self::Two { small, large, small_percent } => write!(f, "{small_percent} % {small} B, others {large} B"),
            Self::Zipf { min, max, theta } => write!(f, "{min} to {max} B, Zipf {theta}"),
        }
    }
}

fn pareto(hash: u64) -> usize {
    let remaining = 1.0 - to_unit(mix(hash));
    let size = PARETO_SCALE * (remaining.powf(-PARETO_SHAPE) - 1.0) / PARETO_SHAPE;
    (size.ceil() as usize).clamp(1, PARETO_BYTES_MAX)
}

/// Longest value of a run: the buffer is at least that long, and larger values measure memcpy.
const VALUE_BYTES_MAX: usize = 256 << 20;

/// Checks that such values can be made.
///
/// # Errors
/// [`Failure::Plan`] for values that are too long and for a fraction out of bounds.
pub fn check(sizes: Sizes, compressible: f64) -> Result<()> {
    if sizes.max() > VALUE_BYTES_MAX {
        return Err(Failure::Plan(format!("values of {} bytes: the most is {VALUE_BYTES_MAX}", sizes.max())));
    }
    match sizes {
        Sizes::Two { small_percent: 101.., .. } => {
            return Err(Failure::Plan("more than 100 of 100 keys with small values".into()));
        }
        Sizes::Zipf { min, max, theta } => {
            choose::check_theta(theta)?;
            if min > max {
                return Err(Failure::Plan(format!("values from {min} to {max} bytes: the first must not be larger")));
            }
        }
        _ => {}
    }
    if !(0.0..=1.0).contains(&compressible) {
        return Err(Failure::Plan(format!("a compressible fraction of {compressible}: it must be between 0 and 1")));
    }
    Ok(())
}

/// Makes and checks values. Shared by all threads.
#[derive(Debug)]
pub struct Values {
    buffer: Vec<u8>,
    sizes: Sizes,
    /// Ranks of sizes, where they follow Zipf's law.
    zipf: Option<Zipf>,
    seed: u64,
    /// Those of a user's own, in place of made ones.
    given: Option<Arc<Given>>,
}

impl Values {
    /// Values of the given sizes; about the fraction `compressible` of their bytes compresses away.
    ///
    /// # Errors
    /// [`Failure::Plan`] for values that cannot be made; see [`check`].
    pub fn new(sizes: Sizes, compressible: f64, seed: u64) -> Result<Self> {
        check(sizes, compressible)?;
        let mut random = Random::new(seed, u64::MAX);
        let mut buffer = vec![0; STARTS + sizes.max()];
        let noisy = ((1.0 - compressible) * PATTERN_BYTES as f64).round() as usize;
        for pattern in buffer.chunks_mut(PATTERN_BYTES) {
            let end = noisy.min(pattern.len());
            for word in pattern[..end].chunks_mut(8) {
                word.copy_from_slice(&random.draw().to_le_bytes()[..word.len()]);
            }
        }
        let zipf = match sizes {
            Sizes::Zipf { min, max, theta } => Some(Zipf::new((max - min + 1) as u64, theta)?),
            _ => None,
        };
        Ok(Self { buffer, sizes, zipf, seed, given: None })
    }

    /// The user's own values.
    #[must_use]
    pub fn given(given: Arc<Given>) -> Self {
        Self { buffer: Vec::new(), sizes: Sizes::Pareto, zipf: None, seed: 0, given: Some(given) }
    }

    /// Writes the value of key number `index` in version `version` to `out`, which is cleared first.
    pub fn write(&self, index: u64, version: u32, out: &mut Vec<u8>) {
        if let Some(given) = &self.given {
            out.clear();
            out.extend_from_slice(given.value(index, version));
            return;
        }
        let hash = self.hash(index, version);
        let size = self.size(index, version);
        out.clear();
        if size < STAMP_BYTES {
            out.extend_from_slice(&self.short(index)[..size]);
            return;
        }
        out.extend_from_slice(&index.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&seal(hash).to_le_bytes());
        out.extend_from_slice(self.body(hash, size));
    }

    /// The size of that value.
    #[must_use]
    pub fn size(&self, index: u64, version: u32) -> usize {
        if let Some(given) = &self.given {
            return given.value(index, version).len();
        }
        let hash = if self.sizes.kept() { self.hash(index, 0) } else { self.hash(index, version) };
        match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Pareto => pareto(hash),
            Sizes::Two { small, large, small_percent } => {
                if mix(hash) % 100 < small_percent {
                    small
                } else {
                    large
                }
            }
            Sizes::Zipf { min, .. } => {
                min + self.zipf.as_ref().map_or(0, |zipf| zipf.rank(to_unit(mix(hash))) as usize)
            }
        }
    }

    /// Longest value there can be.
    #[must_use]
    pub fn max(&self) -> usize {
        self.given.as_ref().map_or(self.sizes.max(), |given| given.value_bytes_max())
    }

    /// Whether all values have the same size.
    #[must_use]
    pub fn fixed(&self) -> Option<usize> {
        match self.sizes {
            Sizes::Fixed(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Checks that `value` is some version of the value of key number `index`.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub fn check(&self, index: u64, value: &[u8]) -> std::result::Result<(), String> {
        if let Some(given) = &self.given {
            return given.check(index, value);
        }
        let Some((stamp, body)) = value.split_at_checked(STAMP_BYTES) else {
            let size_fits = !(self.fixed().is_some() || self.sizes.kept()) || self.size(index, 0) == value.len();
            let fits = self.short(index)[..value.len()] == *value && size_fits;
            return if fits { Ok(()) } else { Err(format!("its {} bytes are not those written", value.len())) };
        };
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| stamp[at + i]));
        let found = u64::from(half(4)) << 32 | u64::from(half(0));
        if found != index {
            return Err(format!("it is stamped with key number {found}, not {index}"));
        }
        let hash = self.hash(index, half(8));
        if half(12) != seal(hash) {
            return Err("its version is not one that was written (same --seed?)".to_owned());
        }
        let size = self.size(index, half(8));
        if value.len() != size {
            return Err(format!(
                "it has {} bytes, but {size} were written (same --seed and --value-size?)",
                value.len()
            ));
        }
        if body != self.body(hash, size) {
            return Err("its bytes are not those written (same --seed and --value-size?)".to_owned());
        }
        Ok(())
    }

    fn hash(&self, index: u64, version: u32) -> u64 {
        mix(self.seed ^ mix(index.wrapping_add(mix(u64::from(version)))))
    }

    fn body(&self, hash: u64, size: usize) -> &[u8] {
        let start = hash as usize % STARTS;
        &self.buffer[start..start + size - STAMP_BYTES]
    }

    fn short(&self, index: u64) -> [u8; STAMP_BYTES] {
        let word = self.hash(index, 0).to_le_bytes();
        std::array::from_fn(|i| word[i % 8])
    }
}

/// Distinguishes a written version from a damaged one, by bits of the hash that the offset in the buffer does not use.
fn seal(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests;
