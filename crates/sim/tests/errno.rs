//! Every call of the file system fails: see `bifold_sim::errno`.

use bifold_sim::{
    errno::{ErrnoSizes, run, without_names},
    report::{over_seeds, scaled},
};

#[test]
fn a_failing_call_is_reported_and_loses_nothing() {
    let report = over_seeds(0..scaled(8), |seed| run(seed, ErrnoSizes::usual()));
    report.finish("errno", &[("faults injected", scaled(8) * 20)]);
}

/// After a failed sync of the directory and a kill, power is lost while the database is opened.
#[test]
fn a_log_whose_name_a_failed_sync_lost_survives_a_crash_of_the_recovery() {
    let report = over_seeds(0..3, without_names);
    report.finish("errno", &[("faults injected", 30), ("crashes in recovery", 300)]);
}
