//! Backups that fail or are interrupted: see `bifold_sim::backups`.

use bifold_sim::{
    backups::run,
    report::{over_seeds, scaled},
};

#[test]
fn a_backup_is_whole_or_absent_and_never_harms_older_ones_or_the_database() {
    let seeds = scaled(3);
    let report = over_seeds(0..seeds, run);
    let least = [
        ("backups, prunings and restorations with a failing call", seeds * 30),
        ("of them that failed", seeds * 25),
        ("power losses meanwhile", seeds * 30),
        ("of them with a whole new generation", seeds),
    ];
    report.finish("backups", &least);
}
