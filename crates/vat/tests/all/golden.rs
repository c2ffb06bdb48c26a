//! Every figure of the paper's text, compared with ours. Where a figure needs a size, N = 1000 is the one that
//! matches all of them; the text does not name it.

use bifold_vat::{Compaction, Growth, KeyShare, Throughput, Tree};

use super::{in_place, leveling, per_table, size, tree, tree_of};

/// Asserts that two figures agree to the digits that are written down.
#[track_caller]
fn about(ours: f64, theirs: f64, tolerance: f64) {
    assert!((ours - theirs).abs() <= tolerance, "ours is {ours}, not {theirs} within {tolerance}");
}

/// §6: "minimum amplification drops from about 25x […] when α decreases from 1.0". Five levels of growth 4 hold 1024
/// times what memory holds: 2·5 − 1 + 5·3 = 24. At exactly N = 1000 growth is 3.98 and amplification 23.9.
#[test]
fn leveling_moves_24_bytes_a_byte_at_its_best() {
    assert_eq!(in_place(leveling(1.0)).amplification(tree(5, 4.0)), 24.0);
    let best = in_place(leveling(1.0)).optimum(size(1000.0));
    assert_eq!(best.levels.get(), 5);
    about(best.growth, 3.98, 0.005);
    about(best.amplification, 23.9, 0.05);
}

/// §6: "[…] to less than 10x, when α decreases […] to 0.1". Three levels of growth 10: 2·3 − 1 + 0.1·3·9 = 7.7.
#[test]
fn a_tenth_of_the_merge_traffic_leaves_7_7_bytes_a_byte() {
    let best = in_place(leveling(0.1)).optimum(size(1000.0));
    assert_eq!(best.levels.get(), 3);
    about(best.growth, 10.0, 1e-9);
    about(best.amplification, 7.7, 1e-9);
}

/// §6: "increasing f from 4 (close to optimal) to 10 makes amplification in the insert-path worse by about 1.33x":
/// three levels of growth 10 move 2·3 − 1 + 3·9 = 32 bytes, and 32 / 24 = 1.333. With N = 1000 on both sides, so that
/// l is 4.98 at f = 4, it is 1.338.
#[test]
fn growth_10_costs_1_33_times_what_growth_4_costs() {
    let design = in_place(leveling(1.0));
    about(design.amplification(tree(3, 10.0)) / design.amplification(tree(5, 4.0)), 1.333, 0.001);
    let at = |growth| Tree::with_growth(size(1000.0), Growth::new(growth).unwrap()).unwrap();
    about(design.amplification(at(10.0)) / design.amplification(at(4.0)), 1.338, 0.001);
}

/// App. B.1, Eq. 24: f* by Lambert's W, 1/W(1/e) = 3.59 at α = 1, which §6 calls close to 4.
///
/// The text has lost the number itself. It says of a lost term, by its reference a value of W, that it "is about
/// 0.5", but W(1/e) is 0.278; with 0.5, f* would be 2. We keep 3.59: the search for the minimum, which needs no W,
/// finds it too.
#[test]
fn the_best_growth_is_3_59() {
    about(leveling(1.0).best_growth(), 3.591, 0.0005);
    about(leveling(1.0).best_growth_by_search(), 3.591, 0.0005);
    // Doubling both slope and base leaves the minimum where it is.
    about(per_table(1.0).best_growth(), 3.591, 0.0005);
}

/// §9: "key-value separation decreases amplification down to 1.2x compared to in-place values which incurs 20x": at
/// p = 0.01 the 24 bytes of the levels become 0.24, and the log takes 1.
#[test]
fn a_log_at_one_percent_of_keys_costs_1_24() {
    let with_log = in_place(leveling(1.0)).with_log(KeyShare::new(0.01).unwrap());
    about(with_log.cost_ratio(tree(5, 4.0)), 1.24, 1e-12);
}

/// §6: for key shares up to 1 % "the benefit is more than 10x". That holds for α of Table 1 (0.25 to 0.8); at α = 0.1
/// it is 7.1. The text has lost the bound on α in this sentence.
#[test]
fn a_log_gains_more_than_10_times_at_one_percent_of_keys() {
    let gain = |alpha| {
        let design = in_place(leveling(alpha));
        let best = design.optimum(size(1000.0));
        let tree = tree_of(1000.0, best.levels.get());
        best.amplification / design.with_log(KeyShare::new(0.01).unwrap()).amplification(tree)
    };
    assert!(gain(1.0) > 10.0 && gain(0.8) > 10.0 && gain(0.68) > 10.0 && gain(0.25) > 10.0);
    about(gain(0.1), 7.1, 0.05);
}

/// §6 and §9: tiering at f = 10, "the point of diminishing returns", moves 2·3 − 1 = 5 bytes a byte, and "reduces
/// amplification 5x compared to leveling": 24 / 5 = 4.8.
#[test]
fn tiering_at_growth_10_moves_5_bytes_a_byte() {
    assert_eq!(in_place(Compaction::Tiering).amplification(tree(3, 10.0)), 5.0);
    let leveled = in_place(leveling(1.0)).amplification(tree(5, 4.0));
    about(leveled / in_place(Compaction::Tiering).amplification(tree(3, 10.0)), 4.8, 1e-12);
}

/// §6, Eq. 14: with α = 0 one level is best. Eq. 15: the gain of a log is then 1/(p + 1), which is a loss.
#[test]
fn with_no_merge_traffic_one_level_is_best_and_a_log_loses() {
    let design = in_place(leveling(0.0));
    let best = design.optimum(size(1000.0));
    assert_eq!((best.levels.get(), best.amplification), (1, 1.0));
    let p = KeyShare::new(0.25).unwrap();
    let gain = best.amplification / design.with_log(p).amplification(tree_of(1000.0, 1));
    about(gain, 1.0 / (0.25 + 1.0), 1e-12);
    assert!(gain < 1.0);
}

/// §6: f = 4 "results in space amplification larger than 25 %", f = 10 in "about 10 %".
///
/// 1/(f − 1) gives 33 % and 11 %. The next sentence of the paper has "from 25% down to 10%", by 2.5x: these are 1/f,
/// the last intermediate level alone. All of them together are 1/f + 1/f² + … = 1/(f − 1), and improve by 3.0x.
#[test]
fn intermediate_levels_take_33_percent_at_growth_4_and_11_at_10() {
    let space = |levels, growth| in_place(leveling(1.0)).space_amplification(tree(levels, growth));
    about(space(5, 4.0), 0.333, 0.001);
    about(space(3, 10.0), 0.111, 0.001);
    about(space(5, 4.0) / space(3, 10.0), 3.0, 1e-9);
    // With a log the levels are extra space: all of them, but only their keys.
    let with_log = in_place(leveling(1.0)).with_log(KeyShare::new(0.01).unwrap());
    about(with_log.space_amplification(tree(5, 4.0)), 0.01 * 4.0 / 3.0, 1e-12);
}

/// §5, Eq. 13: tables merged one at a time are merged with a lower level that is nearly full: 2·5 − 1 + 2·5·4 = 49.
/// The paper says of this form only that it "tracks RocksDB behavior even closer"; with α = 0.68 of Table 1 it is
/// 36.2.
#[test]
fn merging_tables_one_at_a_time_costs_about_twice() {
    assert_eq!(in_place(per_table(1.0)).amplification(tree(5, 4.0)), 49.0);
    about(in_place(per_table(0.68)).amplification(tree(5, 4.0)), 36.2, 1e-9);
}

/// §3.3, Eq. 2: half the throughput, twice the time.
#[test]
fn the_cost_is_the_amplification_over_the_achieved_throughput() {
    let kreon = in_place(leveling(0.25)).with_throughput(Throughput::new(0.91).unwrap());
    let at = tree(3, 10.0);
    about(kreon.cost_ratio(at), kreon.amplification(at) / 0.91, 1e-12);
}

/// §3.1: all levels except memory are read as often as written: of 24 bytes moved, 12.5 are written and 11.5 read.
#[test]
fn the_part_that_is_written_is_half_and_what_memory_saves() {
    about(in_place(leveling(1.0)).write_amplification(tree(5, 4.0)), 12.5, 1e-12);
}
