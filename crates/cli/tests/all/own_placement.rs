//! A database with a placement that the program does not have.

use std::fs;

use bifold::{Db, KeyspaceOptions, Options, PlacementKind, placement::Registry};

use super::{Scratch, bifold, text};

#[allow(dead_code, reason = "its `main` is another program")]
#[path = "../../../bifold/examples/own_placement.rs"]
mod example;

/// Commands that need the placement name the missing one; commands that need only files work.
#[test]
fn a_placement_that_the_program_does_not_have_is_named() {
    let scratch = Scratch::new();
    let (db, out) = (scratch.path("db"), scratch.path("out"));
    let placements = Registry::default().with(example::NAME, example::AppendOnly::open).unwrap();
    let placement = PlacementKind::own(example::NAME).unwrap();
    let open = Db::open_with(&db, Options { placements, ..Options::default() }).unwrap();
    let papers = open.keyspace("papers", KeyspaceOptions { placement, ..KeyspaceOptions::default() }).unwrap();
    (0..20).for_each(|n| papers.put(format!("key {n:02}"), format!("{n} ").repeat(200)).unwrap());
    drop(papers);
    open.close().unwrap();
    let (db, out) = (text(&db), text(&out));
    for args in [
        &["stats", db][..],
        &["get", db, "key 01", "--keyspace", "papers"],
        &["put", db, "a", "b"],
        &["export", db, "--keyspace", "papers"],
        &["compact", db],
        &["gc", db, "--explain"],
        &["checkpoint", db, out],
        &["convert", db, out, "--placement", "hashkv"],
    ] {
        let said = bifold(args).refused(2);
        assert!(said.contains("keyspace `papers` has placement `append_only`"), "{args:?}: {said}");
        assert!(!fs::exists(out).unwrap(), "{args:?}");
    }
    assert!(bifold(&["verify", db]).ok().contains("sound"));
    let files = fs::read_dir(db).unwrap().map(|entry| entry.unwrap().path()).find(|path| text(path).ends_with(".val"));
    let salvaged = bifold(&["salvage", text(&files.unwrap()), "--out", out]).ok();
    assert!(salvaged.contains("20 keys"), "{salvaged}");
}
