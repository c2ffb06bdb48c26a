//! Bifold, through its public interface.

mod facts;

use std::{ops::ControlFlow, path::Path, time::Instant};

use bifold::{Batch, Db, Error, IoSource, Options, stats::SlowCommitStats};
use serde_json::Value;

use super::{Entries, Gc, Store, Totals};
use crate::{Failure, Result};

/// Sources whose reads are for a user; the others are the store's own.
const READS_FOR_USER: [IoSource; 3] = [IoSource::Get, IoSource::Scan, IoSource::Metadata];

/// An open Bifold database; the workload goes to its default keyspace.
pub struct BifoldStore {
    db: Db,
    /// Options that differ from the defaults.
    settings: Vec<(String, String)>,
}

impl BifoldStore {
    /// Opens the database in `dir`, or creates one.
    ///
    /// # Errors
    /// The database's.
    pub fn open(dir: &Path, options: Options) -> Result<Self> {
        let settings = differences(&options);
        Ok(Self { db: Db::open_with(dir, options)?, settings })
    }

    /// The database itself.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }
}

impl Store for BifoldStore {
    fn name(&self) -> &'static str {
        "bifold"
    }

    fn version(&self) -> String {
        // All crates of the workspace have the same version.
        env!("CARGO_PKG_VERSION").to_owned()
    }

    /// The options it was opened with, as far as they differ from the defaults, by the names of `Options::set`.
    fn settings(&self) -> Vec<(String, String)> {
        self.settings.clone()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.default_keyspace().put(key, value)?)
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        let keyspace = self.db.default_keyspace();
        let mut batch = Batch::new();
        for (key, value) in entries.iter() {
            batch.put(keyspace, key, value)?;
        }
        Ok(self.db.commit(batch)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.default_keyspace().delete(key)?)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.default_keyspace().get(key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut found = 0;
        self.db.default_keyspace().range(from..).limit(limit).visit(|key, value| {
            seen(key, value);
            found += 1;
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut found = 0;
        for pair in self.db.default_keyspace().range(..=from).limit(limit).rev() {
            let pair = pair?;
            seen(pair.key(), &pair.value()?);
            found += 1;
        }
        Ok(found)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn wait_idle(&self, end: Option<Instant>) -> Result<bool> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        end.map_or_else(|| self.db.wait_idle().map(|()| true), |end| self.db.wait_idle_within(left(end)))
            .map_err(Into::into)
    }

    fn compact(&self) -> Result<()> {
        Ok(self.db.compact()?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.sync()?)
    }

    fn facts(&self) -> Vec<(&'static str, f64)> {
        facts::of(&self.db)
    }

    fn totals(&self) -> Totals {
        let stats = self.db.stats();
        let mut totals = Totals {
            gc: Gc {
                index_lookups: stats.gc.index_lookups,
                index_inserts: stats.gc.index_inserts,
                bytes: stats.gc.bytes,
            },
            ..Totals::default()
        };
        totals.stalled_us = stats.stalls.iter().map(|stall| (stall.cause, stall.total_us)).collect();
        totals.slow_commits = stats.slow_commits.iter().map(described).collect();
        for source in &stats.io {
            totals.written.insert(source.source, source.bytes_written);
            totals.read.insert(source.source, source.bytes_read);
            if READS_FOR_USER.iter().any(|s| s.name() == source.source) {
                totals.read_for_user += source.bytes_read;
            }
        }
        totals
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        self.db.clone().close()?;
        Ok(self.totals())
    }
}

/// The options that differ from the defaults.
fn differences(options: &Options) -> Vec<(String, String)> {
    let words = |options: &Options| {
        let mut words = Vec::new();
        // Options are plain data. If they could not be serialised, a report would only lack a line.
        leaves("", &serde_json::to_value(options).unwrap_or_default(), &mut words);
        words
    };
    let defaults = words(&Options::default());
    words(options).into_iter().filter(|word| !defaults.contains(word)).collect()
}

/// Every plain value in `value` with its dotted path.
fn leaves(path: &str, value: &Value, words: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            let dot = if path.is_empty() { "" } else { "." };
            fields.iter().for_each(|(name, value)| leaves(&format!("{path}{dot}{name}"), value, words));
        }
        Value::Null => {}
        Value::String(word) => words.push((path.to_owned(), word.clone())),
        other => words.push((path.to_owned(), other.to_string())),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error.to_string())
    }
}

/// A slow commit in words.
fn described(slow: &SlowCommitStats) -> String {
    let steps: Vec<_> = slow.steps.iter().map(|at| format!("{} {} ms", at.step, at.us / 1000)).collect();
    format!("{:.1} ms: {}", slow.total_us as f64 / 1e3, steps.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_options_that_differ() {
        let mut options = Options::default();
        assert!(differences(&options).is_empty());
        let set = ["cache_bytes=1048576", "durability=sync", "keyspace.compaction.tiered.size_ratio=5"];
        set.iter().for_each(|set| options.set(set).unwrap());
        let found: Vec<_> = differences(&options).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        // The policy differs, so all its options do.
        let tiered = |option| format!("keyspace.compaction.tiered.{option}");
        let others = [tiered("levels=7"), tiered("size_ratio=5"), tiered("space_percent=200")];
        assert_eq!(found, [&[set[0].to_owned(), set[1].to_owned()], &others[..]].concat());
    }
}
