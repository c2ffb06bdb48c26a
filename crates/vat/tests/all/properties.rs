//! What holds for all inputs: the closed form is the minimum, and costs rise and fall where the paper says so.

use bifold_vat::{Compaction, Design, Growth, KeyShare, Levels, Throughput, Tree};
use proptest::prelude::*;

use super::{in_place, leveling, per_table, size, tree_of};

/// Any compaction that merges with a lower level.
fn merging() -> impl Strategy<Value = Compaction> {
    // Most of what is worth testing is at small α: six orders of magnitude, evenly distributed.
    (0.0..6.0_f64, any::<bool>()).prop_map(|(orders, whole)| {
        let alpha = 10_f64.powf(-orders);
        if whole { leveling(alpha) } else { per_table(alpha) }
    })
}

fn compaction() -> impl Strategy<Value = Compaction> {
    prop_oneof![4 => merging(), 1 => Just(leveling(0.0)), 1 => Just(Compaction::Tiering)]
}

/// N from just above 1 to 10¹⁵.
fn ratio() -> impl Strategy<Value = f64> {
    (0.001..15.0_f64).prop_map(|exponent| 10_f64.powf(exponent).min(1e15))
}

/// D / Sₗ of a tree of this size and growth factor; its levels need not be whole.
fn at_growth(design: Design, ratio: f64, growth: f64) -> f64 {
    design.amplification(Tree::with_growth(size(ratio), Growth::new(growth).unwrap()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// App. A.3, B.1: the closed form with Lambert's W, compared with a search that does not use it.
    #[test]
    fn the_closed_form_is_where_the_search_finds_the_minimum(compaction in merging()) {
        let (closed, found) = (compaction.best_growth(), compaction.best_growth_by_search());
        prop_assert!((closed / found - 1.0).abs() < 1e-6, "{closed} and {found}");
    }

    /// §6: the best growth factor does not depend on the size.
    #[test]
    fn no_other_growth_moves_less(compaction in merging(), ratio in ratio(), factor in 0.2..5.0_f64) {
        let best = compaction.best_growth();
        let other = best * factor;
        prop_assume!(best <= ratio && other > 1.0 && other <= ratio);
        let design = in_place(compaction);
        prop_assert!(at_growth(design, ratio, best) <= at_growth(design, ratio, other) * (1.0 + 1e-12));
    }

    /// The best whole number of levels, compared with all others.
    #[test]
    fn no_other_number_of_levels_moves_less(compaction in compaction(), ratio in ratio()) {
        let design = in_place(compaction);
        let best = design.optimum(size(ratio));
        for levels in 1..=100 {
            let other = design.amplification(tree_of(ratio, levels));
            prop_assert!(best.amplification <= other * (1.0 + 1e-12), "{best:?}, but {levels} levels: {other}");
        }
    }

    /// §6, Eq. 14: as α goes to 0, one level is best. That holds once f* exceeds the size, and the limit is one byte
    /// per byte.
    #[test]
    fn without_merge_traffic_one_level_is_best(ratio in ratio()) {
        for compaction in [leveling(0.0), per_table(0.0), Compaction::Tiering] {
            let best = in_place(compaction).optimum(size(ratio));
            prop_assert_eq!((best.levels.get(), best.amplification), (1, 1.0));
            prop_assert_eq!(compaction.best_growth(), f64::INFINITY);
        }
        let hardly_any = 0.01 / ratio;
        let best = in_place(leveling(hardly_any)).optimum(size(ratio));
        prop_assert_eq!(best.levels.get(), 1);
        prop_assert!((best.amplification - 1.0).abs() < 0.011);
    }

    /// §6: "as α decreases […] the optimal number of levels […] decreases as well", and minimum amplification drops.
    #[test]
    fn less_merge_traffic_means_fewer_levels_and_less_traffic(
        a in 0.0..=1.0_f64, b in 0.0..=1.0_f64, ratio in ratio(),
    ) {
        let (low, high) = (leveling(a.min(b)), leveling(a.max(b)));
        let (fewer, more) = (in_place(low).optimum(size(ratio)), in_place(high).optimum(size(ratio)));
        prop_assert!(fewer.levels <= more.levels);
        prop_assert!(fewer.amplification <= more.amplification * (1.0 + 1e-12));
        prop_assert!(low.best_growth() >= high.best_growth());
    }

    /// §6: "as data grows, […] we have to increase the number of levels, as opposed to increasing their relative size".
    #[test]
    fn more_data_means_more_levels(compaction in compaction(), a in ratio(), b in ratio()) {
        let optimum = |ratio| in_place(compaction).optimum(size(ratio));
        let (small, large) = (optimum(a.min(b)), optimum(a.max(b)));
        prop_assert!(small.levels <= large.levels && small.amplification <= large.amplification * (1.0 + 1e-12));
    }

    /// §6: the curve is steeper to the left of the best number of levels, so it is better to err towards more levels.
    #[test]
    fn too_many_levels_cost_less_than_too_few(compaction in merging(), ratio in ratio(), off in 0.01..0.9_f64) {
        let best = compaction.best_levels(size(ratio));
        let off = off * (best - 1.0);
        prop_assume!(off > 1e-3);
        let at = |levels: f64| at_growth(in_place(compaction), ratio, ratio.powf(levels.recip()));
        prop_assert!(at(best - off) >= at(best + off) * (1.0 - 1e-12));
    }

    /// §3.3, §6: tiering always moves fewer bytes than leveling with the same tree, and fewer with a larger growth
    /// factor.
    #[test]
    fn tiering_moves_less_than_leveling_and_less_with_more_growth(
        alpha in 0.0..=1.0_f64, ratio in ratio(), levels in 1..50_u32,
    ) {
        let (tiering, tree) = (in_place(Compaction::Tiering), tree_of(ratio, levels));
        prop_assert!(tiering.amplification(tree) <= in_place(leveling(alpha)).amplification(tree));
        prop_assert!(tiering.amplification(tree) <= tiering.amplification(tree_of(ratio, levels + 1)));
    }

    /// §5: merging table by table never moves less than merging whole levels.
    #[test]
    fn merging_by_table_moves_more(alpha in 0.0..=1.0_f64, ratio in ratio(), levels in 1..50_u32) {
        let tree = tree_of(ratio, levels);
        prop_assert!(in_place(per_table(alpha)).amplification(tree) >= in_place(leveling(alpha)).amplification(tree));
    }

    /// §6: the smaller the keys, the more a log gains; it loses once the levels move no more than 1/(1 − p).
    #[test]
    fn a_log_gains_more_with_smaller_keys(
        compaction in compaction(), ratio in ratio(), levels in 1..20_u32, a in 1e-6..1.0_f64, b in 1e-6..1.0_f64,
    ) {
        let (design, tree) = (in_place(compaction), tree_of(ratio, levels));
        let with = |p| design.with_log(KeyShare::new(p).unwrap()).amplification(tree);
        prop_assert!(with(a.min(b)) <= with(a.max(b)));
        let in_place = design.amplification(tree);
        prop_assert_eq!(with(a) > in_place, a * in_place + 1.0 > in_place);
    }

    /// §3.2: lower throughput costs more time and moves the same bytes; neither it nor a log moves the optimum.
    #[test]
    fn throughput_and_a_log_leave_the_best_levels_alone(
        compaction in compaction(), ratio in ratio(), beta in 1e-3..1.0_f64, p in 1e-6..1.0_f64,
    ) {
        let design = in_place(compaction);
        let other = design.with_throughput(Throughput::new(beta).unwrap()).with_log(KeyShare::new(p).unwrap());
        let (best, with_log) = (design.optimum(size(ratio)), other.optimum(size(ratio)));
        let tree = tree_of(ratio, best.levels.get());
        prop_assert!(design.with_throughput(Throughput::new(beta).unwrap()).cost_ratio(tree) >= best.amplification);
        // Where two numbers of levels are equally good, rounding may choose either.
        let at_best = other.amplification(tree);
        prop_assert!(with_log.levels == best.levels || (at_best / with_log.amplification - 1.0).abs() < 1e-9);
    }

    /// §6: a larger growth factor takes less space.
    #[test]
    fn more_growth_takes_less_space(ratio in ratio(), levels in 1..99_u32) {
        let design = in_place(leveling(1.0));
        let (fast, slow) = (tree_of(ratio, levels), tree_of(ratio, levels + 1));
        prop_assert!(design.space_amplification(fast) <= design.space_amplification(slow));
    }

    /// Every figure is a number, whatever the input.
    #[test]
    fn all_figures_are_finite(
        compaction in compaction(), levels in 1..=100_u32, growth in 1.0..1e15_f64, p in 1e-300..1.0_f64,
    ) {
        let growth = Growth::new(growth.powf(1.0 / f64::from(levels)).max(1.0 + f64::EPSILON)).unwrap();
        // A power of a root may come out a little above the limit.
        let Ok(tree) = Tree::new(Levels::new(levels).unwrap(), growth) else { return Ok(()) };
        let design = in_place(compaction).with_throughput(Throughput::new(1e-9).unwrap());
        for design in [design, design.with_log(KeyShare::new(p).unwrap())] {
            let best = design.optimum(tree.size_ratio());
            for figure in [
                design.amplification(tree), design.write_amplification(tree), design.cost_ratio(tree),
                design.space_amplification(tree), best.growth, best.amplification,
            ] {
                prop_assert!(figure.is_finite() && figure > 0.0, "{figure}");
            }
            prop_assert!(design.write_amplification(tree) <= design.amplification(tree) * (1.0 + 1e-12));
        }
    }
}
