//! Power loss in every short history: see `bifold_sim::exhaustive`.

use bifold_sim::{
    exhaustive::{SEQUENCES, run},
    report::{over_seeds, scaled},
};

/// A stride without a common factor with the number of sequences, so that all of them are reached in turn.
const STRIDE: u64 = 2741;

#[test]
fn no_short_history_loses_anything_promised() {
    let sequences = scaled(100).min(SEQUENCES);
    let report = over_seeds(0..sequences, |n| run(n * STRIDE % SEQUENCES, None));
    report.finish("exhaustive", &[("sequences", sequences)]);
}
