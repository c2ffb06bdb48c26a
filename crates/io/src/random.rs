//! Seeded random numbers (SplitMix64): fast, 64 bits of state, the same on every machine. Not for secrets.

/// Numbers determined by a seed alone.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// 2⁶⁴ divided by the golden ratio: its multiples spread evenly over the 64-bit numbers.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A one-to-one mapping of the 64-bit numbers in which every bit of the result depends on every bit of `n`.
#[must_use]
pub const fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

impl Random {
    /// The numbers of `seed`. Neighbouring seeds have nothing in common.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        // Without mixing, seeds 0 and `STEP` would return the same numbers, shifted by one step.
        Self { state: mix(seed ^ STEP) }
    }

    /// A random 64-bit number.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number below `bound`: the product's upper half, so some results are likelier by at most `bound` / 2⁶⁴.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// True in `numerator` of `denominator` cases.
    ///
    /// # Panics
    /// When `denominator` is 0.
    pub const fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills `buffer` with random bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for piece in buffer.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&bytes[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            std::array::from_fn::<u64, 4, _>(|_| random.next_u64())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_ne!(numbers(0)[1..], numbers(STEP)[..3]);
    }

    #[test]
    fn the_numbers_never_change_between_releases() {
        // A seed printed by an old release must repeat the old run.
        let mut random = Random::new(1);
        assert_eq!([random.next_u64(), random.next_u64()], [6_755_974_106_381_971_767, 13_665_441_387_248_026_780]);
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it_evenly() {
        let (mut random, mut hits) = (Random::new(3), [0_u32; 10]);
        for _ in 0..10_000 {
            hits[random.below(10) as usize] += 1;
        }
        // 1 000 are expected for each; the standard deviation is 30.
        assert!(hits.iter().all(|hits| (850..1150).contains(hits)), "{hits:?}");
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn chance_is_about_what_was_asked() {
        let mut random = Random::new(4);
        let hits = (0..10_000).filter(|_| random.chance(1, 4)).count();
        assert!((2300..2700).contains(&hits), "{hits}");
        assert!(!random.chance(0, 5) && random.chance(5, 5));
    }

    #[test]
    fn fill_reaches_every_byte_of_any_length() {
        for len in 0..20 {
            let mut ored = vec![0_u8; len];
            let mut random = Random::new(5);
            for _ in 0..64 {
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                ored.iter_mut().zip(bytes).for_each(|(all, byte)| *all |= byte);
            }
            assert_eq!(ored, vec![0xff; len]);
        }
    }
}
