//! A copy with another placement has the same entries, and gets its name only when it is complete.

use std::{fs, path::PathBuf};

use super::{Scratch, bifold, command, text};

/// A database with two keyspaces, overwritten and deleted keys.
fn database(scratch: &Scratch) -> PathBuf {
    let db = scratch.path("db");
    let lines: String = (0..3000).map(|n| format!("key {n:06}\t{}\n", "value ".repeat(n % 90))).collect();
    let file = scratch.write("in.tsv", lines);
    bifold(&["import", text(&db), text(&file)]).ok();
    bifold(&["import", text(&db), text(&file), "--keyspace", "packed", "--set", "keyspace.compression=lz4"]).ok();
    bifold(&["put", text(&db), "key 000007", &"new ".repeat(100)]).ok();
    bifold(&["del", text(&db), "key 000008", "key 000009"]).ok();
    db
}

fn exported(db: &std::path::Path) -> Vec<String> {
    ["default", "packed"].map(|keyspace| bifold(&["export", text(db), "--keyspace", keyspace]).ok()).to_vec()
}

#[test]
fn every_placement_holds_the_same_entries() {
    let scratch = Scratch::new();
    let mut from = database(&scratch);
    let all = exported(&from);
    for placement in ["novkv", "diffkv", "unikv", "wisckey", "auto", "hashkv", "inline"] {
        let to = scratch.path(placement);
        let said = bifold(&["convert", text(&from), text(&to), "--placement", placement, "--json"]).json();
        assert_eq!(
            (said[0]["entries"].as_u64(), said[0]["keyspaces"][1]["entries"].as_u64()),
            (Some(5998), Some(3000))
        );
        assert!(exported(&to) == all, "{placement}");
        assert_eq!(said[0]["placement"], if placement == "auto" { "streams" } else { placement });
        assert_eq!(bifold(&["verify", text(&to), "--json"]).json()[0]["ok"], true);
        let values = fs::read_dir(&to).unwrap().filter(|e| text(&e.as_ref().unwrap().path()).ends_with(".val")).count();
        // `unikv` separates values when level 0 is full, `auto` only longer ones.
        assert_eq!(values == 0, ["inline", "unikv", "auto"].contains(&placement), "{placement}: {values} value files");
        assert!(!scratch.path(&format!("{placement}.partial")).exists());
        from = to;
    }
    assert!(exported(&scratch.path("db")) == all, "the source is as it was");
}

#[test]
fn keyspaces_keep_their_options_except_those_that_are_set() {
    let scratch = Scratch::new();
    let (db, to) = (database(&scratch), scratch.path("new"));
    let set = ["--set", "keyspace.values.separate_from_bytes=1MiB", "--set", "memory_limit=64MiB"];
    let args = [&["convert", text(&db), text(&to), "--placement", "hashkv"][..], &set].concat();
    assert!(bifold(&args).ok().contains("5 998 entries"));
    let manifest = String::from_utf8_lossy(&fs::read(to.join("MANIFEST")).unwrap()).into_owned();
    assert!(
        manifest.contains("compression = \"lz4\"") && manifest.contains("separate_from_bytes = 1048576"),
        "{manifest}"
    );
    // A later opening needs no --set.
    bifold(&["put", text(&to), "k", "v"]).ok();
}

#[test]
fn existing_files_are_named_and_left_alone() {
    let scratch = Scratch::new();
    let db = database(&scratch);
    let (used, partial) = (scratch.path("used"), scratch.path("new.partial"));
    scratch.write("used/file", "mine");
    scratch.write("new.partial/file", "mine");
    let convert = |to: &str| bifold(&["convert", text(&db), to, "--placement", "hashkv"]).refused(2);
    assert!(convert(text(&used)).contains("not empty"));
    assert!(convert(text(&db)).contains("not empty"));
    assert!(convert(text(&scratch.path("used/file"))).contains("not empty"));
    let line = convert(text(&scratch.path("new")));
    assert!(line.contains(text(&partial)) && line.contains("remove it"), "{line}");
    assert_eq!(fs::read_dir(&used).unwrap().count() + fs::read_dir(&partial).unwrap().count(), 2);
    std::os::unix::fs::symlink(&db, scratch.path("link")).unwrap();
    for within in ["db/new", "db/new/deep", "link/new", "used/../db/new"] {
        let line = convert(text(&scratch.path(within)));
        assert!(line.contains("lies within the database's own directory"), "{line}");
    }
    assert!(convert(text(&scratch.path("none/../db/new"))).contains("has `..` after"));
    assert!(!db.join("new").exists() && !db.join("new.partial").exists());
    let line = bifold(&["convert", text(&db), text(&scratch.path("x")), "--placement", "nonesuch"]).refused(2);
    assert!(line.contains("nonesuch") && !scratch.path("x.partial").exists(), "{line}");
    // An empty directory is as good as none.
    fs::create_dir(scratch.path("empty")).unwrap();
    bifold(&["convert", text(&db), &format!("{}/", text(&scratch.path("empty"))), "--placement", "hashkv"]).ok();
    assert!(exported(&scratch.path("empty")) == exported(&db));
}

/// A directory cannot be renamed to a symbolic link: that is said before anything is copied.
#[test]
fn a_name_that_the_copy_could_not_get_is_refused_at_once() {
    let scratch = Scratch::new();
    let (db, real, link) = (scratch.path("db"), scratch.path("real"), scratch.path("link"));
    bifold(&["put", text(&db), "k", "v"]).ok();
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    for to in [text(&link).to_owned(), format!("{}/", text(&link))] {
        for args in [&["convert", text(&db), &to, "--placement", "hashkv"][..], &["salvage", text(&db), "--out", &to]] {
            let line = bifold(args).refused(2);
            assert!(line.contains("link is a symbolic link"), "{args:?}: {line}");
            assert!(!scratch.path("link.partial").exists() && link.is_symlink(), "{args:?}");
            assert_eq!(fs::read_dir(&real).unwrap().count(), 0, "{args:?}");
        }
    }
    // The directory that it leads to is as good as any other.
    bifold(&["convert", text(&db), text(&real), "--placement", "hashkv"]).ok();
    assert_eq!(bifold(&["get", text(&link), "k"]).ok(), "v");
}

#[test]
fn a_source_that_is_open_elsewhere_is_reported_as_locked() {
    let scratch = Scratch::new();
    let (db, to) = (database(&scratch), scratch.path("new"));
    // The demo's writer holds the database until its pipe closes.
    let mut writer = command(&["demo-writer", text(&db)]).spawn().unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut byte).unwrap();
    let line = bifold(&["convert", text(&db), text(&to), "--placement", "hashkv"]).refused(2);
    assert!(line.contains("locked") && !to.exists() && !scratch.path("new.partial").exists(), "{line}");
    writer.kill().unwrap();
    writer.wait().unwrap();
}

#[test]
fn a_damaged_source_leaves_only_a_partial_directory() {
    let scratch = Scratch::new();
    let (db, to) = (database(&scratch), scratch.path("new"));
    bifold(&["compact", text(&db)]).ok();
    let tables = fs::read_dir(&db).unwrap().map(|entry| entry.unwrap().path());
    let victim = tables.filter(|p| text(p).ends_with(".tbl")).max_by_key(|p| fs::metadata(p).unwrap().len()).unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x10;
    fs::write(&victim, bytes).unwrap();
    let line = bifold(&["convert", text(&db), text(&to), "--placement", "hashkv"]).refused(2);
    let partial = scratch.path("new.partial");
    assert!(line.contains(text(&victim)) && line.contains(text(&partial)) && !to.exists(), "{line}");
    assert!(partial.exists());
}
