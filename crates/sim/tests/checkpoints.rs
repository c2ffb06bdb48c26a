//! Checkpoints that fail or are interrupted: see `bifold_sim::checkpoints`.

use bifold_sim::{
    checkpoints::run,
    report::{over_seeds, scaled},
};

#[test]
fn a_checkpoint_is_whole_or_leaves_nothing_and_never_harms_the_database() {
    let seeds = scaled(6);
    let report = over_seeds(0..seeds, run);
    let least = [
        ("checkpoints with a failing call", seeds * 30),
        ("checkpoints that failed", seeds * 25),
        ("power losses in a checkpoint", seeds * 30),
        ("of them with a whole copy", seeds),
    ];
    report.finish("checkpoints", &least);
}
