//! Which unit GC picks (HashKV §3.3, "GC"). Pure.

use serde::{Deserialize, Serialize};

/// Which group of values GC takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// The one with most writes since its last GC (HashKV §3.3).
    Greedy,
    /// Dead bytes for each live byte, times the time since its last GC: units that are no longer written come first.
    #[default]
    CostBenefit,
    /// The one with most writes of a random sample of this many: 1 to 65 536.
    GreedyRandom(u32),
    /// Any.
    Random,
}

/// What a policy knows of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Bytes that would be copied.
    pub live: u64,
    /// Bytes that would be freed.
    pub dead: u64,
    /// Bytes written to it since its last GC.
    pub written: u64,
    /// The sum over its segments: bytes that would be freed, times what was written to all since the last GC of the
    /// segment.
    pub rest: f64,
}

impl Candidate {
    /// Adds dead bytes that have been there for so many written bytes.
    pub fn add_dead(&mut self, bytes: u64, age_bytes: u64) {
        self.dead += bytes;
        self.rest += bytes as f64 * (age_bytes + 1) as f64;
    }
}

impl Victim {
    /// Its score with the policy. `draw` is a random number: the same one for the same decision.
    #[must_use]
    pub fn score(self, unit: &Candidate, draw: u64) -> f64 {
        match self {
            Self::Greedy | Self::GreedyRandom(_) => unit.written as f64,
            Self::CostBenefit => unit.rest / (unit.live as f64 + 1.0),
            Self::Random => (draw >> 11) as f64,
        }
    }

    /// How many of so many candidates a decision looks at.
    #[must_use]
    pub fn sample(self, candidates: usize) -> usize {
        match self {
            Self::GreedyRandom(d) => candidates.min(d as usize),
            _ => candidates,
        }
    }
}

/// The candidates of one decision, the highest score first: their positions and scores.
#[must_use]
pub fn rank(policy: Victim, units: &[Candidate], seed: u64) -> Vec<(usize, f64)> {
    let mut drawn: Vec<(u64, usize)> = (0..units.len()).map(|at| (mix(seed ^ at as u64), at)).collect();
    if matches!(policy, Victim::GreedyRandom(_)) {
        drawn.sort_unstable();
        drawn.truncate(policy.sample(units.len()));
    }
    let mut ranked: Vec<(usize, f64)> =
        drawn.into_iter().map(|(draw, at)| (at, policy.score(&units[at], draw))).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked
}

/// Spreads a number over all bits.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: [Candidate; 3] = [
        Candidate { live: 100, dead: 100, written: 100, rest: 100.0 * 10.0 },
        Candidate { live: 100, dead: 80, written: 150, rest: 80.0 * 10.0 },
        Candidate { live: 100, dead: 50, written: 50, rest: 50.0 * 100.0 },
    ];

    fn order(policy: Victim) -> Vec<usize> {
        rank(policy, &UNITS, 7).into_iter().map(|(at, _)| at).collect()
    }

    #[test]
    fn each_policy_has_its_own_favourite() {
        assert_eq!(order(Victim::Greedy), [1, 0, 2]);
        assert_eq!(order(Victim::CostBenefit), [2, 0, 1]);
        assert_eq!(order(Victim::GreedyRandom(2)).len(), 2);
        let mut random = order(Victim::Random);
        random.sort_unstable();
        assert_eq!(random, [0, 1, 2]);
    }
}
