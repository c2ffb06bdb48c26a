//! The tables of a level in as few sorted streams as possible, for scans.
//!
//! ```text
//! run 9     ▇▇▇              ▇▇          stream 1   ▇▇▇ ▇▇▇▇  ▇▇▇ ▇▇   tables of different runs, one after the other
//! run 8         ▇▇▇▇                     stream 2     ▇▇▇▇▇▇  ▇▇▇
//! run 7       ▇▇▇▇▇▇  ▇▇▇
//! run 6               ▇▇▇
//! ```
//!
//! Where partitions are merged at different times, each run has tables in some of them only. A scan that opened every
//! run would stand in as many streams as there are runs in all partitions together; so it stands in as many as
//! overlap at one key.
//!
//! A level has only one version with a given key and sequence number, so the merge needs no order among the streams.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use super::TableRun;
use crate::table::Table;

/// The current end of a stream: its last key, inclusive. A stream that is unbounded has none and takes no more
/// tables.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct End<'a> {
    key: &'a [u8],
    stream: usize,
}

/// As few streams as possible with all tables of these runs.
pub(super) fn of_runs(runs: &[Arc<TableRun>]) -> Vec<Arc<TableRun>> {
    let mut tables: Vec<&Arc<Table>> = runs.iter().flat_map(|run| run.tables()).collect();
    tables.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
    let mut streams: Vec<Vec<Arc<Table>>> = Vec::new();
    // The stream that ends first takes the next table if it ends before the table; otherwise all streams overlap it.
    let mut ends: BinaryHeap<Reverse<End<'_>>> = BinaryHeap::new();
    for table in tables {
        let meta = table.meta();
        let ended = ends.peek().is_some_and(|Reverse(first)| *first.key < *meta.smallest);
        let stream = match ended.then(|| ends.pop()).flatten() {
            Some(Reverse(end)) => end.stream,
            None => {
                streams.push(Vec::new());
                streams.len() - 1
            }
        };
        streams[stream].push(Arc::clone(table));
        if !meta.unbounded {
            ends.push(Reverse(End { key: &meta.largest, stream }));
        }
    }
    let fits = |(at, tables)| TableRun::new(at, tables).ok().map(Arc::new);
    let built: Option<Vec<_>> = (0..).zip(streams).map(fits).collect();
    // The tables of a stream do not overlap, so this always succeeds. Otherwise the runs serve as well.
    built.unwrap_or_else(|| runs.to_vec())
}
