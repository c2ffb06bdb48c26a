//! Chooses the next key.
//!
//! The Zipf generator is the one of Gray et al., *Quickly generating billion-record synthetic databases* (SIGMOD 1994),
//! §3.2, which YCSB uses too: one random number and one power per sample, no table. Its constant, the generalised
//! harmonic number ζ(n, θ) = Σ 1/iᵉ for i ≤ n and e = θ, is summed for the first 10⁵ terms and continued by the
//! Euler–Maclaurin formula. Its error there is below 10⁻¹², and any n costs the same.
//!
//! Ranks are scattered over the keys by an affine permutation: the hottest keys are neither the first loaded nor
//! neighbours, and unlike with a hash each key has exactly one rank.

use serde::{Deserialize, Serialize};

use crate::{Failure, Result, random::Random};

/// How the key of an operation is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// The key of rank r with probability in proportion to 1/rᵉ, e being `theta`; ranks scattered over the keys.
    Zipf {
        /// The skew, between 0 (uniform) and 1, both excluded; 0.99 is customary.
        theta: f64,
    },
    /// Zipf over age: the newest keys are the hottest.
    Latest {
        /// As in `Zipf`.
        theta: f64,
    },
    /// Nine of ten choices are of a tenth of the keys, which are no neighbours. After as many choices (of each thread)
    /// as there are keys it is another tenth.
    Shifting,
}

/// Checks a distribution's skew.
///
/// # Errors
/// [`Failure::Plan`] when it is out of bounds.
pub fn check(distribution: Distribution) -> Result<()> {
    match distribution {
        Distribution::Uniform | Distribution::Shifting => Ok(()),
        Distribution::Zipf { theta } | Distribution::Latest { theta } => check_theta(theta),
    }
}

/// Checks a skew.
///
/// # Errors
/// [`Failure::Plan`] when it is out of bounds.
pub fn check_theta(theta: f64) -> Result<()> {
    if theta > 0.0 && theta < 1.0 {
        return Ok(());
    }
    Err(Failure::Plan(format!("a Zipf skew (--theta) of {theta}: it must be between 0 and 1, such as 0.99")))
}

/// [`Distribution::Shifting`]: one of so many parts of the keys is hot.
const PARTS: u64 = 10;

/// Samples key numbers below a count that may grow.
#[derive(Clone, Debug)]
pub struct Chooser {
    distribution: Distribution,
    count: u64,
    zipf: Option<Zipf>,
    scatter: Scatter,
    chosen: u64,
}

impl Chooser {
    /// Samples from `count` keys.
    ///
    /// # Errors
    /// [`Failure::Plan`] when there are no keys, and for a skew out of bounds.
    pub fn new(distribution: Distribution, count: u64) -> Result<Self> {
        if count == 0 {
            return Err(Failure::Plan("there are no keys to choose from: load some first (--num at least 1)".into()));
        }
        let zipf = match distribution {
            Distribution::Uniform | Distribution::Shifting => None,
            Distribution::Zipf { theta } | Distribution::Latest { theta } => Some(Zipf::new(count, theta)?),
        };
        Ok(Self { distribution, count, zipf, scatter: Scatter::new(count), chosen: 0 })
    }

    /// The number of the next key.
    pub fn choose(&mut self, random: &mut Random) -> u64 {
        self.chosen += 1;
        match (&self.zipf, self.distribution) {
            (_, Distribution::Shifting) => self.shifting(random),
            (None, _) => random.below(self.count),
            (Some(zipf), Distribution::Latest { .. }) => self.count - 1 - zipf.rank(random.unit()),
            (Some(zipf), _) => self.scatter.place(zipf.rank(random.unit())),
        }
    }

    fn shifting(&self, random: &mut Random) -> u64 {
        let part = self.count / PARTS;
        if part == 0 || random.below(PARTS) == 0 {
            return random.below(self.count);
        }
        let hot = (self.chosen - 1) / self.count % PARTS;
        PARTS * random.below(part) + hot
    }

    /// There are now `count` keys, more than before. Only `Latest` samples the new ones.
    pub fn grow(&mut self, count: u64) {
        if let (Distribution::Latest { .. }, Some(zipf)) = (self.distribution, &mut self.zipf) {
            self.count = count.max(self.count);
            zipf.resize(self.count);
        }
    }
}

/// Terms of ζ that are summed one by one.
const SUMMED: u64 = 100_000;

/// Ranks from 0 (hottest) to `items` − 1.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    theta: f64,
    /// ζ of the first [`SUMMED`] terms.
    zeta_base: f64,
    items: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(items: u64, theta: f64) -> Result<Self> {
        check_theta(theta)?;
        let zeta_base = terms(0, SUMMED, theta);
        let mut zipf = Self { theta, zeta_base, items: 0, zeta: 0.0, eta: 0.0 };
        zipf.resize(items);
        Ok(zipf)
    }

    fn resize(&mut self, items: u64) {
        let n = items as f64;
        self.zeta = match (items <= SUMMED, self.items <= items) {
            // Only what is new: with few keys and many inserts this is called all the time.
            (true, true) => self.zeta + terms(self.items, items, self.theta),
            (true, false) => terms(0, items, self.theta),
            (false, _) => self.zeta_base + self.tail(n),
        };
        self.items = items;
        let zeta_2 = terms(0, 2, self.theta);
        self.eta = (1.0 - (2.0 / n).powf(1.0 - self.theta)) / (1.0 - zeta_2 / self.zeta);
    }

    /// Σ i^−θ for [`SUMMED`] < i ≤ n: the integral, half the ends' difference, and the first derivative's term.
    fn tail(&self, n: f64) -> f64 {
        let (theta, m) = (self.theta, SUMMED as f64);
        let integral = (n.powf(1.0 - theta) - m.powf(1.0 - theta)) / (1.0 - theta);
        let ends = (n.powf(-theta) - m.powf(-theta)) / 2.0;
        let slopes = theta * (m.powf(-theta - 1.0) - n.powf(-theta - 1.0)) / 12.0;
        integral + ends + slopes
    }

    pub(crate) fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        if scaled < 1.0 || self.items == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(self.theta) || self.items == 2 {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        (rank as u64).min(self.items - 1)
    }
}

/// Σ i^−θ for `after` < i ≤ `last`.
fn terms(after: u64, last: u64, theta: f64) -> f64 {
    // Smallest terms first, so that none is lost to rounding.
    (after + 1..=last).rev().map(|i| (i as f64).powf(-theta)).sum()
}

/// The permutation r ↦ (r · factor + shift) mod count, one-to-one because factor and count share no divisor.
#[derive(Clone, Debug)]
struct Scatter {
    count: u64,
    factor: u64,
    shift: u64,
}

impl Scatter {
    fn new(count: u64) -> Self {
        // The golden section of the count maps neighbouring ranks to distant keys.
        let mut factor = (count as f64 * 0.618_033_988_749_895) as u64 | 1;
        while gcd(factor, count) != 1 {
            factor += 2;
        }
        Self { count, factor, shift: count / 3 }
    }

    fn place(&self, rank: u64) -> u64 {
        ((u128::from(rank) * u128::from(self.factor) + u128::from(self.shift)) % u128::from(self.count)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
