//! One seed, one trace: see `bifold_sim::determinism`.

use bifold_sim::{
    determinism::run,
    report::{over_seeds, scaled},
};

#[test]
fn the_same_seed_does_the_same_to_every_file() {
    let report = over_seeds(0..scaled(20), run);
    report.finish("determinism", &[("seeds run twice", scaled(20))]);
}
