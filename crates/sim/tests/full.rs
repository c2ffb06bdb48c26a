//! Full disks: see `bifold_sim::full`.

use bifold_sim::{
    full::run,
    report::{over_seeds, scaled},
};

#[test]
fn a_full_disk_loses_nothing_and_can_be_emptied() {
    let report = over_seeds(0..scaled(10), run);
    report.finish("full", &[("disks filled", scaled(10))]);
}
