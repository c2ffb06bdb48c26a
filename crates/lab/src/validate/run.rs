//! Fills one tree, and counts what the engine read and wrote.

use std::{fs, path::Path};

use bifold::{Db, IoSource, Options, stats::Stats};
use serde::Serialize;

use super::{
    check_new,
    config::{Config, Load},
};
use crate::{
    Failure, Result,
    random::{Random, mix},
    values::{Sizes, Values},
};

/// Bytes moved by flushes, compactions and the value log, and the bytes of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Bytes of keys and values put in.
    pub user_bytes: u64,
    /// Bytes of the tables of level 0.
    pub flush_bytes_written: u64,
    /// Bytes that flushes and compactions read.
    pub compaction_bytes_read: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Bytes of the value log.
    pub values_bytes_written: u64,
}

impl Traffic {
    fn of(stats: &Stats) -> Self {
        let of = |source: IoSource| stats.io.iter().find(|s| s.source == source.name());
        let read = |source| of(source).map_or(0, |s| s.bytes_read);
        let written = |source| of(source).map_or(0, |s| s.bytes_written);
        Self {
            user_bytes: stats.user_bytes_written,
            flush_bytes_written: written(IoSource::Flush),
            compaction_bytes_read: read(IoSource::Compaction) + read(IoSource::Flush),
            compaction_bytes_written: written(IoSource::Compaction),
            values_bytes_written: written(IoSource::Value),
        }
    }

    /// The difference to `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_bytes: self.user_bytes - earlier.user_bytes,
            flush_bytes_written: self.flush_bytes_written - earlier.flush_bytes_written,
            compaction_bytes_read: self.compaction_bytes_read - earlier.compaction_bytes_read,
            compaction_bytes_written: self.compaction_bytes_written - earlier.compaction_bytes_written,
            values_bytes_written: self.values_bytes_written - earlier.values_bytes_written,
        }
    }

    /// D: bytes read and written on the device.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.flush_bytes_written
            + self.compaction_bytes_read
            + self.compaction_bytes_written
            + self.values_bytes_written
    }

    /// D/Sₗ.
    #[must_use]
    pub fn amplification(&self) -> f64 {
        self.moved() as f64 / self.user_bytes.max(1) as f64
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunOutcome {
    /// From the empty tree on.
    pub whole: Traffic,
    /// For the last quarter of the data.
    pub last_quarter: Traffic,
    /// From the empty tree until all data are in the last level.
    pub until_last_level: Traffic,
    /// Compactions that merged tables.
    pub merges: u64,
    /// Compactions that only moved tables.
    pub moves: u64,
    /// Alpha, as the engine measured it.
    pub alpha: f64,
    /// Bytes of each level at the end of the load, level 0 first.
    pub level_bytes: Vec<u64>,
}

/// A directory that is removed on drop.
struct Temporary<'a>(&'a Path);

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // An error here has no consequences and cannot be reported.
        let _ = fs::remove_dir_all(self.0);
    }
}

/// Fills a tree in the new directory `path`, which is removed at the end. Calls `flushed` after each flush.
///
/// # Errors
/// The database's; [`Failure::Plan`] if `path` exists.
pub fn run(config: &Config, load: &Load, base: &Options, path: &Path, flushed: &dyn Fn()) -> Result<RunOutcome> {
    check_new(path)?;
    let _removed = Temporary(path);
    let db = Db::open_with(path, config.options(load, base.clone()))?;
    let outcome = fill(&db, config, load, flushed)?;
    db.close()?;
    Ok(outcome)
}

pub(super) fn fill(db: &Db, config: &Config, load: &Load, flushed: &dyn Fn()) -> Result<RunOutcome> {
    let values = Values::new(Sizes::Fixed(load.value_bytes), 0.0, load.seed)?;
    let keyspace = db.default_keyspace();
    // The mapping is one-to-one: no key comes twice, and the order is random.
    let first = Random::new(load.seed, 0).draw();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let flushes = config.flushes();
    let mut before = Traffic::default();
    for flush in 0..flushes {
        if flush == flushes - (flushes / 4).max(1) {
            before = Traffic::of(&db.stats());
        }
        let mut batch = db.batch();
        for entry in 0..load.entries {
            let number = flush * load.entries + entry;
            key.clear();
            key.extend_from_slice(&mix(first.wrapping_add(number)).to_be_bytes());
            key.resize(load.key_bytes, b'k');
            values.write(number, 0, &mut value);
            batch.put(keyspace, &key, &value)?;
        }
        db.commit(batch)?;
        db.flush()?;
        db.wait_idle()?;
        flushed();
    }
    outcome(db, before)
}

fn outcome(db: &Db, before: Traffic) -> Result<RunOutcome> {
    let stats = db.stats();
    let whole = Traffic::of(&stats);
    let keyspace = stats.keyspaces.first().ok_or_else(|| Failure::Store("the database has no keyspace".to_owned()))?;
    // In the model all data come down to the last level, and the paper's engines were made to do so at the end (§4).
    if keyspace.levels.iter().filter(|level| level.bytes > 0).count() > 1 {
        db.compact()?;
    }
    let until_last_level = Traffic::of(&db.stats());
    Ok(RunOutcome {
        whole,
        last_quarter: whole.since(before),
        until_last_level,
        merges: keyspace.merges,
        moves: keyspace.moves,
        alpha: keyspace.alpha,
        level_bytes: keyspace.levels.iter().map(|level| level.bytes).collect(),
    })
}
