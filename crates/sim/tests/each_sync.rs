//! Every sync in turn fails, or power is lost during it, while threads are running: see `bifold_sim::each_sync`.

use bifold_sim::{
    each_sync::run,
    report::{over_seeds, scaled},
};

#[test]
fn every_commit_reported_as_durable_is_durable() {
    let seeds = scaled(180);
    let kinds = ["logs", "value files", "tables", "the manifest", "the directory"];
    let counted = kinds.map(|kind| [format!("syncs of {kind} failed"), format!("power losses at syncs of {kind}")]);
    // Each kind gets a fifth of the seeds, half of them for each way, and some syncs are never reached.
    let mut least: Vec<_> = counted.iter().flatten().map(|what| (what.as_str(), seeds / 60)).collect();
    let by_chance = ["runs with flushes at once", "ranges of flushes written by other threads"];
    least.extend(by_chance.map(|what| (what, seeds / 60)));
    let mut report = over_seeds(0..seeds, run);
    // On a busy machine one thread may do everything: then it takes more seeds.
    for more in (seeds..seeds * 20).step_by(seeds as usize) {
        if !report.failures.is_empty() || by_chance.iter().all(|what| report.of(what) >= seeds / 60) {
            break;
        }
        report.merge(over_seeds(more..more + seeds, run));
    }
    report.finish("each_sync", &least);
}
