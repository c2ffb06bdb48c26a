//! Real processes read while another one writes: see `bifold_sim::beside`.

use std::path::Path;

use bifold_sim::{
    beside,
    report::{over_seeds, scaled},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bifold-sim");

#[test]
fn processes_that_read_beside_a_writer_survive_its_end_and_theirs() {
    let seeds = scaled(7);
    let report = over_seeds(0..seeds, |seed| beside::run(Path::new(PROGRAM), seed));
    report.finish("beside", &[("writers killed", seeds * 3), ("readers killed", seeds * 3), ("commits seen", seeds)]);
}

#[test]
fn no_opening_beside_a_writer_fails() {
    let seeds = scaled(7);
    let report = over_seeds(0..seeds, |seed| beside::opens(Path::new(PROGRAM), seed));
    report.finish("opens", &[("opened beside a writer", seeds * 100)]);
}
