//! `stats`: what a database holds and where its bytes are, as bars or as JSON.

use std::path::Path;

use bifold::{
    Access,
    stats::{KeyspaceStats, SpaceStats, Stats},
};

use crate::{
    failure::Result,
    formats::escape,
    global::Global,
    open,
    output::{Output, Tone, bar, bytes, count, counted},
};

/// Cells of a bar.
const WIDTH: usize = 32;

/// `bifold stats`
pub fn run(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let db = open::existing(path, global, Access::ReadOnly)?;
    let stats = db.stats();
    if global.json {
        return out.json(&stats);
    }
    out.line(format!("{}  at commit {}", out.paint(Tone::Strong, &path.display().to_string()), count(stats.seqno)))?;
    if let Some(cause) = &stats.poisoned {
        out.line(format!("{}: {cause}", out.paint(Tone::Bad, "takes no writes until reopened")))?;
    }
    for why in &stats.left_out {
        out.line(format!("{}: {why}", out.paint(Tone::Bad, "left out of compaction and GC")))?;
    }
    for keyspace in &stats.keyspaces {
        levels(keyspace, out)?;
        sorted_values(keyspace, out)?;
    }
    space(&stats, out)?;
    memory(&stats, out)?;
    moved(&stats, out)
}

fn levels(keyspace: &KeyspaceStats, out: &mut Output) -> Result<()> {
    let name = out.paint(Tone::Strong, &escape::escaped(keyspace.name.as_bytes()));
    let (placement, compaction) = (&keyspace.placement, &keyspace.compaction);
    let entries = counted(keyspace.entries_estimate, "entry", "entries");
    let split =
        if keyspace.partitions > 1 { format!(", {} partitions", count(keyspace.partitions)) } else { String::new() };
    let expiring = match keyspace.expiring_entries {
        0 => String::new(),
        some => format!(", {} in tables that expire", count(some)),
    };
    out.line(format!("\nkeyspace {name}  {placement}, {compaction}{split}, about {entries}{expiring}"))?;
    let largest = keyspace.levels.iter().map(|l| l.bytes).max().unwrap_or(0).max(keyspace.memtable_bytes);
    let memtable = bar(keyspace.memtable_bytes, largest, WIDTH);
    out.line(format!("  mem {memtable} {:>10}", bytes(keyspace.memtable_bytes)))?;
    // Empty levels below the last non-empty one are not in use yet.
    let used = keyspace.levels.iter().rposition(|level| level.tables > 0).map_or(0, |last| last + 1);
    for level in &keyspace.levels[..used] {
        out.line(format!(
            "  L{:<2} {} {:>10}  {}, {}, {}",
            level.level,
            bar(level.bytes, largest, WIDTH),
            bytes(level.bytes),
            counted(level.runs, "run", "runs"),
            counted(level.tables, "table", "tables"),
            counted(level.entries, "entry", "entries"),
        ))?;
    }
    if let Some(index) = keyspace.hash_index {
        let (used, size) = (index.buckets_used, bytes(index.bytes));
        let chained = counted(index.chained, "entry", "entries");
        let percent = used as f64 * 100.0 / index.buckets.max(1) as f64;
        let buckets = count(index.buckets);
        out.line(format!("  hash index of L0: {percent:.0} % of {buckets} buckets used, {chained} chained, {size}"))?;
    }
    Ok(())
}

/// The value files that follow the levels, where compactions sort values.
fn sorted_values(keyspace: &KeyspaceStats, out: &mut Output) -> Result<()> {
    let Some(values) = &keyspace.values else { return Ok(()) };
    let largest = values.levels.iter().map(|level| level.bytes).max().unwrap_or(0);
    for level in &values.levels {
        let (bar, size) = (bar(level.bytes, largest, WIDTH), bytes(level.bytes));
        let groups = counted(level.groups, "sorted group", "sorted groups");
        let (files, tagged) = (counted(level.files, "file", "files"), count(level.tagged));
        let dead = bytes(level.bytes - level.live_bytes);
        let what = format!("{groups}, {files}, {:.1} overlapping", level.overlap);
        out.line(format!("  v{:<2} {bar} {size:>10}  {what}, {dead} dead, {tagged} tagged", level.level))?;
    }
    Ok(())
}

fn space(stats: &Stats, out: &mut Output) -> Result<()> {
    let s = &stats.space;
    let (live, dead) = (s.live_bytes_estimate, s.dead_bytes_estimate);
    out.line(format!("\n{}  {} in the directory", out.paint(Tone::Strong, "space"), bytes(s.dir_bytes)))?;
    let bar_of = |live, all| bar(live, all, WIDTH);
    out.line(format!("      {} tables: {} live, {} dead", bar_of(live, live + dead), bytes(live), bytes(dead)))?;
    if s.values_bytes > 0 {
        let (live, dead) = (s.live_values_estimate, s.dead_values_estimate);
        let bar = bar_of(live, s.values_bytes);
        let files = counted(s.value_files, "file", "files");
        out.line(format!("      {bar} values in {files}: {} live, {} dead", bytes(live), bytes(dead)))?;
    }
    if s.large_files > 0 {
        let files = counted(s.large_files, "file", "files");
        out.line(format!("      large values in {files}: {}", bytes(s.large_bytes)))?;
    }
    if s.kept_large_files > 0 {
        let files = counted(s.kept_large_files, "file", "files");
        out.line(format!("      large values of the change feed alone in {files}: {}", bytes(s.kept_large_bytes)))?;
    }
    for line in drained(s) {
        out.line(format!("      {line}"))?;
    }
    let (logs, manifest) = (bytes(s.logs_bytes), bytes(s.manifest_bytes));
    let (appends, reserve, other) = (bytes(s.appends_bytes), bytes(s.reserve_bytes), bytes(s.other_bytes));
    let rest = format!("append region {appends}, reserve {reserve}, other files {other}");
    out.line(format!("      logs {logs}, manifest {manifest}, {rest}"))?;
    let reclaimable = bytes(s.reclaimable_bytes_estimate);
    out.line(format!("      about {reclaimable} could be reclaimed now (live, dead and this are estimates)"))
}

/// What drained value files wait for.
fn drained(space: &SpaceStats) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(oldest) = &space.pinned_by {
        let (kind, seqno, age) = (oldest.kind, count(oldest.seqno), oldest.age_ms as f64 / 1e3);
        let pinned = bytes(space.pinned_bytes);
        lines.push(format!("{pinned} in drained files, pinned: the oldest {kind} sees commit {seqno}, {age:.1} s old"));
    }
    if space.awaiting_sync_bytes > 0 {
        let waiting = bytes(space.awaiting_sync_bytes);
        lines.push(format!("{waiting} in drained files that the next GC run deletes, after a sync"));
    }
    lines
}

fn memory(stats: &Stats, out: &mut Output) -> Result<()> {
    let m = &stats.memory;
    let used = m.memtables + m.cache + m.metadata + m.values + m.compaction;
    out.line(format!("\n{}  of its limit", out.paint(Tone::Strong, "memory")))?;
    out.line(format!("      {} {} of {}", bar(used, m.limit, WIDTH), bytes(used), bytes(m.limit)))?;
    out.line(format!(
        "      memtables {}, cache {}, filters and indexes {}, separated values {}, compactions {}",
        bytes(m.memtables),
        bytes(m.cache),
        bytes(m.metadata),
        bytes(m.values),
        bytes(m.compaction)
    ))?;
    if m.mapped > 0 {
        out.line(format!("      not counted: {} of files read through mapped pages", bytes(m.mapped)))?;
    }
    let f = &stats.files;
    let (open, max) = (count(f.open), count(f.open_max));
    out.line(format!("      open files {open} of {max}, {} being written", count(f.open_written)))
}

/// Bytes moved since the database was opened: here, by opening it.
fn moved(stats: &Stats, out: &mut Output) -> Result<()> {
    let sources: Vec<_> = stats.io.iter().filter(|s| s.bytes_read + s.bytes_written > 0).collect();
    let largest = sources.iter().map(|s| s.bytes_read.max(s.bytes_written)).max().unwrap_or(0);
    out.line(format!("\n{}  since this program opened the database", out.paint(Tone::Strong, "bytes moved")))?;
    for source in &sources {
        let bar = bar(source.bytes_read.max(source.bytes_written), largest, WIDTH / 2);
        let (read, written) = (bytes(source.bytes_read), bytes(source.bytes_written));
        out.line(format!("      {:<11} {bar} read {read:>10}, written {written:>10}", source.source))?;
    }
    if stats.user_bytes_written > 0 {
        let (write, space) = (stats.write_amp, stats.space_amp);
        out.line(format!("      amplification: write {write:.2}, read {:.2}, space {space:.2}", stats.read_amp))?;
    }
    for stall in &stats.stalls {
        let (times, total, max) =
            (counted(stall.count, "time", "times"), stall.total_us as f64 / 1e3, stall.max_us as f64 / 1e3);
        out.line(format!("      writers {}: {times}, {total:.1} ms in total, {max:.1} ms at most", stall.cause))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bifold::Db;

    use super::*;

    #[test]
    fn what_drained_files_wait_for_is_shown() {
        let dir = std::env::temp_dir().join(format!("bifold-stats-{}", std::process::id()));
        let db = Db::open(&dir).unwrap();
        let mut space = db.stats().space;
        assert!(drained(&space).is_empty());
        space.pinned_bytes = 3 << 20;
        let _oldest = db.snapshot();
        space.pinned_by = db.stats().snapshots.pop();
        space.pinned_by.as_mut().unwrap().age_ms = 5600;
        space.awaiting_sync_bytes = 1 << 20;
        let lines = drained(&space);
        assert!(lines[0].contains("3.0 MiB") && lines[0].contains("the oldest snapshot"), "{lines:?}");
        assert!(lines[0].contains("5.6 s old"), "{lines:?}");
        assert!(lines[1].contains("1.0 MiB") && lines[1].contains("sync"), "{lines:?}");
        db.close().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
