//! Commands on damaged databases, with bounds on memory and time: see `bifold_sim::damaged_program`.

use std::path::Path;

use bifold_sim::{
    damaged_program::{availability, run},
    report::{over_seeds, scaled},
};

/// Times that each database is damaged.
const TIMES: u64 = 8;

#[test]
fn a_damaged_database_takes_no_more_memory_and_every_command_ends_and_says_where() {
    if let Err(why) = availability() {
        println!("skipped: {why}");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_bifold"));
    // Each placement: closed, killed, closed, killed with an append region.
    let report = over_seeds(0..24, |seed| run(program, seed, 0..scaled(TIMES)));
    let at_least = [
        ("closed databases damaged", 12 * scaled(TIMES)),
        ("killed databases damaged", 6 * scaled(TIMES)),
        ("killed databases with an append region damaged", scaled(TIMES)),
        ("commands that named a file", 24 * scaled(TIMES)),
        ("salvaged databases verified", scaled(TIMES)),
    ];
    report.finish("damaged_program", &at_least);
}
