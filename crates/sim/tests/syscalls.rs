//! Kills and errors at the N-th system call of writers and of recoveries: see `bifold_sim::syscalls`.

use std::path::Path;

use bifold_sim::{
    report::{over_seeds, scaled},
    syscalls::{SyscallSizes, run},
    trace,
};

/// Few of the calls of each seed; a soak takes more.
const SIZES: SyscallSizes = SyscallSizes { every: 149, recoveries: 2, errors_every: 151 };

#[test]
fn a_kill_or_an_error_at_any_system_call_loses_nothing_acknowledged() {
    if let Err(why) = trace::availability() {
        println!("syscalls: skipped: {why}");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_bifold-sim"));
    // Every placement; with more than three rounds of them also with threads.
    let seeds = scaled(3).max(6);
    let report = over_seeds(0..seeds, |seed| run(program, seed, SIZES));
    let at_least = [("processes killed at a system call", seeds), ("databases compared", seeds * 4)];
    report.finish("syscalls", &at_least);
}
