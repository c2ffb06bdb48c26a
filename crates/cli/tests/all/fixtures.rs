//! The program reads the databases that older releases wrote: `fixtures/README.md`.

use std::{fs, path::Path};

use super::{Scratch, bifold, text};

#[test]
fn databases_of_older_releases_are_sound_and_export_what_they_always_did() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let directories = fs::read_dir(&fixtures).unwrap().map(|entry| entry.unwrap().path());
    let mut seen = 0;
    for fixture in directories.filter(|path| path.is_dir()) {
        let scratch = Scratch::new();
        for file in fs::read_dir(fixture.join("database")).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_name().unwrap().to_str().unwrap();
            scratch.write(&format!("db/{name}"), fs::read(&file).unwrap());
        }
        let db = scratch.path("db");
        assert_eq!(bifold(&["verify", text(&db), "--json"]).json()[0]["ok"], true);
        let files = fs::read_dir(&fixture).unwrap().map(|entry| entry.unwrap().path());
        for export in files.filter(|path| path.is_file()) {
            let (keyspace, format) = (export.file_stem().unwrap(), export.extension().unwrap());
            let (keyspace, format) = (keyspace.to_str().unwrap(), format.to_str().unwrap());
            let golden = fs::read_to_string(&export).unwrap();
            let exported = bifold(&["export", text(&db), "--keyspace", keyspace, "--format", format]).ok();
            assert_eq!(exported, golden, "{}: {keyspace}", fixture.display());
            seen += exported.lines().count();
        }
    }
    assert!(seen > 400, "only {seen} entries");
}
