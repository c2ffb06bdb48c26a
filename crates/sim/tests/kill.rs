//! Real processes killed on the real disk: see `bifold_sim::kill`.

use std::path::Path;

use bifold_sim::{
    kill::run,
    report::{over_seeds, scaled},
};

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    let program = Path::new(env!("CARGO_BIN_EXE_bifold-sim"));
    let report = over_seeds(0..scaled(8), |seed| run(program, seed));
    // On a busy machine a child may be killed before it has committed anything.
    report.finish("kill", &[("kills", scaled(8) * 8), ("commits fed", scaled(8) / 8)]);
}
