//! Damage on disk is found, with file and offset.

use std::{fs, path::PathBuf};

use super::{Scratch, bifold, parse, text};

/// A database with tables and a log.
fn database(scratch: &Scratch) -> PathBuf {
    let db = scratch.database();
    bifold(&["put", text(&db), "in the log", "only"]).ok();
    db
}

fn largest_file(db: &std::path::Path) -> PathBuf {
    let files = fs::read_dir(db).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

#[test]
fn a_sound_database_is_sound() {
    let scratch = Scratch::new();
    let db = database(&scratch);
    assert!(bifold(&["verify", text(&db)]).ok().contains("sound"));
    let report = bifold(&["verify", text(&db), "--json"]).json();
    assert_eq!(report[0]["ok"], true);
    assert!(report[0]["bytes"].as_u64().unwrap() > 10_000, "{report:?}");
}

#[test]
fn a_flipped_byte_is_found_and_named_with_its_offset() {
    let scratch = Scratch::new();
    let db = database(&scratch);
    let victim = largest_file(&db);
    let sound = fs::read(&victim).unwrap();
    for at in [sound.len() / 3, sound.len() / 2, sound.len() * 2 / 3] {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        fs::write(&victim, &damaged).unwrap();
        let said = bifold(&["verify", text(&db)]);
        let out = String::from_utf8(said.out).unwrap();
        assert_eq!((said.code, said.err.as_str()), (1, ""), "{out}");
        assert!(out.contains(text(&victim)) && out.contains("at offset "), "{out}");
        let said = bifold(&["verify", text(&db), "--json"]);
        assert_eq!(said.code, 1);
        let report = parse(std::str::from_utf8(&said.out).unwrap());
        assert_eq!(report[0]["ok"], false);
        assert_eq!(report[0]["problems"][0]["file"], text(&victim));
        assert!(report[0]["problems"][0]["offset"].as_u64().unwrap() <= at as u64, "{report:?}");
    }
    fs::write(&victim, &sound).unwrap();
    bifold(&["verify", text(&db)]).ok();
}
