//! Figures that are true.

use crate::support::{fill, tiny_db};

#[test]
fn bytes_by_source_add_up_to_the_files() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 800, "r");
    db.flush().unwrap();
    let stats = db.stats();
    let written = |name: &str| stats.io.iter().find(|s| s.source == name).unwrap().bytes_written;
    assert!(written("log") >= stats.user_bytes_written);
    assert!(written("flush") > 0 && written("manifest") > 0);
    let all: u64 = stats.io.iter().map(|s| s.bytes_written).sum();
    assert!((stats.write_amp - all as f64 / stats.user_bytes_written as f64).abs() < 1e-9);
    let on_disk = |suffix: &str| -> u64 {
        let files = std::fs::read_dir(dir.join("db")).unwrap().map(|e| e.unwrap());
        files.filter(|e| e.file_name().to_str().unwrap().ends_with(suffix)).map(|e| e.metadata().unwrap().len()).sum()
    };
    assert_eq!(stats.space.tables_bytes, on_disk(".tbl"));
    assert_eq!(stats.space.logs_bytes, on_disk(".log"));
    assert_eq!(stats.space.manifest_bytes, on_disk("MANIFEST"));
    assert_eq!((stats.commits, stats.operations, stats.seqno), (800, 800, 800));
}

#[test]
fn overwritten_data_shows_in_space_until_it_is_compacted() {
    let (_dir, db) = tiny_db();
    fill(db.default_keyspace(), 500, "first");
    fill(db.default_keyspace(), 500, "again");
    db.compact().unwrap();
    let stats = db.stats();
    assert_eq!(stats.space.dead_bytes_estimate, 0);
    assert!(stats.space_amp < 1.2, "{}", stats.space_amp);
    let entries: u64 = stats.keyspaces[0].levels.iter().map(|l| l.entries).sum();
    assert_eq!(entries, 500);
}
