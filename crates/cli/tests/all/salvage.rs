//! Value files whose index is lost.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Ran, Scratch, bifold, parse, text};

/// A database with separated values in two keyspaces, one key deleted, one value now inline; and its value files.
fn database(scratch: &Scratch) -> (PathBuf, Vec<PathBuf>) {
    let db = scratch.path("db");
    let lines: String = (0..200).map(|n| format!("key {n:03}\t{}\n", format!("{n} ").repeat(100))).collect();
    let file = scratch.write("in.tsv", lines);
    let placement = ["--set", "keyspace.placement=hashkv", "--set", "keyspace.values.space_target=100"];
    for keyspace in ["default", "users"] {
        bifold(&[&["import", text(&db), text(&file), "--keyspace", keyspace][..], &placement].concat()).ok();
    }
    bifold(&["del", text(&db), "key 003"]).ok();
    bifold(&["put", text(&db), "key 004", "small"]).ok();
    let files = value_files(&db);
    (db, files)
}

fn value_files(db: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(db).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| text(path).ends_with(".val")).collect();
    files.sort();
    files
}

fn salvage(files: &[PathBuf], more: &[&str]) -> Ran {
    let args: Vec<&str> =
        ["salvage"].into_iter().chain(files.iter().map(|f| text(f))).chain(more.iter().copied()).collect();
    bifold(&args)
}

fn exported(db: &Path, keyspace: &str) -> String {
    bifold(&["export", text(db), "--keyspace", keyspace]).ok()
}

#[test]
fn a_report_writes_nothing() {
    let scratch = Scratch::new();
    let (_, files) = database(&scratch);
    let before = fs::read_dir(scratch.path("")).unwrap().count();
    let said = salvage(&files, &[]).ok();
    assert!(said.contains("keyspace default  200 keys; newest records: 198 values, 1 delete,"), "{said}");
    assert!(said.contains("nothing was written: --out DIR"), "{said}");
    let keys = salvage(&files, &["--keys"]).ok();
    assert!(keys.contains("default\tkey 003\t401\tdeleted\n") && keys.contains("default\tkey 004\t402\tmoved\n"));
    let keys = salvage(&files, &["--keys", "--json"]).json();
    assert_eq!((keys.len(), &keys[3]["fate"], &keys[3]["value_seqno"]), (401, &"deleted".into(), &4.into()));
    assert_eq!((&keys[400]["ok"], &keys[400]["keyspaces"][0]["moved"]), (&true.into(), &1.into()));
    assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), before);
}

#[test]
fn a_new_database_has_what_the_files_had() {
    let scratch = Scratch::new();
    let (db, files) = database(&scratch);
    let lost = exported(&db, "users");
    let kept: String =
        exported(&db, "default").lines().filter(|l| !l.ends_with("small")).map(|l| format!("{l}\n")).collect();
    // Only the value files are left, in another directory.
    let files: Vec<PathBuf> = files
        .iter()
        .map(|file| {
            scratch.write(&format!("found/{}", file.file_name().unwrap().to_str().unwrap()), fs::read(file).unwrap())
        })
        .collect();
    fs::remove_dir_all(&db).unwrap();
    let to = scratch.path("new");
    let said = salvage(&files, &["--out", text(&to), "--set", "keyspace.placement=wisckey", "--json"]).json();
    let id = said[0]["keyspaces"].as_array().unwrap().iter().find(|k| k["name"] != "default").unwrap()["id"].clone();
    assert_eq!(exported(&to, "default"), kept);
    assert_eq!(exported(&to, &format!("keyspace-{id}")), lost);
    assert!(!scratch.path("new.partial").exists());
    assert_eq!(bifold(&["verify", text(&to), "--json"]).json()[0]["ok"], true);
    let (all, name) = (scratch.path("all"), format!("{id}=users"));
    salvage(&files, &["--out", text(&all), "--all", "--name", &name]).ok();
    assert_eq!(exported(&all, "default").lines().count(), 200);
    assert_eq!(exported(&all, "users"), lost);
    assert!(salvage(&files, &["--out", text(&all)]).refused(2).contains("not empty"));
}

#[test]
fn a_deleted_key_of_novkv_stays_deleted_once_compaction_has_seen_it() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("in.tsv", ["one", "two"].map(|key| format!("{key}\t{}\n", "value ".repeat(100))).concat());
    bifold(&["import", text(&db), text(&file), "--set", "keyspace.placement=novkv"]).ok();
    bifold(&["del", text(&db), "one"]).ok();
    assert!(salvage(&value_files(&db), &[]).ok().contains("2 keys; newest records: 2 values"));
    bifold(&["compact", text(&db)]).ok();
    let said = salvage(&value_files(&db), &[]).ok();
    assert!(said.contains("1 key; newest records: 1 value,") && said.contains(" 0 drop-keys"), "{said}");
    let to = scratch.path("new");
    let said = salvage(&value_files(&db), &["--out", text(&to), "--json"]).json();
    assert_eq!((&said[0]["files"][0]["drop_keys"], &said[0]["keyspaces"][0]["dropped"]), (&0.into(), &0.into()));
    assert_eq!(exported(&to, "default"), exported(&db, "default"));
}

#[test]
fn damage_is_reported_and_skipped_and_the_exit_code_is_1() {
    let scratch = Scratch::new();
    let (_, files) = database(&scratch);
    let sound: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let mut bytes = sound[0].clone();
    let at = bytes.len() / 2;
    bytes[at..at + 10].fill(0xFF);
    fs::write(&files[0], &bytes).unwrap();
    let to = scratch.path("new");
    let said = salvage(&files, &["--out", text(&to), "--json"]);
    assert_eq!((said.code, said.err.as_str()), (1, ""));
    let report = parse(std::str::from_utf8(&said.out).unwrap());
    let damage = &report[0]["files"][0]["damage"][0];
    let offset = damage["offset"].as_u64().unwrap();
    assert!((offset..offset + damage["bytes"].as_u64().unwrap()).contains(&(at as u64)), "{report:?}");
    let restored: u64 =
        report[0]["keyspaces"].as_array().unwrap().iter().map(|k| k["restored"].as_u64().unwrap()).sum();
    assert!((396..398).contains(&restored), "{restored}");
    for line in exported(&to, "default").lines() {
        let (key, value) = line.split_once('\t').unwrap();
        let n: u32 = key[4..].parse().unwrap();
        assert_eq!(value, format!("{n} ").repeat(100));
    }
    let said = salvage(&files, &[]);
    assert_eq!(said.code, 1);
    let said = String::from_utf8(said.out).unwrap();
    assert!(said.contains(&format!("bytes at offset {offset}: a record whose payload")), "{said}");
    assert!(fs::read(&files[0]).unwrap() == bytes, "files are not changed");
}

#[test]
fn other_files_are_refused_before_anything_is_created() {
    let scratch = Scratch::new();
    let (db, files) = database(&scratch);
    let to = scratch.path("new");
    let noise = scratch.write("noise", [9; 3000]);
    for other in [&db, &db.join("MANIFEST"), &noise, &db.join("999999.val")] {
        let line = salvage(&[files[0].clone(), other.clone()], &["--out", text(&to)]).refused(2);
        assert!(line.contains(text(other)), "{line}");
        assert!(!to.exists() && !scratch.path("new.partial").exists(), "{line}");
    }
}

/// A directory is salvaged as a whole: with `inline`, too, where value files have nothing.
#[test]
fn nothing_is_made_in_the_directory_of_a_damaged_database() {
    let scratch = Scratch::new();
    let (db, _) = database(&scratch);
    let before = fs::read_dir(&db).unwrap().count();
    for name in ["new", "new/deep"] {
        let refused = bifold(&["salvage", text(&db), "--out", text(&db.join(name))]).refused(2);
        assert!(refused.contains("lies within the database's own directory"), "{refused}");
    }
    assert_eq!(fs::read_dir(&db).unwrap().count(), before);
}

#[test]
fn a_damaged_database_comes_back_but_for_its_damaged_blocks() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let lines: String = (0..500).map(|n| format!("key {n:03}\t{}\n", format!("{n} ").repeat(40))).collect();
    let file = scratch.write("in.tsv", &lines);
    bifold(&["import", text(&db), text(&file)]).ok();
    bifold(&["del", text(&db), "key 003"]).ok();
    bifold(&["compact", text(&db)]).ok();
    let said = bifold(&["salvage", text(&db)]).ok();
    assert!(said.contains("nothing was written") && said.contains("499 keys"), "{said}");
    let to = scratch.path("whole");
    bifold(&["salvage", text(&db), "--out", text(&to)]).ok();
    assert_eq!(exported(&to, "default"), exported(&db, "default"));

    let mut tables: Vec<PathBuf> = fs::read_dir(&db).unwrap().map(|entry| entry.unwrap().path()).collect();
    tables.retain(|path| text(path).ends_with(".tbl"));
    let table = tables.into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    let at = bytes.len() / 3;
    bytes[at] ^= 1;
    fs::write(&table, bytes).unwrap();
    let to = scratch.path("rest");
    let ran = bifold(&["salvage", text(&db), "--out", text(&to), "--json"]);
    assert_eq!(ran.code, 1);
    let report = parse(std::str::from_utf8(&ran.out).unwrap());
    assert_eq!(report[0]["ok"], false);
    assert_eq!(report[0]["left_out"][0]["file"], text(&table));
    let rest = exported(&to, "default");
    assert!(rest.lines().count() > 450 && rest.lines().all(|line| lines.contains(line)), "{rest}");
    assert!(
        bifold(&["salvage", text(&db), "--all", "--out", text(&scratch.path("x"))]).refused(2).contains("value files")
    );
}
