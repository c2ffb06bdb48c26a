//! Results as they are stored: one JSON object per line, complete in itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    PhaseReport,
    machine::Machine,
    measure::{Called, DeviceTraffic},
    quiet::Busy,
    run::ratio,
    spec::Spec,
};

/// A run and its measurements: a line of `runs.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`Spec::key`]: runs of one key did the same.
    pub key: String,
    /// The number of the round, from 1 on.
    pub round: usize,
    /// The experiment it was made for. Others may use it, too.
    pub experiment: String,
    /// The name of its arm there.
    pub arm: String,
    /// The spec.
    pub spec: Spec,
    /// The version of the store.
    pub version: String,
    /// Settings of the store, as it reports them.
    pub settings: Vec<(String, String)>,
    /// The machine.
    pub machine: Machine,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// Its duration, in seconds.
    pub seconds: f64,
    /// The figures of each step: a [`StepRecord`].
    pub steps: Vec<Value>,
    /// Bytes written by source, and as counted by the system, for a run in one process.
    pub accounts: Vec<Account>,
    /// How far its load came, if that took too long. Such a run has no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_loaded: Option<NotLoaded>,
}

/// A load that ended before the store had all keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotLoaded {
    /// The keys that it had.
    pub keys: u64,
    /// All keys.
    pub of: u64,
    /// How long that took.
    pub seconds: f64,
}

#[cfg(test)]
impl Run {
    /// A run that was never made, whose steps have these records.
    pub fn made_up(spec: &Spec, steps: Vec<Value>) -> Self {
        Self {
            key: spec.key(),
            round: 1,
            experiment: String::new(),
            arm: String::new(),
            spec: spec.clone(),
            version: String::new(),
            settings: Vec::new(),
            machine: Machine::default(),
            began: 0,
            seconds: 0.0,
            steps,
            accounts: Vec::new(),
            not_loaded: None,
        }
    }
}

/// The figures of a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    /// Its name.
    pub step: String,
    /// Its figures.
    #[serde(flatten)]
    pub report: PhaseReport,
    /// Bytes that the process moved by system calls during the step; `None` if the system does not count them.
    pub called: Option<Called>,
    /// What the device read and wrote meanwhile; `None` if the system does not count it.
    pub device: Option<FromDevice>,
    /// What others took of the machine during the step.
    pub busy: Option<Busy>,
    /// The store's own figures at the end of the step, by name.
    pub facts: BTreeMap<String, f64>,
}

/// What the device read and wrote during a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FromDevice {
    /// Bytes, for this process.
    pub bytes: u64,
    /// Requests, for any process.
    pub requests: u64,
    /// Bytes for each operation.
    pub bytes_per_op: f64,
    /// Requests for each operation.
    pub requests_per_op: f64,
    /// Bytes for each byte of keys and values that the user received; 0 if there was none.
    pub read_amp: f64,
    /// Bytes that the device wrote, for any process; those of a step may be written in a later one.
    pub written: u64,
    /// The same for each operation.
    pub written_per_op: f64,
    /// Requests for them, for each operation.
    pub write_requests_per_op: f64,
}

impl FromDevice {
    /// Those of a step with this report.
    #[must_use]
    pub fn of(traffic: DeviceTraffic, report: &PhaseReport) -> Self {
        let DeviceTraffic { bytes, requests, written, write_requests } = traffic;
        let per_op = |count| ratio(count, report.operations);
        Self {
            bytes,
            requests,
            bytes_per_op: per_op(bytes),
            requests_per_op: per_op(requests),
            read_amp: ratio(bytes, report.user_bytes_read),
            written,
            written_per_op: per_op(written),
            write_requests_per_op: per_op(write_requests),
        }
    }
}

/// Bytes that a process wrote from opening a store to its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// As counted by the store, by source.
    pub by_source: BTreeMap<String, u64>,
    /// As counted by the system in calls that write; `None` if it does not count them.
    pub called: Option<u64>,
}

impl Account {
    /// The store's count over the system's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let counted: u64 = self.by_source.values().sum();
        self.called.filter(|&called| called > 0).map(|called| counted as f64 / called as f64)
    }
}
