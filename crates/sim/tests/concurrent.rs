//! Real threads, tiny memtables, sums that must not change: see `bifold_sim::concurrent`.

use bifold_sim::{concurrent::run, report::scaled};

#[test]
fn threads_see_whole_batches_and_steady_snapshots() {
    for seed in 0..scaled(4) {
        run(seed, 600).finish("concurrent", &[("transfers", 1800), ("audits", 2), ("keyspaces dropped", 1)]);
    }
}
