//! Commands that only read work on a database that another process is writing.

use ::bifold::{Db, Options};

use super::{Scratch, bifold, text};

#[test]
fn commands_that_read_work_beside_a_writer_and_others_say_what_does() {
    let scratch = Scratch::new();
    let path = scratch.path("db");
    let writer = Db::open_with(&path, Options { memtable_bytes: 64 << 10, ..Options::default() }).unwrap();
    for n in 0..3000 {
        writer.put(format!("key{n:05}"), format!("value {n} {}", "x".repeat(100))).unwrap();
    }
    let db = text(&path);
    assert!(bifold(&["get", db, "key00007"]).ok().starts_with("value 7 "));
    assert_eq!(bifold(&["scan", db]).ok().lines().count(), 3000);
    assert!(bifold(&["stats", db]).ok().contains("default"));
    assert!(bifold(&["verify", db]).ok().contains("sound"));
    assert!(!bifold(&["verify", "--help"]).ok().contains("closed"));
    assert_eq!(bifold(&["export", db, "--format", "tsv"]).ok().lines().count(), 3000);
    let (copy, repository) = (scratch.path("copy"), scratch.path("backups"));
    bifold(&["checkpoint", db, text(&copy)]).ok();
    bifold(&["backup", "create", db, text(&repository)]).ok();
    writer.put("later", "x").unwrap();
    assert_eq!(bifold(&["get", db, "later"]).ok().trim(), "x");
    assert_eq!(bifold(&["scan", text(&copy)]).ok().lines().count(), 3000);
    assert!(bifold(&["verify", text(&copy)]).ok().contains("sound"));
    let said = bifold(&["put", db, "a", "b"]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("is locked") && said.err.contains("`get`, `scan`, `stats`"), "{}", said.err);
    assert_eq!(writer.stats().followers.readers, 0);
    writer.close().unwrap();
}
