//! A sync fails while threads wait for it: see `bifold_sim::lost_sync`.

use bifold_sim::{
    lost_sync::run,
    report::{Report, scaled},
};

#[test]
fn no_commit_of_a_failed_sync_is_reported_as_durable() {
    let mut report = Report::default();
    for seed in 0..scaled(60) {
        report.merge(run(seed));
    }
    report.finish(
        "lost_sync",
        &[
            ("syncs of the log made to fail", scaled(60) / 2),
            ("syncs of the manifest made to fail", scaled(60) / 10),
            ("commits fed afterwards", scaled(60) / 10),
            ("ingests", scaled(60) / 10),
        ],
    );
}
