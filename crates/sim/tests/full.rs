//! Full disks: see `bifold_sim::full`.

use bifold_sim::{
    full::run,
    report::{over_seeds, scaled},
};

#[test]
fn a_full_disk_loses_nothing_and_can_be_emptied() {
    let seeds = scaled(10);
    let report = over_seeds(0..seeds, run);
    let least = [
        ("disks filled", seeds),
        ("full disks after a kill", seeds / 5),
        ("disks that others have filled", seeds / 5),
        ("deletes there", seeds / 5 * 100),
    ];
    report.finish("full", &least);
}
