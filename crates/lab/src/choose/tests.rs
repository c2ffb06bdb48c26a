use super::*;

fn frequencies(chooser: &mut Chooser, count: usize, draws: usize) -> Vec<usize> {
    let mut random = Random::new(1, 2);
    let mut seen = vec![0; count];
    for _ in 0..draws {
        seen[chooser.choose(&mut random) as usize] += 1;
    }
    seen
}

#[test]
fn uniform_choices_are_alike() {
    let seen = frequencies(&mut Chooser::new(Distribution::Uniform, 100).unwrap(), 100, 100_000);
    assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
}

#[test]
fn the_hottest_keys_of_zipf_have_the_share_the_formula_gives_them() {
    let (count, draws) = (1000, 200_000);
    let mut chooser = Chooser::new(Distribution::Zipf { theta: 0.99 }, count as u64).unwrap();
    let mut seen = frequencies(&mut chooser, count, draws);
    seen.sort_unstable_by(|a, b| b.cmp(a));
    let zeta = terms(0, count as u64, 0.99);
    // The generator is exact for the first two ranks and a smooth approximation from there on.
    for (rank, tolerance) in [(0, 0.05), (1, 0.05), (9, 0.4), (99, 0.4)] {
        let expected = draws as f64 / zeta / (rank as f64 + 1.0).powf(0.99);
        let off = (seen[rank] as f64 - expected).abs() / expected;
        assert!(off < tolerance, "rank {rank}: {} draws, expected {expected:.0}", seen[rank]);
    }
    assert!(seen.iter().filter(|&&n| n > 0).count() > 950, "nearly every key is drawn at least once");
}

#[test]
fn hot_keys_are_not_neighbours_nor_first() {
    let scatter = Scatter::new(1_000_000);
    let hottest: Vec<u64> = (0..4).map(|rank| scatter.place(rank)).collect();
    for pair in hottest.windows(2) {
        assert!(pair[0].abs_diff(pair[1]) > 100_000, "{hottest:?}");
    }
}

#[test]
fn every_key_has_exactly_one_rank() {
    for count in [1, 2, 3, 6, 10, 97, 1000] {
        let scatter = Scatter::new(count);
        let mut places: Vec<u64> = (0..count).map(|rank| scatter.place(rank)).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..count), "{count}");
    }
}

#[test]
fn one_tenth_of_the_keys_is_hot_and_then_another() {
    let mut chooser = Chooser::new(Distribution::Shifting, 1000).unwrap();
    for round in 0..12 {
        let seen = frequencies(&mut chooser, 1000, 1000);
        let hot: usize = seen.iter().skip(round % 10).step_by(10).sum();
        assert!((850..970).contains(&hot), "round {round}: {hot} of 1000");
    }
    let mut few = Chooser::new(Distribution::Shifting, 3).unwrap();
    assert!(frequencies(&mut few, 3, 1000).iter().all(|&n| n > 200), "too few keys for tenths");
}

#[test]
fn latest_prefers_new_keys_also_after_growing() {
    let mut chooser = Chooser::new(Distribution::Latest { theta: 0.99 }, 100).unwrap();
    chooser.grow(1000);
    let seen = frequencies(&mut chooser, 1000, 50_000);
    assert!(seen[999] > seen[998] && seen[998] > seen[900], "{} {} {}", seen[999], seen[998], seen[900]);
    assert!(seen[990..].iter().sum::<usize>() > 15_000);
}

#[test]
fn the_formula_for_many_items_continues_the_sum() {
    for theta in [0.2, 0.5, 0.99] {
        let zipf = Zipf::new(3 * SUMMED, theta).unwrap();
        let summed = terms(0, 3 * SUMMED, theta);
        assert!((zipf.zeta - summed).abs() < 1e-9 * summed, "{theta}: {} {summed}", zipf.zeta);
    }
}

#[test]
fn every_count_and_every_number_give_a_rank_within_bounds() {
    for items in [1, 2, 3, 10, 1 << 40] {
        let zipf = Zipf::new(items, 0.99).unwrap();
        for unit in [0.0, 0.1, 0.5, 0.999_999, 1.0 - f64::EPSILON] {
            assert!(zipf.rank(unit) < items, "{items} {unit}");
        }
    }
}

#[test]
fn senseless_plans_are_refused() {
    assert!(Chooser::new(Distribution::Uniform, 0).is_err());
    for theta in [0.0, 1.0, -1.0, f64::NAN] {
        assert!(Chooser::new(Distribution::Zipf { theta }, 10).is_err(), "{theta}");
    }
}

#[test]
fn a_count_that_grows_costs_only_what_is_new_and_ends_at_the_same() {
    for (from, to) in [(2, 5000), (SUMMED - 10, SUMMED + 10)] {
        let mut grown = Zipf::new(from, 0.99).unwrap();
        (from + 1..=to).for_each(|items| grown.resize(items));
        let made = Zipf::new(to, 0.99).unwrap();
        assert!((grown.zeta / made.zeta - 1.0).abs() < 1e-9 && grown.items == made.items, "{grown:?} {made:?}");
    }
}
