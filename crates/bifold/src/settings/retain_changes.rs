//! How many commits the change feed keeps.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many commits are kept for [`Db::changes`](crate::Db::changes), beyond what recovery needs. Whole logs are kept;
/// the oldest is deleted when one of the two limits is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainChanges {
    /// The most bytes of logs that nothing else needs, with the large values and ingests that only they lead to. 0: no
    /// commits are kept from now on.
    #[serde(with = "bifold_contract::option::size")]
    pub bytes: u64,
    /// The age at which such a log is deleted, counted from when recovery needed it no longer, and anew from each
    /// opening. In TOML a text such as `"24h"`, or a number of seconds. Unset: logs of any age are kept.
    #[serde(default, with = "bifold_contract::option::duration", skip_serializing_if = "Option::is_none")]
    pub age: Option<Duration>,
}
