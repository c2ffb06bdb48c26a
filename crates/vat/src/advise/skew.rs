//! How often each key is written, and what follows from that for buffers and logs.
//!
//! Key k of N is written with probability p(k) = k^−θ / H, where H is the sum of all k^−θ: Zipf's law, which is
//! uniform at θ = 0. Sums over keys are taken over groups of neighbours whose ranks differ by a tenth, so their error
//! is far below that of the model.

use super::workload::SKEW_MAX;

/// The ratio of ranks within a group of neighbours.
const GROUP_GROWTH: f64 = 1.1;

/// Steps of a bisection: more than an f64 has bits.
const BISECTIONS: u32 = 60;

/// The distribution of writes over keys.
#[derive(Debug, Clone)]
pub(crate) struct Spread {
    keys: f64,
    /// For each group, its number of keys and the probability of each key.
    groups: Vec<(f64, f64)>,
}

impl Spread {
    /// Zipf with `theta` over this many keys, at least one.
    pub fn new(keys: f64, theta: f64) -> Self {
        let keys = keys.max(1.0);
        let mut groups = Vec::new();
        let mut first = 1.0;
        while first <= keys {
            let next = (first * GROUP_GROWTH).floor().max(first + 1.0).min(keys + 1.0);
            groups.push((next - first, f64::midpoint(first, next - 1.0).powf(-theta)));
            first = next;
        }
        let all: f64 = groups.iter().map(|(count, weight)| count * weight).sum();
        groups.iter_mut().for_each(|group| group.1 /= all);
        Self { keys, groups }
    }

    /// How many distinct keys `writes` touch: Σ 1 − (1 − p)^n, by e^−pn.
    pub fn distinct(&self, writes: f64) -> f64 {
        self.groups.iter().map(|&(count, p)| -count * (-p * writes).exp_m1()).sum()
    }

    /// The total probability of the `keys` that are chosen most often.
    pub fn hottest(&self, keys: f64) -> f64 {
        let mut left = keys;
        let take = |&(count, p): &(f64, f64)| {
            let taken = left.clamp(0.0, count);
            left -= taken;
            taken * p
        };
        self.groups.iter().map(take).sum::<f64>().min(1.0)
    }

    /// How many writes touch this many distinct keys; infinite if there are fewer.
    pub fn writes_until(&self, distinct: f64) -> f64 {
        if distinct >= self.keys * 0.999 {
            return f64::INFINITY;
        }
        let most = self.groups.iter().map(|&(_, p)| p).fold(f64::INFINITY, f64::min).recip() * 100.0;
        bisect(distinct, most, |writes| self.distinct(writes) >= distinct)
    }

    /// Bytes that GC of a log copies for each byte written to it, if GC starts at the oldest end and the log may have
    /// a share `spare` more bytes than its values.
    ///
    /// A value written T writes ago is dead with probability 1 − e^−pT. What GC reaches at age T was written or
    /// copied, so the log takes in W = Σ p / (1 − e^−pT) values for each that is written, and has its full length
    /// where W·T = (1 + spare)·N.
    pub fn copied_by_log(&self, spare: f64) -> f64 {
        let taken_in = |age: f64| -> f64 {
            self.groups
                .iter()
                .map(|&(count, p)| if p * age > 700.0 { count * p } else { count * p / -(-p * age).exp_m1() })
                .sum()
        };
        let length = (1.0 + spare) * self.keys;
        let age = bisect(0.0, 1e3 * length, |age| age > 0.0 && taken_in(age) * age >= length);
        (taken_in(age) - 1.0).max(0.0)
    }
}

/// The smallest number between the two for which `holds` is true; it must be true for all larger ones.
fn bisect(low: f64, high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (low, high);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle }
    }
    high
}

/// The skew under which `calls` touch `found` distinct ones of `keys`; 0 if even uniform calls would touch no more.
pub fn skew_of(keys: f64, calls: f64, found: f64) -> f64 {
    let touches_fewer = |theta: f64| Spread::new(keys, theta).distinct(calls) < found;
    if Spread::new(keys, 0.0).distinct(calls) <= found { 0.0 } else { bisect(0.0, SKEW_MAX, touches_fewer) }
}

/// The same for files that hold values of all ages. GC takes the file with the most garbage and knows nothing of a
/// key but that it exists: a share u of a file is live at its GC, with u = e^−(1 + spare)(1 − u).
pub(crate) fn copied_by_files(spare: f64) -> f64 {
    // The other solution is u = 1. The right side grows with u, so an iteration from below ends at the smaller one.
    let live = (0..10_000).fold(0.0_f64, |live, _| (-(1.0 + spare) * (1.0 - live)).exp());
    (1.0 - live).recip() - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(got: f64, expected: f64, error: f64) {
        assert!((got / expected - 1.0).abs() < error, "{got}, not {expected}");
    }

    #[test]
    fn uniform_writes_touch_keys_like_a_coupon_collector() {
        let spread = Spread::new(1000.0, 0.0);
        near(spread.distinct(1000.0), 1000.0 * (1.0 - (-1.0_f64).exp()), 1e-6);
        near(spread.writes_until(632.12), 1000.0, 1e-3);
        assert!(spread.writes_until(1000.0).is_infinite());
    }

    /// Against a sum over each key.
    #[test]
    fn groups_of_keys_are_as_good_as_keys() {
        for theta in [0.5, 0.9, 0.99] {
            let (keys, spread) = (100_000, Spread::new(1e5, theta));
            let all: f64 = (1..=keys).map(|k| f64::from(k).powf(-theta)).sum();
            for writes in [1e3, 1e5, 1e6] {
                let exact: f64 = (1..=keys).map(|k| 1.0 - (1.0 - f64::from(k).powf(-theta) / all).powf(writes)).sum();
                near(spread.distinct(writes), exact, 0.01);
            }
        }
    }

    /// The figures of a simulation with a million keys: 4.10 and 2.52 bytes written for each that a user writes.
    #[test]
    fn a_log_copies_what_a_simulation_copied() {
        let zipf = Spread::new(1e6, 0.99);
        near(1.0 + zipf.copied_by_log(0.25), 4.10, 0.03);
        near(1.0 + zipf.copied_by_log(0.5), 2.52, 0.03);
        near(1.0 + Spread::new(1e6, 0.0).copied_by_log(0.5), 1.0 + 0.716, 0.02);
    }

    #[test]
    fn skew_is_found_by_how_many_keys_are_touched() {
        for theta in [0.3, 0.8, 0.95] {
            let found = Spread::new(1e5, theta).distinct(1e5);
            near(skew_of(1e5, 1e5, found), theta, 1e-3);
        }
        assert_eq!(skew_of(100.0, 1.0, 1.0), 0.0);
        assert_eq!(skew_of(100.0, 0.0, 0.0), 0.0);
        assert_eq!(skew_of(100.0, 50.0, 50.0), 0.0);
        assert!(skew_of(100.0, 1e4, 1.0) > 0.99);
    }

    /// 2.68 and 1.71 in the same simulation, with uniform writes.
    #[test]
    fn files_copy_what_a_simulation_copied() {
        near(1.0 + copied_by_files(0.25), 2.68, 0.02);
        near(1.0 + copied_by_files(0.5), 1.71, 0.02);
    }
}
