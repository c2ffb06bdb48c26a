//! Backups at the command line: made, listed, checked, restored and pruned.

use std::{fs, path::Path};

use super::{Scratch, bifold, parse, text};

fn exported(db: &Path) -> String {
    bifold(&["export", text(db)]).ok()
}

#[test]
fn a_backup_is_made_listed_checked_restored_and_pruned() {
    let scratch = Scratch::new();
    let (db, repository) = (scratch.database(), scratch.path("backups"));
    let create = ["backup", "create", text(&db), text(&repository)];
    assert!(bifold(&create).ok().contains("generation 1 of"));
    let first = exported(&db);
    bifold(&["put", text(&db), "new", "value"]).ok();
    let made = bifold(&[&create[..], &["--json", "--rate", "100MiB"]].concat()).json().remove(0);
    assert_eq!(made["number"], 2);
    assert!(made["new_bytes"].as_u64().unwrap() * 4 < made["bytes"].as_u64().unwrap(), "{made}");

    let listed = bifold(&["backup", "list", text(&repository)]).ok();
    assert!(listed.lines().count() == 3 && listed.contains("UTC") && listed.contains(text(&db)), "{listed}");
    let rows = bifold(&["backup", "list", text(&repository), "--json"]).json();
    assert_eq!(rows.iter().map(|row| row["number"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert!(bifold(&["backup", "verify", text(&repository)]).ok().contains("sound"));

    let (newest, older) = (scratch.path("newest"), scratch.path("older"));
    assert!(bifold(&["backup", "restore", text(&repository), text(&newest)]).ok().contains("is restored and checked"));
    bifold(&["backup", "restore", text(&repository), text(&older), "--generation", "1"]).ok();
    assert_eq!((exported(&newest), exported(&older)), (exported(&db), first));
    let refused = bifold(&["backup", "restore", text(&repository), text(&newest)]).refused(2);
    assert!(refused.contains("exists: give a new directory"), "{refused}");

    let pruned = bifold(&["backup", "prune", text(&repository), "--keep", "1", "--json"]).json().remove(0);
    assert_eq!(pruned["generations"], serde_json::json!([1]));
    assert!(bifold(&["backup", "verify", text(&repository)]).ok().contains("sound"));
    let refused = bifold(&["backup", "list", text(&db)]).refused(2);
    assert!(refused.contains("holds no backup"), "{refused}");
}

#[test]
fn damage_in_a_repository_is_named_and_the_exit_code_says_so() {
    let scratch = Scratch::new();
    let (db, repository) = (scratch.database(), scratch.path("backups"));
    bifold(&["backup", "create", text(&db), text(&repository)]).ok();
    let files = fs::read_dir(repository.join("files")).unwrap().map(|entry| entry.unwrap().path());
    let victim = files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    bytes[1000] ^= 1;
    fs::write(&victim, bytes).unwrap();
    let said = bifold(&["backup", "verify", text(&repository), "--json"]);
    assert_eq!(said.code, 1);
    let report = parse(std::str::from_utf8(&said.out).unwrap());
    assert_eq!(report[0]["problems"][0]["file"], text(&victim));
    let refused = bifold(&["backup", "restore", text(&repository), text(&scratch.path("to"))]).refused(2);
    assert!(refused.contains(text(&victim)) && !scratch.path("to").exists(), "{refused}");
    let record = repository.join("generations/000001.gen");
    fs::write(&record, "short").unwrap();
    let said = bifold(&["backup", "list", text(&repository)]);
    let out = String::from_utf8(said.out).unwrap();
    assert!(said.code == 1 && out.contains("damaged") && out.contains(text(&record)), "{out}");
}

#[test]
fn a_database_with_control_characters_in_its_name_takes_one_line_of_the_list() {
    let scratch = Scratch::new();
    let (db, repository) = (scratch.path("odd\nna\x1bme"), scratch.path("backups"));
    bifold(&["put", text(&db), "k", "v"]).ok();
    bifold(&["backup", "create", text(&db), text(&repository)]).ok();
    let listed = bifold(&["backup", "list", text(&repository)]).ok();
    assert!(listed.lines().count() == 2 && listed.contains(r"odd\nna\x1bme"), "{listed}");
    let rows = bifold(&["backup", "list", text(&repository), "--json"]).json();
    assert_eq!(rows[0]["database"], text(&db));
}
