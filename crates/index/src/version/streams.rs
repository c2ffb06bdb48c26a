//! The tables of a level in as few sorted streams as can be, for scans.
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
//! Of one key and number there is one version in a level, so the merge of streams needs no order among them.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use super::TableRun;
use crate::table::Table;

/// Where a stream ends so far: its last key, not excluded; nothing comes behind one without.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct End<'a> {
    key: &'a [u8],
    stream: usize,
}

/// As few streams as can be with all tables of these runs.
pub(super) fn of_runs(runs: &[Arc<TableRun>]) -> Vec<Arc<TableRun>> {
    let mut tables: Vec<&Arc<Table>> = runs.iter().flat_map(|run| run.tables()).collect();
    tables.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
    let mut streams: Vec<Vec<Arc<Table>>> = Vec::new();
    // The one that ends first takes the next table, if it ends before it: else they all overlap it.
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
    let made: Option<Vec<_>> = (0..).zip(streams).map(fits).collect();
    // Streams do not overlap within themselves; were it otherwise, runs do as well.
    made.unwrap_or_else(|| runs.to_vec())
}
