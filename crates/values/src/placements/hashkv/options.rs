//! Options that only `hashkv` uses.

use bifold_contract::{
    Result,
    option::{at_least, size, within},
};
use serde::{Deserialize, Serialize};

use crate::parts::victim::Victim;

/// What becomes of values that are not updated between two GC runs of their group (HashKV §3.4, "hotness awareness").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cold {
    /// They go to a cold segment of their group, which GC takes more rarely, without asking the index (ours). The
    /// default. Also read by its former name, `parts`.
    #[default]
    #[serde(alias = "parts")]
    Segments,
    /// They go to one log for all groups, as in the paper; its GC asks the index.
    Log,
    /// They go to such a log, and as in the paper its size is not limited: it is outside the space target, and GC
    /// takes only files of the log in which everything is dead.
    UnlimitedLog,
    /// They stay with the other values of their group.
    Off,
}

/// Options that only `hashkv` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HashKvOptions {
    /// Which group GC takes first (HashKV §3.3). Default: [`Victim::CostBenefit`].
    pub victim: Victim,
    /// Where values go that are not updated between two GC runs of their group (HashKV §3.4). Default:
    /// [`Cold::Segments`].
    pub cold: Cold,
    /// A group with more bytes than this splits in two: at least 1 KiB. Default: 4 MiB.
    #[serde(with = "size")]
    pub group_bytes: u64,
    /// With this many groups, about, no group splits any more, and groups grow instead: 16 to 65 536. Default: 128.
    /// Each group has a file that commits append to.
    pub groups_max: u32,
}

impl Default for HashKvOptions {
    fn default() -> Self {
        Self { victim: Victim::default(), cold: Cold::default(), group_bytes: 4 << 20, groups_max: 128 }
    }
}

impl HashKvOptions {
    /// Checks the bounds; `at` is the dotted name of these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) naming the option.
    pub fn check(&self, at: &str) -> Result<()> {
        if let Victim::GreedyRandom(sample) = self.victim {
            within(&format!("{at}.victim.greedy_random"), sample.into(), 1, 65_536)?;
        }
        at_least(&format!("{at}.group_bytes"), self.group_bytes, 1 << 10)?;
        within(&format!("{at}.groups_max"), self.groups_max.into(), 16, 65_536)
    }
}
