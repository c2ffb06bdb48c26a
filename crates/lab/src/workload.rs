//! The named workloads as mixes of operations.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Failure, choose::Distribution, plan::Plan};

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Workload {
    /// Writes every key once.
    Load,
    /// Writes new keys.
    Insert,
    /// Overwrites keys.
    Update,
    /// Reads existing keys.
    Read,
    /// Reads missing keys.
    Missing,
    /// Reads consecutive keys.
    Scan,
    /// The same from the last key to the first.
    ScanBack,
    /// Three reads to seven overwrites.
    Mix30,
    /// Half reads, half overwrites.
    Mix,
    /// Seven reads to three overwrites.
    Mix70,
    /// YCSB A: half reads, half overwrites, Zipf.
    YcsbA,
    /// YCSB B: 95 % reads, 5 % overwrites, Zipf.
    YcsbB,
    /// YCSB C: reads, Zipf.
    YcsbC,
    /// YCSB D: 95 % reads of the newest keys, 5 % new keys.
    YcsbD,
    /// YCSB E: 95 % short scans, 5 % new keys, Zipf.
    YcsbE,
    /// YCSB F: half reads, half reads followed by an overwrite of the same key, Zipf.
    YcsbF,
    /// Flushes memory and waits until no background work is due.
    Settle,
    /// Compacts everything.
    Compact,
}

/// One kind of operation on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Writes a new key.
    Insert,
    /// Overwrites a key.
    Update,
    /// Reads a key.
    Read,
    /// Reads a missing key.
    Missing,
    /// Reads consecutive keys.
    Scan,
    /// Reads a key and overwrites it.
    ReadModifyWrite,
    /// Reads consecutive keys in descending order.
    ScanBack,
}

impl Operation {
    /// The number of kinds.
    pub const COUNT: usize = 7;

    /// Every kind, in numeric order.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Insert, Self::Update, Self::Read, Self::Missing, Self::Scan, Self::ReadModifyWrite, Self::ScanBack];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Read => "read",
            Self::Missing => "missing",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read_modify_write",
            Self::ScanBack => "scan_back",
        }
    }
}

/// Operations with their shares in percent, and how their keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// The first kind of operation, and its share in percent.
    pub first: (Operation, u64),
    /// The kind of the others.
    pub rest: Operation,
    /// How keys are chosen.
    pub distribution: Distribution,
}

/// Every workload with its name.
pub(crate) const NAMES: [(&str, Workload); 18] = [
    ("load", Workload::Load),
    ("insert", Workload::Insert),
    ("update", Workload::Update),
    ("read", Workload::Read),
    ("missing", Workload::Missing),
    ("scan", Workload::Scan),
    ("scan-back", Workload::ScanBack),
    ("mix-30", Workload::Mix30),
    ("mix", Workload::Mix),
    ("mix-70", Workload::Mix70),
    ("ycsb-a", Workload::YcsbA),
    ("ycsb-b", Workload::YcsbB),
    ("ycsb-c", Workload::YcsbC),
    ("ycsb-d", Workload::YcsbD),
    ("ycsb-e", Workload::YcsbE),
    ("ycsb-f", Workload::YcsbF),
    ("settle", Workload::Settle),
    ("compact", Workload::Compact),
];

impl Workload {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, w)| *w == self).map_or("", |(name, _)| name)
    }

    /// Its operations on the keys of `plan`; `None` for workloads that are one call of the store.
    #[must_use]
    pub fn mix(self, plan: &Plan) -> Option<Mix> {
        use Operation::{Insert, Missing, Read, ReadModifyWrite, Scan, ScanBack, Update};
        let theta = plan.theta;
        let (zipf, latest) = (Distribution::Zipf { theta }, Distribution::Latest { theta });
        let (first, rest, distribution) = match self {
            Self::Load | Self::Insert => ((Insert, 100), Insert, Distribution::Uniform),
            Self::Update => ((Update, 100), Update, plan.updates),
            Self::Read => ((Read, 100), Read, plan.reads),
            Self::Missing => ((Missing, 100), Missing, plan.reads),
            Self::Scan => ((Scan, 100), Scan, plan.reads),
            Self::ScanBack => ((ScanBack, 100), ScanBack, plan.reads),
            Self::Mix30 => ((Read, 30), Update, plan.updates),
            Self::Mix => ((Read, 50), Update, plan.updates),
            Self::Mix70 => ((Read, 70), Update, plan.updates),
            Self::YcsbA => ((Read, 50), Update, zipf),
            Self::YcsbB => ((Read, 95), Update, zipf),
            Self::YcsbC => ((Read, 100), Read, zipf),
            Self::YcsbD => ((Read, 95), Insert, latest),
            Self::YcsbE => ((Scan, 95), Insert, zipf),
            Self::YcsbF => ((Read, 50), ReadModifyWrite, zipf),
            Self::Settle | Self::Compact => return None,
        };
        Some(Mix { first, rest, distribution })
    }

    /// The number of operations. By default, as many keys as the plan has: a scan costs about `scan_len` reads.
    #[must_use]
    pub fn operations(self, plan: &Plan) -> u64 {
        match self {
            Self::Load => plan.keys,
            Self::Settle | Self::Compact => 1,
            Self::Scan | Self::ScanBack | Self::YcsbE => {
                plan.operations.unwrap_or_else(|| (plan.keys / plan.scan_len as u64).max(1))
            }
            _ => plan.operations.unwrap_or(plan.keys),
        }
    }

    /// Whether it waits for background work: it is one operation, and its rate and percentiles mean nothing.
    #[must_use]
    pub fn is_background(self) -> bool {
        matches!(self, Self::Settle | Self::Compact)
    }

    /// The largest number of new keys it can write.
    #[must_use]
    pub fn inserts_max(self, plan: &Plan) -> u64 {
        match self {
            Self::Insert | Self::YcsbD | Self::YcsbE => self.operations(plan),
            _ => 0,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Workload> for String {
    fn from(workload: Workload) -> Self {
        workload.name().to_owned()
    }
}

impl TryFrom<String> for Workload {
    type Error = Failure;

    fn try_from(text: String) -> Result<Self, Failure> {
        text.parse()
    }
}

impl FromStr for Workload {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        NAMES.iter().find(|(name, _)| *name == text).map(|(_, workload)| *workload).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            Failure::Plan(format!("no workload is called `{text}`; there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_found_by_its_name() {
        for (name, workload) in NAMES {
            assert_eq!(name.parse::<Workload>().unwrap(), workload);
            assert_eq!(workload.to_string(), name);
        }
        let error = "reed".parse::<Workload>().unwrap_err().to_string();
        assert!(error.contains("`reed`") && error.contains("ycsb-f"), "{error}");
    }

    #[test]
    fn operations_stand_in_numeric_order() {
        for (number, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, number);
        }
    }
}
