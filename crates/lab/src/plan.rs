//! Plans of runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Failure, Result,
    choose::{self, Distribution},
    keys::{Keys, Order},
    values::{self, Sizes},
};

/// Everything that two runs must share to be comparable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The number of keys that are loaded.
    pub keys: u64,
    /// Operations of each phase other than the load; `None`: as many as there are keys.
    pub operations: Option<u64>,
    /// A phase other than the load ends after this time, even if operations are left.
    pub time_max: Option<Duration>,
    /// Size of each key, in bytes.
    pub key_bytes: usize,
    /// The order in which keys are loaded.
    pub order: Order,
    /// The sizes of values.
    pub sizes: Sizes,
    /// The fraction of each value that compresses away, 0 to 1.
    pub compressible: f64,
    /// How `update` and `mix` choose keys.
    pub updates: Distribution,
    /// How `read`, `missing` and `scan` choose keys.
    pub reads: Distribution,
    /// The skew of the YCSB workloads.
    pub theta: f64,
    /// Keys in each scan; YCSB E has from 1 to this many.
    pub scan_len: usize,
    /// Keys in each commit of a load or update.
    pub batch: usize,
    /// Threads that call the store.
    pub threads: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            keys: 1_000_000,
            operations: None,
            time_max: None,
            key_bytes: 24,
            order: Order::Hashed,
            sizes: Sizes::Fixed(1000),
            compressible: 0.0,
            updates: Distribution::Zipf { theta: 0.99 },
            reads: Distribution::Uniform,
            theta: 0.99,
            scan_len: 100,
            batch: 1,
            threads: 1,
            seed: 1,
        }
    }
}

impl Plan {
    /// Checks all figures, before anything is run.
    ///
    /// # Errors
    /// [`Failure::Plan`], which names the figure.
    pub fn check(&self) -> Result<()> {
        let figures = [
            ("keys (--num)", self.keys, 1 << 40),
            ("threads (--threads)", self.threads as u64, 1024),
            ("keys in a scan (--scan-len)", self.scan_len as u64, 1 << 30),
            ("keys in a commit (--batch)", self.batch as u64, 1 << 20),
            ("operations (--ops)", self.operations.unwrap_or(1), 1 << 50),
        ];
        for (what, figure, most) in figures {
            if !(1..=most).contains(&figure) {
                return Err(Failure::Plan(format!("{figure} {what}: it must be between 1 and {most}")));
            }
        }
        Keys::new(self.key_bytes, self.order)?;
        values::check(self.sizes, self.compressible)?;
        choose::check_theta(self.theta)?;
        choose::check(self.updates).and_then(|()| choose::check(self.reads))
    }
}

/// Differences of one step of a run from its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Changes {
    /// [`Plan::operations`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
    /// [`Plan::updates`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates: Option<Distribution>,
    /// [`Plan::reads`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<Distribution>,
    /// [`Plan::scan_len`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_len: Option<usize>,
    /// [`Plan::threads`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The stream of random numbers: steps of one stream choose the same keys in the same order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u64>,
}

impl Changes {
    /// The plan with these changes.
    #[must_use]
    pub fn apply(&self, plan: &Plan) -> Plan {
        Plan {
            operations: self.operations.or(plan.operations),
            updates: self.updates.unwrap_or(plan.updates),
            reads: self.reads.unwrap_or(plan.reads),
            scan_len: self.scan_len.unwrap_or(plan.scan_len),
            threads: self.threads.unwrap_or(plan.threads),
            ..plan.clone()
        }
    }
}
