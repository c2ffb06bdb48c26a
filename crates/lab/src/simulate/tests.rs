//! Simulations agree with what can be computed.

use super::*;

const KEYS: u32 = 40_000;

fn design(name: &str) -> Design {
    name.parse().unwrap()
}

fn written(name: &str, simulation: Simulation) -> f64 {
    simulation.run(design(name), &mut |_| {}).unwrap().written
}

fn simulation(which: Updates, space_target: f64) -> Simulation {
    Simulation { keys: KEYS, updates: 6 * u64::from(KEYS), which, space_target, ..Default::default() }
}

/// The root of a falling function.
fn root(mut low: f64, mut high: f64, falling: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if falling(middle) > 0.0 { low = middle } else { high = middle }
    }
    low
}

fn assert_near(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found}, computed {expected}");
}

/// Of a file that is collected, the share `u` is live: uniform updates leave exp(−(1 + r)(1 − u)) of it in the time in
/// which all files are collected once. No order of collection helps.
#[test]
fn uniform_updates_cost_every_design_of_files_the_same() {
    for target in [1.25, 1.5] {
        let live = root(0.0, 0.999, |u| (-target * (1.0 - u)).exp() - u);
        for name in ["log", "greedy", "cost-benefit", "by-age", "streams"] {
            assert_near(written(name, simulation(Updates::Uniform, target)), 1.0 / (1.0 - live), 0.06);
        }
    }
}

/// All groups are collected when their logs have one length, 2r times the live values, whatever is updated.
#[test]
fn groups_with_most_writes_gain_nothing_from_skew() {
    for which in [Updates::Uniform, Updates::Zipf(0.99), Updates::Shifting] {
        for slack in [0.25, 0.5] {
            let found = written("hashkv", simulation(which, 1.0 + slack));
            assert_near(found, 1.0 + 1.0 / (2.0 * slack), 0.08);
        }
    }
}

/// A log is collected once while T updates are made, where T times what each writes is all it can store. A key that is
/// updated with probability p is copied then unless it was updated.
#[test]
fn a_log_copies_what_was_not_updated_while_it_went_round() {
    let zeta: f64 = (1..=KEYS).map(|rank| f64::from(rank).powf(-0.99)).sum();
    let probabilities: Vec<f64> = (1..=KEYS).map(|rank| f64::from(rank).powf(-0.99) / zeta).collect();
    let written_in = |updates: f64| -> f64 { probabilities.iter().map(|p| p / (1.0 - (-p * updates).exp())).sum() };
    for target in [1.25, 1.5] {
        let stored = target * f64::from(KEYS);
        let updates = root(1.0, stored, |updates| stored - updates * written_in(updates));
        assert_near(written("log", simulation(Updates::Zipf(0.99), target)), written_in(updates), 0.05);
    }
}

#[test]
fn a_simulation_is_the_same_each_time() {
    let simulation = Simulation { updates: u64::from(KEYS), ..simulation(Updates::Shifting, 1.5) };
    let run = |seed| Simulation { seed, ..simulation }.run(design("streams"), &mut |_| {}).unwrap();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn what_is_simulated_is_within_its_bound() {
    for design in DESIGNS {
        let simulation = simulation(Updates::Zipf(0.9), 1.25);
        let outcome = simulation.run(design, &mut |_| {}).unwrap();
        assert!(outcome.space_max <= 1.2501 && outcome.space_max > 1.24, "{}: {outcome:?}", design.name);
        assert!(outcome.written > 1.3 && outcome.written < 4.5, "{}: {outcome:?}", design.name);
    }
}

/// What a reader of the pages is told.
#[test]
fn better_rules_write_less_if_updates_are_skewed() {
    let of = |name| written(name, simulation(Updates::Zipf(0.99), 1.25));
    for better in [
        ["streams", "by-age", "cost-benefit", "greedy", "log"].as_slice(),
        &["hashkv-segments", "hashkv-cost-benefit", "hashkv"],
        &["hashkv-log", "hashkv-oldest-log"],
    ] {
        let figures: Vec<f64> = better.iter().map(|name| of(name)).collect();
        assert!(figures.is_sorted_by(|a, b| a < b), "{better:?}: {figures:?}");
    }
}

#[test]
fn a_buffer_absorbs_updates_and_is_emptied_when_it_is_full() {
    let with = |buffer| Simulation { buffer, ..simulation(Updates::Zipf(0.99), 1.5) };
    let run = |buffer| with(buffer).run(design("hashkv"), &mut |_| {}).unwrap();
    let (none, small, large) = (run(0), run(KEYS / 64), run(KEYS / 8));
    assert!(none.absorbed < f64::EPSILON);
    assert!(small.absorbed > 0.1 && large.absorbed > small.absorbed, "{small:?} {large:?}");
    assert!(none.written > small.written && small.written > large.written);
    let mut passed = Vec::new();
    let mut buffer = Buffer::new(10, 3);
    [1, 2, 1, 3, 1].into_iter().for_each(|key| buffer.write(key, |key| passed.push(key)));
    assert_eq!((passed, buffer.absorbed, buffer.keys), (vec![1, 2, 3], 1, vec![1]));
}

#[test]
fn each_key_has_one_live_value() {
    fn check<D: Collect>(design: D, limit: u64) {
        let mut bounded = Bounded { design, limit, look_at: 0, stored_max: 0 };
        let mut random = Random::new(7, 0);
        (0..KEYS).for_each(|key| bounded.write(key));
        for _ in 0..4 * KEYS {
            bounded.write(random.below(random.clone().below(u64::from(KEYS)) + 1) as u32);
        }
        bounded.design.segments().check();
        assert!(bounded.design.segments().copied > 0);
    }
    let limit = u64::from(KEYS) * 5 / 4;
    for design in DESIGNS {
        match design.rules {
            Rules::OfFiles(writes, victims, survivors) => {
                check(FileStreams::new((KEYS, KEYS / 640), (writes, victims, survivors)), limit);
            }
            Rules::OfGroups(victim, cold) => check(Groups::new((KEYS, 64, KEYS / 640), victim, cold), limit),
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let fine = simulation(Updates::Uniform, 1.25);
    assert!(fine.check().is_ok());
    for wrong in [
        Simulation { keys: 1000, ..fine },
        Simulation { files: u32::MAX, ..fine },
        Simulation { groups: 0, ..fine },
        Simulation { files: 0, ..fine },
        Simulation { updates: 0, ..fine },
        Simulation { space_target: 1.0, ..fine },
        Simulation { space_target: f64::NAN, ..fine },
    ] {
        assert!(matches!(wrong.run(DESIGNS[0], &mut |_| {}), Err(Failure::Plan(_))), "{wrong:?}");
    }
    assert!("zipf:1".parse::<Updates>().is_err() && "zipf:x".parse::<Updates>().is_err());
    assert!("hashed".parse::<Updates>().is_err() && "hashed".parse::<Design>().is_err());
}
