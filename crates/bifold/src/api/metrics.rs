//! Figures for a monitoring system: [`Stats::record`] gives them to a [`Recorder`].
//!
//! Whoever scrapes calls it every few seconds; between two calls nothing is recorded and nothing costs anything. With
//! the feature `metrics` there is a recorder for the crate of that name, and a listener that records how long jobs
//! take. With the feature `tracing` there is a listener that writes events of that crate. `docs/metrics.md` lists all
//! names.
//!
//! ```
//! use bifold::{Db, metrics::Recorder};
//!
//! struct Lines(String);
//!
//! impl Recorder for Lines {
//!     fn counter(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
//!         self.0 += &format!("{name} {labels:?} {value}\n");
//!     }
//!
//!     fn gauge(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
//!         self.0 += &format!("{name} {labels:?} {value}\n");
//!     }
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("bifold-doc-metrics-{}", std::process::id()));
//! # let db = Db::open(&dir)?;
//! db.put("lorem", "ipsum")?;
//! let mut lines = Lines(String::new());
//! db.stats().record(&mut lines);
//! assert!(lines.0.contains("bifold_commits_total [] 1\n"));
//! # db.close()?;
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok::<(), bifold::Error>(())
//! ```

#[cfg(feature = "metrics")]
mod crate_metrics;
#[cfg(feature = "tracing")]
mod crate_tracing;

#[cfg(feature = "metrics")]
pub use self::crate_metrics::{MetricsListener, MetricsRecorder};
#[cfg(feature = "tracing")]
pub use self::crate_tracing::TracingListener;
use crate::api::stats::{KeyspaceStats, Quantiles, Stats};

/// Takes figures.
pub trait Recorder {
    /// What has been counted since the database was opened. It never falls while it is open, with one exception: with
    /// the label `keyspace`, it counts since the keyspace was created or opened, and begins at 0 again when that is
    /// dropped and another one is created with its name.
    fn counter(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: u64);

    /// How something is now.
    fn gauge(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64);
}

impl Stats {
    /// Gives all figures to `recorder`.
    pub fn record(&self, recorder: &mut dyn Recorder) {
        self.record_counters(recorder);
        self.record_memory_and_space(recorder);
        self.keyspaces.iter().for_each(|keyspace| record_keyspace(keyspace, recorder));
        for (operation, quantiles) in [("put", &self.latency_us.put), ("get", &self.latency_us.get)] {
            record_latency(operation, quantiles, recorder);
        }
    }

    fn record_counters(&self, recorder: &mut dyn Recorder) {
        let plain = [
            ("bifold_commits_total", self.commits),
            ("bifold_operations_total", self.operations),
            ("bifold_user_bytes_written_total", self.user_bytes_written),
            ("bifold_user_bytes_read_total", self.user_bytes_read),
            ("bifold_gets_total", self.gets),
            ("bifold_get_hits_total", self.get_hits),
            ("bifold_scanned_entries_total", self.scanned_entries),
            ("bifold_syncs_total", self.syncs),
            ("bifold_cache_hits_total", self.memory.cache_hits),
            ("bifold_cache_misses_total", self.memory.cache_misses),
            ("bifold_files_reopened_total", self.files.reopened),
            ("bifold_gc_jobs_total", self.gc.jobs),
        ];
        plain.into_iter().for_each(|(name, value)| recorder.counter(name, &[], value));
        for source in &self.io {
            let labels = [("source", source.source)];
            recorder.counter("bifold_bytes_read_total", &labels, source.bytes_read);
            recorder.counter("bifold_bytes_written_total", &labels, source.bytes_written);
            recorder.counter("bifold_reads_total", &labels, source.reads);
        }
        for stall in &self.stalls {
            let labels = [("cause", stall.cause)];
            recorder.counter("bifold_stalls_total", &labels, stall.count);
            recorder.counter("bifold_stall_microseconds_total", &labels, stall.total_us);
        }
    }

    fn record_memory_and_space(&self, recorder: &mut dyn Recorder) {
        let memory = &self.memory;
        for (part, bytes) in [
            ("limit", memory.limit),
            ("memtables", memory.memtables),
            ("cache", memory.cache),
            ("metadata", memory.metadata),
            ("values", memory.values),
            ("compaction", memory.compaction),
            ("transactions", memory.transactions),
            ("mapped", memory.mapped),
        ] {
            recorder.gauge("bifold_memory_bytes", &[("part", part)], bytes as f64);
        }
        let space = &self.space;
        for (part, bytes) in [
            ("tables", space.tables_bytes),
            ("values", space.values_bytes),
            ("large", space.large_bytes),
            ("kept_large", space.kept_large_bytes),
            ("logs", space.logs_bytes),
            ("manifest", space.manifest_bytes),
            ("appends", space.appends_bytes),
            ("reserve", space.reserve_bytes),
            ("other", space.other_bytes),
        ] {
            recorder.gauge("bifold_disk_bytes", &[("part", part)], bytes as f64);
        }
        for (name, value) in [
            ("bifold_write_amplification", self.write_amp),
            ("bifold_read_amplification", self.read_amp),
            ("bifold_space_amplification", self.space_amp),
            ("bifold_open_files", self.files.open as f64),
            ("bifold_open_snapshots", self.snapshots.len() as f64),
            ("bifold_waiting_threads", self.waits.len() as f64),
            ("bifold_left_out", self.left_out.len() as f64),
            ("bifold_poisoned", f64::from(u8::from(self.poisoned.is_some()))),
        ] {
            recorder.gauge(name, &[], value);
        }
    }
}

fn record_keyspace(keyspace: &KeyspaceStats, recorder: &mut dyn Recorder) {
    let labels = [("keyspace", &*keyspace.name)];
    recorder.counter("bifold_merges_total", &labels, keyspace.merges);
    recorder.counter("bifold_moves_total", &labels, keyspace.moves);
    let tables: u64 = keyspace.levels.iter().map(|level| level.tables).sum();
    let runs = keyspace.levels.first().map_or(0, |level| level.runs);
    for (name, value) in [
        ("bifold_entries_estimate", keyspace.entries_estimate as f64),
        ("bifold_tables", tables as f64),
        ("bifold_level0_runs", runs as f64),
        ("bifold_sealed_memtables", keyspace.sealed_memtables as f64),
        ("bifold_compaction_debt", keyspace.debt),
    ] {
        recorder.gauge(name, &labels, value);
    }
}

fn record_latency(operation: &str, quantiles: &Quantiles, recorder: &mut dyn Recorder) {
    for (quantile, us) in [("0.5", quantiles.p50), ("0.99", quantiles.p99), ("1", quantiles.max)] {
        recorder.gauge("bifold_latency_microseconds", &[("operation", operation), ("quantile", quantile)], us);
    }
}
