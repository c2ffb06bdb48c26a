//! System calls of the program fail: see `bifold_sim::program`.

use std::path::Path;

use bifold_sim::{
    program::run,
    report::{over_seeds, scaled},
    trace,
};

#[test]
fn a_failing_system_call_is_told_of_and_spoils_nothing() {
    if let Err(why) = trace::availability() {
        println!("skipped: {why}");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_bifold"));
    // Ten commands, each on one placement; one in 41 of the calls of each.
    let report = over_seeds(0..scaled(10), |seed| run(program, seed * 11, 41));
    report.finish("program", &[("system calls of the program made to fail", scaled(10))]);
}
