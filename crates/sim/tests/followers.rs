//! Readers beside a writer: see `bifold_sim::followers`.

use bifold_sim::{
    followers::run,
    report::{over_seeds, scaled},
};

#[test]
fn a_reader_beside_a_writer_sees_commits_in_order_and_harms_nobody() {
    let seeds = scaled(12);
    let report = over_seeds(0..seeds, run);
    let least = [
        ("states judged", seeds * 60),
        ("with a failing call", seeds * 10),
        ("of them refused", seeds * 3),
        ("readers killed", seeds * 3),
        ("earlier states compared", seeds * 5),
        ("histories with a killed writer", seeds),
        ("opened over a burst", seeds * 5),
        ("refreshed over a burst", seeds * 40),
    ];
    report.finish("followers", &least);
}
