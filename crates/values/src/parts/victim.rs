//! Which unit GC picks (HashKV §3.3, "GC"). Pure.

use serde::{Deserialize, Serialize};

/// Which group of values GC takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// The one with most bytes written to it since its last GC (HashKV §3.3).
    Greedy,
    /// The one with most dead bytes, each times its age, for each live byte: groups that are no longer written come
    /// first. The age is what was written to all groups since the last GC. Ours; the default.
    #[default]
    CostBenefit,
    /// Each time a random one of the so many with most bytes written since their last GC: 1 to 65 536. With 1 it is
    /// [`Victim::Greedy`], with as many as there are groups [`Victim::Random`] (HashKV §3.3).
    GreedyRandom(u32),
    /// A random one.
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
}

/// The candidates of one decision, those to take first in front: their positions and scores.
#[must_use]
pub fn rank(policy: Victim, units: &[Candidate], seed: u64) -> Vec<(usize, f64)> {
    let draw = |at: usize| mix(seed ^ at as u64);
    let mut ranked: Vec<(usize, f64)> =
        units.iter().enumerate().map(|(at, unit)| (at, policy.score(unit, draw(at)))).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Victim::GreedyRandom(d) = policy {
        // A run takes many units. Each of them is drawn from the most written that remain, or the run as a whole would
        // be greedy.
        for place in 0..ranked.len() {
            let most_written = (ranked.len() - place).min(d as usize).max(1);
            ranked.swap(place, place + (draw(place) % most_written as u64) as usize);
        }
    }
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
        let mut random = order(Victim::Random);
        random.sort_unstable();
        assert_eq!(random, [0, 1, 2]);
    }

    /// Unit n of eight has n times as many writes as unit 1.
    fn eight() -> Vec<Candidate> {
        (0..8).map(|n| Candidate { live: 100, dead: 100, written: 100 * n, rest: 1.0 }).collect()
    }

    /// How often each of eight units is at `place` in 8000 decisions.
    fn taken(policy: Victim, place: usize) -> [u32; 8] {
        let mut taken = [0; 8];
        for seed in 0..8000 {
            taken[rank(policy, &eight(), mix(seed))[place].0] += 1;
        }
        taken
    }

    #[test]
    fn greedy_random_takes_any_of_the_most_written() {
        assert_eq!(taken(Victim::GreedyRandom(1), 0), taken(Victim::Greedy, 0), "the most written of one is greedy");
        let of_four = taken(Victim::GreedyRandom(4), 0);
        assert_eq!(of_four[..4], [0; 4], "the others are not taken");
        assert!(of_four[4..].iter().all(|n| (1800..2200).contains(n)), "each of four a quarter: {of_four:?}");
        let of_all = taken(Victim::GreedyRandom(100), 0);
        assert!(of_all.iter().all(|n| (850..1150).contains(n)), "of all of them it is random: {of_all:?}");
    }

    /// Behind the first choice, the most written of the others is as likely as each of the three that remain.
    #[test]
    fn each_choice_of_greedy_random_is_a_draw_of_its_own() {
        assert_eq!(taken(Victim::GreedyRandom(1), 1), taken(Victim::Greedy, 1), "the most written of one is greedy");
        let of_four = taken(Victim::GreedyRandom(4), 1);
        assert_eq!(of_four[..3], [0; 3], "the others are not taken");
        assert!((1800..2200).contains(&of_four[3]), "a quarter, it was not there for the first: {of_four:?}");
        assert!(of_four[4..].iter().all(|n| (1300..1700).contains(n)), "a quarter of three quarters: {of_four:?}");
        let of_all = taken(Victim::GreedyRandom(100), 1);
        assert!(of_all.iter().all(|n| (850..1150).contains(n)), "of all of them it is random: {of_all:?}");
    }

    /// Of three, a unit comes at most two places earlier than by its writes.
    #[test]
    fn behind_those_drawn_from_the_most_written_come_first() {
        for seed in 0..1000 {
            let ranked = rank(Victim::GreedyRandom(3), &eight(), mix(seed));
            let mut units: Vec<usize> = ranked.iter().map(|&(at, _)| at).collect();
            let by_writes = |at: usize| 7 - at;
            assert!(units.iter().enumerate().all(|(place, &at)| by_writes(at) <= place + 2), "{units:?}");
            units.sort_unstable();
            assert_eq!(units, [0, 1, 2, 3, 4, 5, 6, 7], "each comes once");
        }
    }
}
