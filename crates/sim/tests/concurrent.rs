//! Real threads, tiny memtables, sums that must not change: see `bifold_sim::concurrent`.

use bifold_sim::{concurrent::run, report::scaled};

#[test]
fn threads_see_whole_batches_and_steady_snapshots() {
    for seed in 0..scaled(4) {
        // Changes are kept for odd seeds; where they are, ingests are refused.
        let fed = if seed % 2 == 1 { ("commits fed", 1801) } else { ("keyspaces dropped", 1) };
        run(seed, 600).finish("concurrent", &[("transfers", 1800), ("audits", 2), ("keyspaces dropped", 1), fed]);
    }
}
