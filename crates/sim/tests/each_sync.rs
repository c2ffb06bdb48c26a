//! Every sync in turn fails, or the power goes at it, beside threads: see `bifold_sim::each_sync`.

use bifold_sim::{
    each_sync::run,
    report::{over_seeds, scaled},
};

#[test]
fn whoever_was_told_that_a_commit_is_durable_was_told_the_truth() {
    let seeds = scaled(180);
    let kinds = ["logs", "value files", "tables", "the manifest", "the directory"];
    let counted = kinds.map(|kind| [format!("syncs of {kind} failed"), format!("power losses at syncs of {kind}")]);
    // A fifth of the seeds for each kind, half of them for each way, and some syncs are never reached.
    let least: Vec<_> = counted.iter().flatten().map(|what| (what.as_str(), seeds / 60)).collect();
    over_seeds(0..seeds, run).finish("each_sync", &least);
}
