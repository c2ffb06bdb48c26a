//! Seeded random numbers: everything a run does follows from its seed.

pub use bifold_io::random::mix;

/// Numbers determined by a seed alone.
#[derive(Clone, Debug)]
pub struct Random {
    source: bifold_io::random::Random,
}

impl Random {
    /// The numbers of `seed`. Different `stream`s of one seed have nothing in common.
    #[must_use]
    pub fn new(seed: u64, stream: &str) -> Self {
        let named = stream.bytes().fold(stream.len() as u64, |hash, byte| mix(hash ^ u64::from(byte)));
        Self { source: bifold_io::random::Random::new(seed ^ named) }
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.source.below(bound)
    }

    /// A number from `least` up to and including `most`.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.source.chance(percent, 100)
    }

    /// One of `choices`, all equally likely.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// The position of a weight, sampled in proportion to the weights.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (at, &weight) in weights.iter().enumerate() {
            if left < weight {
                return at;
            }
            left -= weight;
        }
        weights.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(take(1, "a"), take(1, "a"));
        assert_ne!(take(1, "a"), take(1, "b"));
        assert_ne!(take(1, "a"), take(2, "a"));
    }

    #[test]
    fn weights_are_kept() {
        let mut random = Random::new(3, "weights");
        let mut counts = [0_u32; 3];
        for _ in 0..4000 {
            counts[random.weighted(&[1, 0, 3])] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((900..1100).contains(&counts[0]), "{counts:?}");
    }
}
