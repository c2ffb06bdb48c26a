//! Every call of the file system fails: see `bifold_sim::errno`.

use bifold_sim::{
    errno::{Sizes, run},
    report::{over_seeds, scaled},
};

#[test]
fn a_failing_call_is_told_and_loses_nothing() {
    let report = over_seeds(0..scaled(8), |seed| run(seed, Sizes::usual()));
    report.finish("errno", &[("faults injected", scaled(8) * 20)]);
}
