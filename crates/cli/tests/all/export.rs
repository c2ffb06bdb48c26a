//! `export --skip-damaged`: what is left out is reported, and the rest is exported.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Ran, Scratch, bifold, parse, text};

fn file_with(db: &Path, extension: &str) -> PathBuf {
    let files = fs::read_dir(db).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == extension));
    files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn lines(ran: &Ran) -> Vec<String> {
    String::from_utf8(ran.out.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_damaged_block_costs_its_keys_and_the_report_names_them() {
    let scratch = Scratch::new();
    let db = scratch.database();
    let all: Vec<String> = bifold(&["export", text(&db)]).ok().lines().map(str::to_owned).collect();
    assert_eq!(bifold(&["export", text(&db), "--skip-damaged"]).ok().lines().collect::<Vec<_>>(), all);
    let table = file_with(&db, "tbl");
    flip(&table, 10);

    let refused = bifold(&["export", text(&db)]);
    assert!(refused.code == 2 && refused.err.contains("--skip-damaged"), "{refused:?}");

    let left = bifold(&["export", text(&db), "--skip-damaged"]);
    assert_eq!(left.code, 1, "{left:?}");
    assert!(left.err.contains(text(&table)) && left.err.contains("at offset 0"), "{}", left.err);
    assert!(left.err.contains("`key 000000`") && left.err.contains("not complete: 1 damaged block"), "{}", left.err);
    let exported = lines(&left);
    assert!(exported.len() > 1500 && exported.len() < all.len() && all.ends_with(&exported), "{}", exported.len());

    let left = bifold(&["export", text(&db), "--skip-damaged", "--json"]);
    let entries = parse(std::str::from_utf8(&left.out).unwrap());
    let report = parse(left.err.lines().next().unwrap());
    assert_eq!((left.code, entries.len()), (1, exported.len()));
    assert_eq!((&report[0]["left_out"], &report[0]["offset"]), (&"block".into(), &0.into()), "{report:?}");
    assert_eq!((&report[0]["first"], &report[0]["file"]), (&"key 000000".into(), &text(&table).into()), "{report:?}");
    let last = report[0]["last"].as_str().unwrap();
    assert!(last < entries[0]["key"].as_str().unwrap(), "{last}");
}

#[test]
fn a_damaged_value_costs_its_key() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let file = scratch.write("in.tsv", (0..50).map(|n| format!("k{n:02}\t{}\n", "v".repeat(3000))).collect::<String>());
    let words = ["import", text(&db), text(&file), "--set", "keyspace.preset=wisckey"];
    bifold(&words).ok();
    bifold(&["compact", text(&db)]).ok();
    let values = file_with(&db, "val");
    flip(&values, fs::metadata(&values).unwrap().len() as usize / 2);
    let refused = bifold(&["export", text(&db)]);
    assert!(refused.code == 2 && refused.err.contains("--skip-damaged"), "{refused:?}");
    let left = bifold(&["export", text(&db), "--skip-damaged"]);
    assert_eq!((left.code, lines(&left).len()), (1, 49), "{}", left.err);
    assert!(left.err.contains("left out key `k") && left.err.contains(text(&values)), "{}", left.err);
    let left = bifold(&["export", text(&db), "--skip-damaged", "--json"]);
    let report = parse(left.err.lines().next().unwrap());
    assert_eq!((left.code, &report[0]["left_out"]), (1, &"value".into()), "{report:?}");
    assert!(report[0]["offset"].as_u64().is_some() && report[0]["first"] == report[0]["last"], "{report:?}");
}
