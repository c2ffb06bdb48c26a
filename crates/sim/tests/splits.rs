//! Power loss at every I/O of splits and GC of partitions: see `bifold_sim::splits`.

use bifold_sim::{
    report::{over_seeds, scaled},
    splits::run,
};

#[test]
fn no_split_and_no_gc_loses_anything_promised() {
    let seeds = scaled(2);
    let report = over_seeds(0..seeds, |seed| run(seed, None));
    report.finish("splits", &[("splits", seeds * 3), ("collections", seeds * 3), ("power-loss images", seeds * 500)]);
}
