//! A run as data: the store, its options, the plan and the steps. A spec decides everything that a run does, so a
//! result with its spec can be reproduced, and two experiments that need the same run share it.

use bifold::Options;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Failure, Plan, Result, Workload, given::Input, plan::Changes};

/// Everything that decides what a run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// `bifold` or the name of a peer.
    pub store: String,
    /// Options as TOML, from a user's file, over the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toml: Option<String>,
    /// Options as `name=value` words, set in this order over those. Peers get their budgets from the same
    /// options.
    pub set: Vec<String>,
    /// Keys, values and how they are chosen.
    pub plan: Plan,
    /// Keys and values of a user's own in place of the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
    /// What is done, one after the other.
    pub steps: Vec<Step>,
    /// What the system's page cache holds when a step that only reads begins.
    pub page_cache: PageCache,
    /// The most memory the store's process may take, the page cache of its files included, in bytes; unset: all there
    /// is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_memory: Option<u64>,
}

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name in tables: unique within the run.
    pub name: String,
    /// What is done.
    pub act: Act,
    /// What is otherwise than in the plan.
    #[serde(default, skip_serializing_if = "is_default")]
    pub changes: Changes,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// A workload.
    Run(Workload),
    /// The device alone, by random reads of 4 KiB past the page cache from the store's files, with as many threads and
    /// reads as the plan has.
    Device,
    /// The process ends without closing the store, as a killed one does, and another one opens it: how long that takes.
    Recover,
}

impl Act {
    /// Whether its rate means anything: it has many operations, and somebody waits for them.
    #[must_use]
    pub fn has_rate(self) -> bool {
        matches!(self, Self::Run(workload) if !workload.is_background())
    }
}

/// What the system's page cache holds when a step that only reads begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageCache {
    /// Whatever the steps before left there.
    #[default]
    Warm,
    /// Nothing of the store's files: they are synced and dropped from it.
    Cold,
}

fn is_default(changes: &Changes) -> bool {
    *changes == Changes::default()
}

/// Steps that were renamed, by their present names and by those that keys and stored results contain.
const STEP_NAMES_IN_KEYS: [(&str, &str); 4] = [
    ("20 entries", "20 pairs"),
    ("100 entries", "100 pairs"),
    ("1000 entries", "1000 pairs"),
    ("10 000 entries", "10 000 pairs"),
];

/// The name that a step has in keys and in the results of older versions.
#[must_use]
pub fn step_in_keys(name: &str) -> &str {
    STEP_NAMES_IN_KEYS.iter().find(|(now, _)| *now == name).map_or(name, |(_, then)| then)
}

/// Options that were renamed, by their present names and by those that keys contain. A key must not change when an
/// option is renamed: results that were stored before would belong to no experiment.
const NAMES_IN_KEYS: [(&str, &str); 13] = [
    ("keyspace.compaction.leveled.size_ratio", "keyspace.compaction.leveled.growth"),
    ("keyspace.compaction.tiered.size_ratio", "keyspace.compaction.tiered.growth"),
    ("keyspace.values.separate_from_bytes", "keyspace.values.min_bytes"),
    ("keyspace.values.hashkv.victim", "keyspace.values.victim"),
    ("keyspace.values.hashkv.cold", "keyspace.values.cold"),
    ("keyspace.values.hashkv.group_bytes", "keyspace.values.group_bytes"),
    ("keyspace.values.hashkv.groups_max", "keyspace.values.groups_max"),
    ("keyspace.values.novkv.gc_threshold", "keyspace.values.gc_threshold"),
    ("keyspace.values.diffkv.gc_threshold", "keyspace.values.gc_threshold"),
    ("keyspace.values.unikv.gc_threshold", "keyspace.values.gc_threshold"),
    ("keyspace.values.diffkv.large_bytes", "keyspace.values.large_bytes"),
    ("keyspace.values.diffkv.merge", "keyspace.values.merge"),
    ("keyspace.values.diffkv.max_sorted_run", "keyspace.values.max_sorted_run"),
];

/// Options that do something else than they did when results were stored, by the names in keys of then and of now.
/// What was measured with the option of then belongs to no experiment of today: `greedy_random` draws each group of a
/// run of GC anew.
const CHANGED_IN_KEYS: [(&str, &str); 1] =
    [("keyspace.values.victim.greedy_random", "keyspace.values.victim.greedy_random_each")];

/// A `name=value` word with the name that keys contain.
fn word_in_keys(word: &str) -> String {
    let renamed = |word: &str, names: &[(&str, &str)]| {
        names.iter().find_map(|(now, then)| {
            let rest = word.strip_prefix(now).filter(|rest| rest.starts_with(['=', '.']))?;
            Some(format!("{then}{rest}"))
        })
    };
    let word = renamed(word, &NAMES_IN_KEYS).unwrap_or_else(|| word.to_owned());
    renamed(&word, &CHANGED_IN_KEYS).unwrap_or(word)
}

impl Spec {
    /// Identifies the spec: equal for equal specs, different for different ones. Old and new names of an option give
    /// the same key.
    #[must_use]
    pub fn key(&self) -> String {
        let mut named = Self { set: self.set.iter().map(|word| word_in_keys(word)).collect(), ..self.clone() };
        for step in &mut named.steps {
            step.name = step_in_keys(&step.name).to_owned();
        }
        // A struct of numbers, words and lists always becomes JSON.
        format!("{:016x}", xxh3_64(serde_json::to_string(&named).unwrap_or_default().as_bytes()))
    }

    /// The options it says.
    ///
    /// # Errors
    /// [`Failure::Plan`] for options there are not.
    pub fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        if let Some(text) = &self.toml {
            options.set_toml(text).map_err(|error| Failure::Plan(error.to_string()))?;
        }
        for word in &self.set {
            options.set(word).map_err(|error| Failure::Plan(error.to_string()))?;
        }
        Ok(options)
    }

    /// Operations of a step, for those who wait for it.
    #[must_use]
    pub fn operations(&self, step: &Step) -> u64 {
        match step.act {
            Act::Run(workload) => workload.operations(&step.changes.apply(&self.plan)),
            Act::Device => {
                let plan = step.changes.apply(&self.plan);
                plan.operations.unwrap_or(plan.keys)
            }
            Act::Recover => 1,
        }
    }
}

impl Step {
    /// A step that does `workload` as the plan has it.
    #[must_use]
    pub fn new(name: &str, workload: Workload) -> Self {
        Self { name: name.to_owned(), act: Act::Run(workload), changes: Changes::default() }
    }

    /// The same step with changes.
    #[must_use]
    pub fn with(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// Whether it writes nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        use Workload::{Missing, Read, Scan, ScanBack, YcsbC};
        matches!(self.act, Act::Run(Missing | Read | Scan | ScanBack | YcsbC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{
        NAMES,
        Operation::{Insert, ReadModifyWrite, Update},
    };

    fn spec() -> Spec {
        Spec {
            store: "bifold".to_owned(),
            toml: None,
            set: vec!["keyspace.preset=hashkv".to_owned()],
            plan: Plan::default(),
            input: None,
            steps: vec![
                Step::new("P0", Workload::Load),
                Step::new("scan", Workload::Scan).with(Changes { scan_len: Some(5), ..Changes::default() }),
                Step { name: "reopen".to_owned(), act: Act::Recover, changes: Changes::default() },
            ],
            page_cache: PageCache::Warm,
            process_memory: None,
        }
    }

    #[test]
    fn steps_that_only_read_are_those_without_an_operation_that_writes() {
        for (name, workload) in NAMES {
            let mix = workload.mix(&Plan::default());
            let reads = |operation| !matches!(operation, Insert | Update | ReadModifyWrite);
            let only_reads = mix.is_some_and(|mix| reads(mix.first.0) && reads(mix.rest));
            assert_eq!(Step::new(name, workload).only_reads(), only_reads, "{name}");
        }
    }

    #[test]
    fn a_spec_survives_json_and_keeps_its_key() {
        let json = serde_json::to_string(&spec()).unwrap();
        let back: Spec = serde_json::from_str(&json).unwrap();
        assert_eq!((back.key(), &back), (spec().key(), &spec()));
        let other = Spec { plan: Plan { seed: 2, ..Plan::default() }, ..spec() };
        assert_ne!(other.key(), spec().key());
    }

    #[test]
    fn a_renamed_option_keeps_the_key() {
        let with = |word: &str| Spec { set: vec![word.to_owned()], ..spec() }.key();
        for (now, then) in NAMES_IN_KEYS {
            let renamed = Options::renamed_word(&format!("{then}=1")).unwrap();
            assert!(renamed.new.iter().any(|new| new == now), "{renamed}");
            assert_eq!(with(&format!("{now}=1")), with(&format!("{then}=1")));
            assert_ne!(with(&format!("{now}=1")), with(&format!("{now}=2")));
        }
    }

    #[test]
    fn an_option_that_does_something_else_has_another_key() {
        let with = |word: &str| Spec { set: vec![word.to_owned()], ..spec() }.key();
        let key_of_then = |spec: &Spec| format!("{:016x}", xxh3_64(serde_json::to_string(spec).unwrap().as_bytes()));
        for (then, _) in CHANGED_IN_KEYS {
            let word = format!("{then}=5");
            assert_ne!(with(&word), key_of_then(&Spec { set: vec![word.clone()], ..spec() }));
            let renamed = Options::renamed_word(&word).unwrap();
            assert!(renamed.new.iter().all(|now| with(&format!("{now}=5")) == with(&word)), "{renamed}");
        }
        let spec = Spec { set: vec!["keyspace.values.victim=greedy".to_owned()], ..spec() };
        assert_eq!(spec.key(), key_of_then(&spec));
    }

    #[test]
    fn words_override_a_file() {
        let toml = Some("cache_bytes = 1\n[keyspace]\ncompression = \"lz4\"\n".to_owned());
        let with = Spec { toml, set: vec!["cache_bytes=2".to_owned()], ..spec() }.options().unwrap();
        let compression = bifold::Compression::Lz4;
        assert_eq!((with.cache_bytes, with.keyspace.compression), (Some(2), compression));
    }

    #[test]
    fn unknown_options_are_named() {
        let wrong = Spec { set: vec!["keyspace.no_such=1".to_owned()], ..spec() };
        assert!(wrong.options().unwrap_err().to_string().contains("no_such"));
    }

    #[test]
    fn a_step_has_the_operations_of_its_changes() {
        let spec = spec();
        let operations: Vec<u64> = spec.steps.iter().map(|step| spec.operations(step)).collect();
        assert_eq!(operations, [1_000_000, 200_000, 1]);
    }
}
