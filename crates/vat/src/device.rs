//! The throughput of a device by unit of transfer and queue depth, as measured, and β derived from it (§3.2).
//!
//! ```text
//! β = random throughput at a unit and a depth / the best sequential throughput,   at most 1
//! ```
//!
//! Reads and writes each have a β. Levels move as many bytes in reads as in writes, except for the level in memory,
//! which is not read, and the times add up; so [`Beta::both`] is the harmonic mean of the two.
//!
//! **Between two measured units or depths** the throughput is interpolated on a straight line between logarithms:
//! device curves are close to straight there. **Below the smallest unit** it shrinks with the unit, because a smaller
//! request is no faster. **Above the largest unit or depth** it stays the same. Below the smallest depth there is no
//! answer.
//!
//! A profile is TOML with one `[[measured]]` for each unit and depth; `docs/cost-model.md` has the fields.

use std::{error::Error, fmt};

use serde::{Deserialize, Serialize};

use crate::input::{OutOfRange, Throughput};

/// The format of profiles that is written and read.
pub const FORMAT: u32 = 1;

/// The most rows of a profile: 24 units at 16 depths are 384.
const ROWS_MAX: usize = 1000;

/// 1 TiB: larger than any table.
const UNIT_BYTES_MAX: u64 = 1 << 40;

/// The deepest queue of NVMe.
const DEPTH_MAX: u32 = 1 << 16;

/// A petabyte a second, which keeps all sums and ratios far from overflow.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// A profile that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadProfile(String);

impl fmt::Display for BadProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a device profile: {}; `bifold vat calibrate` writes one", self.0)
    }
}

impl Error for BadProfile {}

/// How the measurements avoided the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caching {
    /// Reads and writes bypassed it (`O_DIRECT`).
    Direct,
    /// Data were dropped from it before they were read, and read once; writes went into it and were synced within the
    /// measured time.
    Dropped,
    /// The file system is in memory: the figures are of memory, not of a device.
    Memory,
}

/// Bytes per second at one unit and depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Bytes of each request.
    pub unit_bytes: u64,
    /// Requests in flight at once.
    pub depth: u32,
    /// One unit after the other.
    pub sequential_read_bytes_per_second: u64,
    /// Units in random order.
    pub random_read_bytes_per_second: u64,
    /// One unit after the other, and synced.
    pub sequential_write_bytes_per_second: u64,
    /// Units in random order, and synced.
    pub random_write_bytes_per_second: u64,
}

impl Measured {
    fn sequential(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.sequential_read_bytes_per_second,
            Direction::Write => self.sequential_write_bytes_per_second,
        }
    }

    fn random(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.random_read_bytes_per_second,
            Direction::Write => self.random_write_bytes_per_second,
        }
    }

    fn check(&self) -> Result<(), String> {
        let rates = [
            ("sequential_read", self.sequential_read_bytes_per_second),
            ("random_read", self.random_read_bytes_per_second),
            ("sequential_write", self.sequential_write_bytes_per_second),
            ("random_write", self.random_write_bytes_per_second),
        ];
        if !(1..=UNIT_BYTES_MAX).contains(&self.unit_bytes) {
            return Err(format!("unit_bytes must be from 1 to {UNIT_BYTES_MAX}, not {}", self.unit_bytes));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Err(format!("depth must be from 1 to {DEPTH_MAX}, not {}", self.depth));
        }
        match rates.into_iter().find(|(_, rate)| !(1..=RATE_MAX).contains(rate)) {
            Some((name, rate)) => Err(format!("{name}_bytes_per_second must be from 1 to {RATE_MAX}, not {rate}")),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// β at a unit and a depth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beta {
    /// Of reads.
    pub read: Throughput,
    /// Of writes.
    pub write: Throughput,
}

impl Beta {
    /// For traffic that is half reads and half writes: the harmonic mean, because their times add up.
    pub fn both(self) -> Throughput {
        // The mean lies between the two, so it is in range.
        Throughput(2.0 / (self.read.0.recip() + self.write.0.recip()))
    }
}

/// The measured throughput of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Profile {
    format: u32,
    caching: Caching,
    file_bytes: u64,
    seconds: f64,
    /// Sorted by depth, then by unit; not empty.
    measured: Vec<Measured>,
}

/// A profile before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: u32,
    caching: Caching,
    file_bytes: u64,
    seconds: f64,
    measured: Vec<Measured>,
}

impl TryFrom<Written> for Profile {
    type Error = BadProfile;

    fn try_from(written: Written) -> Result<Self, BadProfile> {
        let Written { format, caching, file_bytes, seconds, measured } = written;
        if format != FORMAT {
            return Err(BadProfile(format!("its format is {format}, and only {FORMAT} is known")));
        }
        Self::new(caching, file_bytes, seconds, measured)
    }
}

impl Profile {
    /// From measurements in any order, which took `seconds` each on a file of `file_bytes`.
    ///
    /// # Errors
    /// Without measurements, with two of the same unit and depth, or with figures that no device has.
    pub fn new(
        caching: Caching,
        file_bytes: u64,
        seconds: f64,
        mut measured: Vec<Measured>,
    ) -> Result<Self, BadProfile> {
        if measured.is_empty() || measured.len() > ROWS_MAX {
            return Err(BadProfile(format!("it has {} measurements, and must have 1 to {ROWS_MAX}", measured.len())));
        }
        // TOML's integers are signed.
        if !(1..=i64::MAX.cast_unsigned()).contains(&file_bytes) {
            return Err(BadProfile(format!("file_bytes must be from 1 to {}, not {file_bytes}", i64::MAX)));
        }
        if !(seconds > 0.0 && seconds <= 86_400.0) {
            return Err(BadProfile(format!("seconds must be above 0 and at most 86400, not {seconds}")));
        }
        for (at, row) in (1..).zip(&measured) {
            row.check().map_err(|why| BadProfile(format!("measurement {at}: {why}")))?;
        }
        measured.sort_by_key(|row| (row.depth, row.unit_bytes));
        if let Some(twice) =
            measured.windows(2).find(|p| (p[0].depth, p[0].unit_bytes) == (p[1].depth, p[1].unit_bytes))
        {
            let (unit, depth) = (twice[0].unit_bytes, twice[0].depth);
            return Err(BadProfile(format!("two measurements have unit_bytes = {unit} and depth = {depth}")));
        }
        Ok(Self { format: FORMAT, caching, file_bytes, seconds, measured })
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// When it is not TOML, lacks a field or has an unknown one, and as [`Profile::new`].
    pub fn from_toml(text: &str) -> Result<Self, BadProfile> {
        toml::from_str(text).map_err(|error| {
            // Errors of `new` are whole sentences already.
            let why = error.message();
            let own = why.strip_prefix("not a device profile: ").and_then(|why| why.split(';').next());
            BadProfile(own.unwrap_or(why).to_owned())
        })
    }

    /// Writes it.
    ///
    /// # Errors
    /// None that is known: every profile can be written.
    pub fn to_toml(&self) -> Result<String, BadProfile> {
        toml::to_string(self).map_err(|error| BadProfile(error.to_string()))
    }

    /// How the measurements avoided the page cache.
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Sorted by depth, then by unit; at least one.
    pub fn measured(&self) -> &[Measured] {
        &self.measured
    }

    /// β at a unit and a depth; the top of this file says what holds for units and depths that were not measured.
    ///
    /// # Errors
    /// For zero bytes, and for a depth below the smallest measured one.
    pub fn beta(&self, unit_bytes: u64, depth: u32) -> Result<Beta, OutOfRange> {
        if unit_bytes == 0 {
            return Err(OutOfRange { name: "unit", given: 0.0, allowed: "at least one byte" });
        }
        if self.measured.first().is_none_or(|least| depth < least.depth) {
            let allowed = "at least the least depth that the profile has";
            return Err(OutOfRange { name: "depth", given: f64::from(depth), allowed });
        }
        let of = |direction| {
            let best = self.measured.iter().map(|row| row.sequential(direction)).max().unwrap_or(1);
            let share = self.random(direction, unit_bytes as f64, f64::from(depth)) / best as f64;
            Throughput::new(share.min(1.0))
        };
        Ok(Beta { read: of(Direction::Read)?, write: of(Direction::Write)? })
    }

    /// Bytes per second of the best sequential reads and writes.
    pub fn best_rates(&self) -> (f64, f64) {
        let best = |direction| self.measured.iter().map(|row| row.sequential(direction)).max().unwrap_or(1) as f64;
        (best(Direction::Read), best(Direction::Write))
    }

    /// Bytes per second of random reads of this size. A depth below the smallest measured one counts as that one.
    pub fn random_read_rate(&self, unit_bytes: f64, depth: u32) -> f64 {
        let least = self.measured.first().map_or(1, |row| row.depth);
        self.random(Direction::Read, unit_bytes.max(1.0), f64::from(depth.max(least)))
    }

    /// Bytes per second in random order.
    fn random(&self, direction: Direction, unit_bytes: f64, depth: f64) -> f64 {
        let of_depth = |rows: &[Measured]| {
            let point = |row: &Measured| (row.unit_bytes as f64, row.random(direction) as f64);
            let points: Vec<_> = rows.iter().map(point).collect();
            let least = points.first().map_or(1.0, |&(unit, _)| unit);
            interpolate(&points, unit_bytes) * (unit_bytes / least).min(1.0)
        };
        let depths = self.measured.chunk_by(|a, b| a.depth == b.depth);
        let points: Vec<_> = depths.filter_map(|rows| Some((f64::from(rows.first()?.depth), of_depth(rows)))).collect();
        interpolate(&points, depth)
    }
}

/// The value at `x` on straight lines between the logarithms of points in ascending order; outside, the nearest
/// point's.
fn interpolate(points: &[(f64, f64)], x: f64) -> f64 {
    let behind = points.partition_point(|&(at, _)| at <= x);
    match (behind.checked_sub(1).and_then(|before| points.get(before)), points.get(behind)) {
        (Some(&(x0, y0)), Some(&(x1, y1))) => y0 * (y1 / y0).powf((x / x0).ln() / (x1 / x0).ln()),
        (Some(&(_, y)), None) | (None, Some(&(_, y))) => y,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random throughput is half of sequential; writes are a tenth of reads.
    fn row(unit_bytes: u64, depth: u32, read: u64) -> Measured {
        Measured {
            unit_bytes,
            depth,
            sequential_read_bytes_per_second: read,
            random_read_bytes_per_second: read / 2,
            sequential_write_bytes_per_second: read / 10,
            random_write_bytes_per_second: read / 20,
        }
    }

    fn profile() -> Profile {
        // Out of order on purpose.
        let rows = vec![row(65_536, 32, 16_000), row(4096, 1, 1000), row(65_536, 1, 4000), row(4096, 32, 4000)];
        Profile::new(Caching::Direct, 1 << 28, 0.5, rows).unwrap()
    }

    #[track_caller]
    fn read(unit_bytes: u64, depth: u32, expected: f64) {
        let beta = profile().beta(unit_bytes, depth).unwrap().read.get();
        assert!((beta / expected - 1.0).abs() < 1e-12, "{beta}, not {expected}");
    }

    #[test]
    fn measured_points_come_back() {
        read(4096, 1, 500.0 / 16_000.0);
        read(65_536, 1, 2000.0 / 16_000.0);
        read(4096, 32, 2000.0 / 16_000.0);
        read(65_536, 32, 0.5);
    }

    #[test]
    fn between_points_lines_are_straight_in_logarithms() {
        // Halfway between 4096 and 65 536 is 16 384, and between 500 and 2000 it is 1000.
        read(16_384, 1, 1000.0 / 16_000.0);
        read(16_384, 32, 4000.0 / 16_000.0);
        // 8 is three fifths of the way from 1 to 32: of the two doublings, 1.2.
        read(4096, 8, 500.0 * 2_f64.powf(1.2) / 16_000.0);
    }

    #[test]
    fn outside_small_units_shrink_and_large_ones_stay() {
        read(512, 1, 500.0 / 8.0 / 16_000.0);
        read(1 << 30, 32, 0.5);
        read(65_536, 1000, 0.5);
        assert!(profile().beta(0, 1).is_err() && profile().beta(4096, 0).is_err());
        let deep = Profile::new(Caching::Direct, 1, 0.5, vec![row(4096, 32, 100)]).unwrap();
        let error = deep.beta(4096, 8).unwrap_err().to_string();
        assert!(error.contains("depth") && error.contains("not 8"), "{error}");
    }

    #[test]
    fn beta_is_at_most_1_and_of_both_the_harmonic_mean() {
        let mut faster = row(4096, 1, 1000);
        faster.random_read_bytes_per_second = 2000;
        let beta = Profile::new(Caching::Direct, 1, 0.5, vec![faster]).unwrap().beta(4096, 1).unwrap();
        assert_eq!((beta.read.get(), beta.write.get()), (1.0, 0.5));
        assert!((beta.both().get() - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn toml_round_trips_in_order() {
        let profile = profile();
        let text = profile.to_toml().unwrap();
        assert_eq!(Profile::from_toml(&text).unwrap(), profile);
        assert!(text.starts_with("format = 1\ncaching = \"direct\"\n"), "{text}");
        assert_eq!(profile.measured()[0], row(4096, 1, 1000));
    }

    #[test]
    fn what_is_no_profile_is_refused_in_words() {
        let good = profile().to_toml().unwrap();
        for (from, to, says) in [
            ("format = 1", "format = 2", "its format is 2"),
            ("caching = \"direct\"", "caching = \"warm\"", "warm"),
            ("seconds = 0.5", "seconds = nan", "seconds must be above 0"),
            ("seconds = 0.5", "", "seconds"),
            ("seconds = 0.5", "seconds = 0.5\nsecond = 1", "second"),
            ("unit_bytes = 4096", "unit_bytes = 0", "measurement 1: unit_bytes must be from 1"),
            ("depth = 32", "depth = 0", "depth must be from 1"),
            ("depth = 32", "depth = 1", "two measurements have unit_bytes = 4096 and depth = 1"),
            ("_read_bytes_per_second = 500", "_read_bytes_per_second = 0", "random_read_bytes_per_second must be"),
            ("_read_bytes_per_second = 500", "_read_bytes_per_second = -1", "-1"),
            ("file_bytes = 268435456", "file_bytes = 0", "file_bytes must be"),
            ("[[measured]]", "[[measured", ""),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Profile::from_toml(&good.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with("not a device profile: ") && error.contains(says), "{to}: {error}");
            assert_eq!(error.matches("not a device profile").count(), 1, "{error}");
        }
        assert!(Profile::from_toml("").is_err());
        assert!(Profile::new(Caching::Direct, 1, 1.0, Vec::new()).is_err());
    }
}
