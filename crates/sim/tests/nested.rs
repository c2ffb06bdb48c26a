//! Crashes in recovery from a crash: see `bifold_sim::nested`.

use bifold_sim::{
    power::run,
    report::{over_seeds, scaled},
    themes::nested_sizes,
};

#[test]
fn crashes_in_recovery_lose_nothing_that_the_first_crash_left() {
    let report = over_seeds(0..scaled(3), |seed| run("nested", seed, nested_sizes(), None));
    report.finish("nested", &[("crashes in recovery", scaled(3) * 10)]);
}
