//! Options from TOML, and what `stats` reports: memory, space, write amplification.
//!
//! ```sh
//! cargo run -p bifold --example options
//! ```

use bifold::{Compression, Db, Options, Result};

/// An option that is not mentioned has its default. A misspelt name or an invalid value is an error that says so.
const CONFIG: &str = r#"
durability = "buffered"
memory_limit = "8MiB"       # one limit for memtables, cache, filters, indexes, compaction buffers
memtable_bytes = "256KiB"

[keyspace]
compression = "zstd"

[keyspace.compaction.leveled]
base_bytes = "1MiB"
"#;

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("bifold-options-{}", std::process::id()));
    let mut options = Options::from_toml(CONFIG)?;
    options.set("keyspace.filter_bits_per_key=12")?;
    assert_eq!((options.memory_limit, options.keyspace.compression), (8 << 20, Compression::Zstd));
    let refused =
        Options::from_toml("memory_limit = \"a lot\"").map_or_else(|error| error.to_string(), |_| String::new());
    println!("a bad value is refused:\n{refused}");
    assert!(refused.contains("not a unit of size") && Options::from_toml("memory_limt = 1").is_err());

    let db = Db::open_with(&dir, options)?;
    // Writes every key four times, so that compactions have something to rewrite and drop.
    for round in 0..4 {
        for number in 0..10_000 {
            db.put(format!("key{number:06}"), format!("value {number} of round {round}, ").repeat(4))?;
        }
    }
    db.flush()?;
    db.wait_idle()?;
    assert!(db.get("key000042")?.is_some_and(|value| value.starts_with(b"value 42 of round 3")));

    let stats = db.stats();
    let (memory, space) = (&stats.memory, &stats.space);
    let used = memory.memtables + memory.cache + memory.metadata + memory.compaction;
    println!("committed   {:>9} bytes of keys and values", stats.user_bytes_written);
    println!("memory      {used:>9} bytes of at most {}", memory.limit);
    println!("tables      {:>9} bytes, {} of them live", space.tables_bytes, space.live_bytes_estimate);
    println!("write amp   {:>9.2}  (bytes written to files over bytes committed)", stats.write_amp);
    println!("space amp   {:>9.2}  (bytes of files over live bytes)", stats.space_amp);
    for keyspace in &stats.keyspaces {
        for level in keyspace.levels.iter().filter(|level| level.tables > 0) {
            println!("level {} of {}: {} tables, {} entries", level.level, keyspace.name, level.tables, level.entries);
        }
    }
    assert!(used <= memory.limit);
    assert!(stats.write_amp > 0.0 && stats.space_amp > 0.0);

    db.compact()?;
    let entries: u64 = db.stats().keyspaces[0].levels.iter().map(|level| level.entries).sum();
    println!("after a full compaction there are {entries} entries");
    assert_eq!(entries, 10_000);
    db.close()?;
    std::fs::remove_dir_all(dir).ok();
    Ok(())
}
