//! `stats`: what a database holds and where its bytes are, as a picture or as JSON.

use std::path::Path;

use bifold::{
    Access,
    stats::{KeyspaceStats, Stats},
};

use crate::{
    args::Global,
    failure::Result,
    open,
    output::{Output, Tone, bar, bytes, count},
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
    for keyspace in &stats.keyspaces {
        levels(keyspace, out)?;
    }
    space(&stats, out)?;
    memory(&stats, out)?;
    moved(&stats, out)
}

fn levels(keyspace: &KeyspaceStats, out: &mut Output) -> Result<()> {
    let name = out.paint(Tone::Strong, &keyspace.name);
    let (placement, compaction) = (&keyspace.placement, &keyspace.compaction);
    let entries = count(keyspace.entries_estimate);
    out.line(format!("\nkeyspace {name}  {placement}, {compaction}, about {entries} entries"))?;
    let largest = keyspace.levels.iter().map(|l| l.bytes).max().unwrap_or(0).max(keyspace.memtable_bytes);
    let memtable = bar(keyspace.memtable_bytes, largest, WIDTH);
    out.line(format!("  mem {memtable} {:>10}", bytes(keyspace.memtable_bytes)))?;
    // Empty levels below the last one that holds something are only there to be filled one day.
    let used = keyspace.levels.iter().rposition(|level| level.tables > 0).map_or(0, |last| last + 1);
    for level in &keyspace.levels[..used] {
        let plural = |n: u64, noun: &str| format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" });
        out.line(format!(
            "  L{:<2} {} {:>10}  {}, {}, {}",
            level.level,
            bar(level.bytes, largest, WIDTH),
            bytes(level.bytes),
            plural(level.runs, "run"),
            plural(level.tables, "table"),
            plural(level.entries, "entry").replace("entrys", "entries"),
        ))?;
    }
    Ok(())
}

fn space(stats: &Stats, out: &mut Output) -> Result<()> {
    let s = &stats.space;
    let (live, dead) = (s.live_bytes_estimate, s.dead_bytes_estimate);
    out.line(format!("\n{}  tables, live and dead (estimated)", out.paint(Tone::Strong, "space")))?;
    out.line(format!("      {} {} live, {} dead", bar(live, live + dead, WIDTH), bytes(live), bytes(dead)))?;
    if s.values_bytes > 0 {
        let (live, emptied) = (bytes(s.live_values_estimate), bytes(s.emptied_bytes));
        let files = count(s.value_files);
        out.line(format!("      values {} in {files} files: {live} live, {emptied} emptied", bytes(s.values_bytes)))?;
    }
    let (logs, manifest) = (bytes(s.logs_bytes), bytes(s.manifest_bytes));
    out.line(format!("      tables {}, logs {logs}, manifest {manifest}", bytes(s.tables_bytes)))
}

fn memory(stats: &Stats, out: &mut Output) -> Result<()> {
    let m = &stats.memory;
    let used = m.memtables + m.cache + m.metadata + m.compaction;
    out.line(format!("\n{}  of its limit", out.paint(Tone::Strong, "memory")))?;
    out.line(format!("      {} {} of {}", bar(used, m.limit, WIDTH), bytes(used), bytes(m.limit)))?;
    out.line(format!(
        "      memtables {}, cache {}, filters and indexes {}, compactions {}",
        bytes(m.memtables),
        bytes(m.cache),
        bytes(m.metadata),
        bytes(m.compaction)
    ))
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
        let (count, total, max) = (count(stall.count), stall.total_us as f64 / 1e3, stall.max_us as f64 / 1e3);
        out.line(format!("      writers {}: {count} times, {total:.1} ms in all, {max:.1} ms at most", stall.cause))?;
    }
    Ok(())
}
