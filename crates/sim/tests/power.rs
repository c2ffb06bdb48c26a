//! Power loss at every change of the files: see `bifold_sim::power`.

use bifold_sim::{
    power::{PowerSizes, run},
    report::{over_seeds, scaled},
};

#[test]
fn a_power_loss_at_any_moment_leaves_a_prefix_with_all_that_was_promised() {
    let report = over_seeds(0..scaled(16), |seed| run("power", seed, PowerSizes::usual(), None));
    report.finish("power", &[("power-loss images", scaled(16) * 100)]);
}
