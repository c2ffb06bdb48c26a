//! Comparisons: Bifold's placements and the stores that this program was built with, on the same work with the same
//! budget.

use serde::{Deserialize, Serialize};

use super::{
    Experiment, Maker, Paper, View,
    check::{Check, Rule},
    data::{CPU_US, DIR_BYTES, MEMORY, P99_US, RATE, WRITTEN},
    setup::{KOPS, LIKE_LEVELDB, MIB, Setup, US, plan_of, steps, zipf},
};
use crate::{Plan, Scale, Workload, given::Input, store::Peer, values::Sizes};

/// Every one of them.
pub(super) const ALL: &[Maker] = &[rivals];

/// Bifold's placements, and its LSM-tree set up as LevelDB is.
const PLACEMENTS: [&str; 8] = ["inline", "wisckey", "hashkv", "novkv", "diffkv", "unikv", "streams", LIKE_LEVELDB];

/// The stores and workloads of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Placements of Bifold, or [`LIKE_LEVELDB`].
    pub placements: Vec<String>,
    /// Other stores.
    pub peers: Vec<String>,
    /// The workloads, in their order.
    pub workloads: Vec<Workload>,
    /// The sizes of values.
    pub sizes: Sizes,
    /// Threads that call the store.
    pub threads: usize,
    /// Further options, for all stores, as `name=value` words.
    pub set: Vec<String>,
}

impl Default for Comparison {
    fn default() -> Self {
        use Workload::{Load, Mix, Read, Scan, Settle, Update};
        Self {
            placements: PLACEMENTS.map(str::to_owned).into(),
            peers: Peer::ALL.into_iter().filter(|peer| peer.is_compared()).map(|peer| peer.name().to_owned()).collect(),
            workloads: vec![Load, Update, Settle, Read, Scan, Mix],
            sizes: Sizes::Fixed(1000),
            threads: 1,
            set: Vec::new(),
        }
    }
}

impl Comparison {
    /// The command that makes its runs, but for what the whole results directory shares.
    #[must_use]
    pub fn command(&self) -> String {
        let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(",") };
        let workloads: Vec<&str> = self.workloads.iter().map(|workload| workload.name()).collect();
        let sizes = match self.sizes {
            Sizes::Fixed(bytes) => bytes.to_string(),
            _ => "pareto".to_owned(),
        };
        let set = self.set.iter().map(|word| format!(" --set {word}"));
        format!(
            "bifold lab compare --placements {} --peers {} --workloads {} --value-size {sizes} --threads {}{}",
            list(&self.placements),
            list(&self.peers),
            workloads.join(","),
            self.threads,
            set.collect::<String>(),
        )
    }

    /// The comparison as an experiment, without claims.
    #[must_use]
    pub fn experiment(&self, scale: Scale, seed: u64) -> Experiment {
        let setups = self.placements.iter().map(|placement| match placement.as_str() {
            LIKE_LEVELDB => Setup::like_leveldb(scale),
            _ => Setup::bifold(scale, placement),
        });
        let setups = setups.chain(self.peers.iter().map(|peer| Setup::peer(scale, peer)));
        let mean = match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            _ => 1000,
        };
        let plan = Plan { threads: self.threads, ..plan_of(scale.data_bytes(), self.sizes, mean, seed) };
        let steps = steps(&self.workloads);
        let arm = |setup: Setup| self.set.iter().fold(setup, Setup::set).arm(&plan, &steps);
        Experiment {
            name: "compare",
            paper: Paper::Bifold,
            place: "comparison",
            title: "Stores compared",
            note: "",
            arms: setups.map(arm).collect(),
            views: self.views(),
            checks: Vec::new(),
        }
    }

    fn views(&self) -> Vec<View> {
        let all: Vec<&'static str> = self.workloads.iter().map(|workload| workload.name()).collect();
        // What becomes of each operation says nothing of a step that is one, and as long as it takes.
        let of_many = self.workloads.iter().filter(|workload| !workload.is_background());
        let of_many: Vec<&'static str> = of_many.map(|workload| workload.name()).collect();
        let mut views = Vec::new();
        if !of_many.is_empty() {
            views.extend([
                View::bars("Throughput", RATE, KOPS, &of_many),
                View::bars("99th percentile", P99_US, US, &of_many),
                View::bars("Processor time of an operation", CPU_US, US, &of_many),
            ]);
        }
        views.extend([
            View::bars("Bytes written", WRITTEN, MIB, &all),
            View::bars("Size of the store", DIR_BYTES, MIB, &all),
            View::bars("Peak memory", MEMORY, MIB, &all),
        ]);
        views
    }
}

/// The same with keys and values of a user's own: an import in the input's order, as many skewed updates as there are
/// keys, reads and scans.
#[must_use]
pub fn real(input: &Input, scale: Scale, seed: u64) -> Experiment {
    let mut experiment = Comparison::default().experiment(scale, seed);
    for arm in &mut experiment.arms {
        arm.spec.input = Some(input.clone());
        arm.spec.plan = Plan { keys: input.entries, reads: zipf(0.99), seed, ..Plan::default() };
    }
    Experiment {
        name: "real",
        title: "A user's own keys and values",
        note: "Updates write the values of other keys of the input, so sizes and contents are real. Each store's \
        process has the input in memory, which counts in its peak.",
        ..experiment
    }
}

/// Our own claim: whoever comes here should find no reason to take another store.
fn rivals(scale: Scale, seed: u64) -> Experiment {
    let comparison = Comparison::default();
    let check = |step: &'static str| {
        let placements = comparison.placements.clone();
        let ours =
            move |d: &super::Data<'_>| placements.iter().filter_map(|name| d.of(name, step, RATE)).reduce(f64::max);
        // One that was not run may be the fastest: without it nothing is known.
        let peers = comparison.peers.clone();
        let theirs = move |d: &super::Data<'_>| {
            let rates: Option<Vec<f64>> = peers.iter().map(|name| d.of(name, step, RATE)).collect();
            rates?.into_iter().reduce(f64::max)
        };
        let what = format!("{step}, the best placement over the best peer");
        Check::new(what, "ours: faster than every peer", Rule::AtLeast(1.0), move |d| Some(ours(d)? / theirs(d)?))
    };
    let checks = ["load", "update", "read", "scan", "mix"].into_iter().map(check).collect();
    let compared = comparison.experiment(scale, seed);
    let of_device = [View::of_device(&["load", "update", "read", "mix"]), View::of_device_scans("scan")];
    Experiment {
        name: "rivals",
        place: "README",
        title: "Bifold's placements compared with other stores",
        note: "The other stores are those that this program was built with.",
        checks,
        views: compared.views.into_iter().chain(of_device.into_iter().flatten()).collect(),
        ..compared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::view::Over;

    /// The steps of each chart.
    fn steps(workloads: &[Workload]) -> Vec<(String, Vec<&'static str>)> {
        let comparison = Comparison { workloads: workloads.to_vec(), ..Comparison::default() };
        let of = |view: View| match view.over {
            Over::Steps(steps) => (view.title, steps),
            other => panic!("{other:?}"),
        };
        comparison.experiment(Scale::Tiny, 1).views.into_iter().map(of).collect()
    }

    #[test]
    fn steps_of_one_operation_have_no_rates_but_bytes() {
        use Workload::{Compact, Load, Settle};
        for (title, steps) in steps(&[Load, Settle, Compact]) {
            let expected: &[&str] = match title.as_str() {
                "Bytes written" | "Size of the store" | "Peak memory" => &["load", "settle", "compact"],
                _ => &["load"],
            };
            assert_eq!(steps, expected, "{title}");
        }
        assert_eq!(steps(&[Settle]).len(), 3);
    }
}
