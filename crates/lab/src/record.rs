//! Results as they are kept: one JSON object a line, each of which tells its whole story.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{PhaseReport, machine::Machine, measure::Called, spec::Spec};

/// A run and all that was measured: a line of `runs.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`Spec::key`]: runs of one key did the same.
    pub key: String,
    /// Which of several equal runs, from 1 on.
    pub round: usize,
    /// The experiment it was made for. Others may use it, too.
    pub experiment: String,
    /// And what it was called there.
    pub arm: String,
    /// What was run.
    pub spec: Spec,
    /// Which version of the store.
    pub version: String,
    /// Settings of the store that are worth knowing, as it says them.
    pub settings: Vec<(String, String)>,
    /// Where it was run.
    pub machine: Machine,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// How long all of it took, in seconds.
    pub seconds: f64,
    /// What each step did: a [`StepRecord`].
    pub steps: Vec<Value>,
    /// Bytes by source beside what the system saw, of a run in one process.
    pub accounts: Vec<Account>,
}

/// What a step did.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    /// Its name.
    pub step: String,
    /// Its figures.
    #[serde(flatten)]
    pub report: PhaseReport,
    /// Bytes that the process moved by system calls during the step; nothing where the system does not tell.
    pub called: Option<Called>,
    /// Figures of the store's own at the end of the step, by name.
    pub facts: BTreeMap<String, f64>,
}

/// What a process wrote from opening a store to its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// As the store counts it, by source.
    pub by_source: BTreeMap<String, u64>,
    /// As the system counts calls that write; nothing where it does not tell.
    pub called: Option<u64>,
}

impl Account {
    /// What the store counts over what the system saw.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let counted: u64 = self.by_source.values().sum();
        self.called.filter(|&called| called > 0).map(|called| counted as f64 / called as f64)
    }
}
