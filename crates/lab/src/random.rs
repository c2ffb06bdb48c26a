//! A small seeded generator of random numbers, and its mixing function.

/// Numbers that follow from a seed alone (SplitMix64: one addition and one [`mix`] each).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// An odd constant, 2⁶⁴ divided by the golden ratio: multiples of it spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A one-to-one mapping of the 64-bit numbers in which every bit of the result depends on every bit of `n`.
#[must_use]
pub fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

impl Random {
    /// The numbers of `seed`; different `stream`s of one seed have nothing in common.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { state: mix(seed ^ mix(stream.wrapping_add(GOLDEN))) }
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number below `bound`, which is not 0. (The product's upper half; the bias is below `bound` / 2⁶⁴.)
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0, "no number is below 0");
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 up to but not including 1.
    pub fn unit(&mut self) -> f64 {
        to_unit(self.draw())
    }
}

/// Maps any number to 0 ≤ x < 1, by its upper 53 bits.
#[must_use]
pub fn to_unit(n: u64) -> f64 {
    (n >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.draw()).collect::<Vec<_>>()
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn numbers_stay_in_their_bounds_and_reach_all_of_them() {
        let mut random = Random::new(7, 0);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert!(to_unit(u64::MAX) < 1.0);
    }
}
