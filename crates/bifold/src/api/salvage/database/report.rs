//! What a salvage of a database found.

use std::path::{Path, PathBuf};

use bifold_contract::{KeyspaceId, planted};
use bifold_index::table::salvage::Lost;
use serde::{Serialize, Serializer};

/// So many lost stretches are listed; more are only counted.
const LISTED_MAX: usize = 1000;

/// What a salvage of a database found.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct DatabaseReport {
    /// Whether the manifest is whole and describes the other files. If not, deleted keys may come back, and tables may
    /// have lost their keyspace.
    pub manifest_is_whole: bool,
    /// Lost stretches.
    pub left_out_stretches: u64,
    /// Bytes in them. (Of a log that lacks commits, none.)
    pub left_out_bytes: u64,
    /// The first thousand lost stretches.
    pub left_out: Vec<LostStretch>,
    /// The keyspaces.
    pub keyspaces: Vec<RecoveredKeyspace>,
}

/// A stretch of a file that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LostStretch {
    /// The file.
    #[serde(serialize_with = "shown")]
    pub file: PathBuf,
    /// Where the stretch starts, in bytes from the start of the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// The keyspace, if it is known.
    pub keyspace: Option<String>,
    /// No key below this was in it; `None`: not known.
    #[serde(serialize_with = "escaped")]
    pub first: Option<Box<[u8]>>,
    /// No key above this was in it; `None`: not known.
    #[serde(serialize_with = "escaped")]
    pub last: Option<Box<[u8]>>,
    /// What is wrong, in words.
    pub problem: String,
}

/// What was found of a keyspace.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct RecoveredKeyspace {
    /// Its name.
    pub name: String,
    /// Its id; `None` for a table whose keyspace is not known.
    pub id: Option<KeyspaceId>,
    /// Keys whose newest version is a value that can be read: those restored.
    pub restored: u64,
    /// Bytes of these keys and values.
    pub restored_bytes: u64,
    /// Of these, keys that something lost may have overwritten or deleted.
    pub may_be_older: u64,
    /// Keys whose newest version is a delete.
    pub deleted: u64,
    /// Keys in a range that was deleted.
    pub range_deleted: u64,
    /// Keys whose newest value cannot be read. They are left out.
    pub lost_values: u64,
    /// Of these, keys whose newest version is an operand of a merge operator, where it is not known which operands
    /// count, or they could not be combined.
    pub operands: u64,
    /// The first thousand keys with lost values.
    #[serde(serialize_with = "all_escaped")]
    pub lost_keys: Vec<Box<[u8]>>,
    /// The name of its merge operator, if it has one and the manifest says so.
    pub operator: Option<String>,
    /// Why operands could not be combined, for the first key where that is so.
    pub operator_problem: Option<String>,
    /// Restored keys whose operands were combined.
    pub combined: u64,
    /// Of these, keys of which a log may have lost an operand, put or delete that is older than another operand. They
    /// may have a value that they never had.
    pub may_lack_operands: u64,
    /// The first thousand of these.
    #[serde(serialize_with = "all_escaped")]
    pub lacking_keys: Vec<Box<[u8]>>,
}

impl DatabaseReport {
    /// Whether nothing was damaged or missing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.left_out_stretches == 0 && self.keyspaces.iter().all(|keyspace| keyspace.lost_values == 0)
    }
}

impl RecoveredKeyspace {
    pub(super) fn lose(&mut self, key: &[u8]) {
        self.lost_values += 1;
        if self.lost_keys.len() < LISTED_MAX {
            self.lost_keys.push(key.into());
        }
    }

    /// A key whose operands are left out, and why.
    pub(super) fn lose_operands(&mut self, key: &[u8], why: String) {
        self.operands += 1;
        self.operator_problem.get_or_insert(why);
        self.lose(key);
    }

    /// A key whose operands were combined.
    pub(super) fn combine(&mut self, key: &[u8], is_certain: bool) {
        self.combined += 1;
        if is_certain {
            return;
        }
        self.may_lack_operands += 1;
        if self.lacking_keys.len() < LISTED_MAX {
            self.lacking_keys.push(key.into());
        }
    }
}

/// The lost stretches of a report.
#[derive(Default)]
pub(super) struct LeftOuts {
    pub stretches: u64,
    pub bytes: u64,
    pub listed: Vec<LostStretch>,
}

impl LeftOuts {
    pub fn add(&mut self, file: PathBuf, keyspace: Option<&str>, lost: Lost) {
        if planted!("salvage_forgets_a_block") && lost.last.is_some() {
            return;
        }
        self.stretches += 1;
        self.bytes += lost.place.len();
        if self.listed.len() < LISTED_MAX {
            self.listed.push(LostStretch {
                file,
                offset: lost.place.start,
                bytes: lost.place.len(),
                keyspace: keyspace.map(Into::into),
                first: lost.first,
                last: lost.last,
                problem: lost.problem,
            });
        }
    }
}

/// Serializes a path that may not be UTF-8: what cannot be shown is replaced.
fn shown<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// Serializes a key with escapes for bytes that are not printable ASCII.
fn escaped<S: Serializer>(key: &Option<Box<[u8]>>, to: S) -> Result<S::Ok, S::Error> {
    match key {
        Some(key) => to.collect_str(&key.escape_ascii()),
        None => to.serialize_none(),
    }
}

fn all_escaped<S: Serializer>(keys: &[Box<[u8]>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(keys.iter().map(|key| key.escape_ascii().to_string()))
}
