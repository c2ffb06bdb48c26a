//! Placements of others: registered, missing, misnamed.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bifold::{
    Access, Db, Env, Error, KeyspaceOptions, Options, PlacementKind,
    placement::{self, Registry, ValueFiles},
    salvage::{Salvage, SalvageOptions},
};

use crate::support::{TempDir, check_filled, fill, tiny};

#[allow(dead_code, reason = "its `main` is another program")]
#[path = "../../examples/own_placement.rs"]
mod example;

fn registered() -> Registry {
    Registry::default().with(example::NAME, example::AppendOnly::open).unwrap()
}

fn own() -> KeyspaceOptions {
    let mut keyspace = KeyspaceOptions { placement: PlacementKind::own(example::NAME).unwrap(), ..tiny().keyspace };
    (keyspace.values.separate_from_bytes, keyspace.values.file_bytes) = (Some(1), 4 << 10);
    keyspace
}

/// A closed database with a keyspace `papers` of this placement, and an inline keyspace `default`.
fn database(path: &Path) {
    let db = Db::open_with(path, Options { placements: registered(), ..tiny() }).unwrap();
    let papers = db.keyspace("papers", own()).unwrap();
    (0..3).for_each(|round| fill(&papers, 300, &format!("round {round}")));
    fill(db.default_keyspace(), 50, "inline");
    db.flush().unwrap();
    // In no table yet: replay has to find them.
    fill(&papers, 20, "the last");
    db.close().unwrap();
}

fn check(db: &Db) {
    let papers = db.existing_keyspace("papers").unwrap().unwrap();
    check_filled(db.default_keyspace(), 50, "inline");
    for number in 0..300 {
        let round = if number < 20 { "the last" } else { "round 2" };
        let found = papers.get(format!("key{number:04}")).unwrap();
        assert_eq!(found.as_deref(), Some(crate::support::value(number, round).as_bytes()));
    }
}

fn bytes_of(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.display().to_string(), std::fs::read(file).unwrap())).collect()
}

#[test]
fn a_database_whose_placement_is_missing_is_not_opened_and_not_changed() {
    let dir = TempDir::new();
    let path = dir.join("db");
    database(&path);
    let before = bytes_of(&path);
    let other = Registry::default().with("another", example::AppendOnly::open).unwrap();
    for placements in [Registry::default(), other] {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let options = Options { access, placements: placements.clone(), ..tiny() };
            let error = Db::open_with(&path, options).unwrap_err().to_string();
            assert!(error.contains("keyspace `papers` has placement `append_only`"), "{error}");
            assert!(error.contains("not registered"), "{error}");
            assert!(bytes_of(&path) == before, "files changed");
        }
    }
    let report = bifold::verify(&path).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(bytes_of(&path) == before, "files changed");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        check(&Db::open_with(&path, Options { access, placements: registered(), ..tiny() }).unwrap());
    }
}

/// The files name no placement, so another one can take what they hold.
#[test]
fn value_files_are_salvaged_without_the_placement() {
    let dir = TempDir::new();
    let path = dir.join("db");
    database(&path);
    let files: Vec<_> = bytes_of(&path).into_keys().filter(|file| file.ends_with(".val")).collect();
    let out = Db::open_with(dir.join("out"), tiny()).unwrap();
    let salvage = Salvage::open(&Env::system(), &files, &SalvageOptions::default()).unwrap();
    salvage.restore(&out, |_| ()).unwrap();
    let found: usize =
        out.keyspace_names().iter().map(|name| out.existing_keyspace(name).unwrap().unwrap().iter().count()).sum();
    assert_eq!(found, 300);
}

#[test]
fn a_checkpoint_keeps_the_placement() {
    let dir = TempDir::new();
    let path = dir.join("db");
    database(&path);
    let options = Options { placements: registered(), ..tiny() };
    let db = Db::open_with(&path, options.clone()).unwrap();
    db.checkpoint(dir.join("copy")).unwrap();
    let papers = db.existing_keyspace("papers").unwrap().unwrap();
    assert_eq!(db.stats().keyspaces.iter().filter(|keyspace| keyspace.placement == example::NAME).count(), 1);
    papers.delete_range::<&[u8]>(..).unwrap();
    db.compact().unwrap();
    assert_eq!(papers.iter().count(), 0);
    assert!(db.stats().space.values_bytes < 8 << 10, "{:?}", db.stats().space);
    drop((papers, db));
    assert!(Db::open_with(dir.join("copy"), tiny()).is_err());
    check(&Db::open_with(dir.join("copy"), options).unwrap());
}

#[test]
fn a_keyspace_with_an_unknown_placement_is_not_created() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    let error = db.keyspace("papers", own()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("keyspace `papers` has placement `append_only`"), "{error}");
    assert_eq!(db.keyspace_names(), ["default"]);
    db.put("a", "b").unwrap();
    drop(db);
    // As the default keyspace's, too: its placement is asked for when it is opened.
    let error = Db::open_with(dir.join("db"), Options { keyspace: own(), ..tiny() }).unwrap_err().to_string();
    assert!(error.contains("keyspace `default` has placement `streams`, which cannot be changed"), "{error}");
    let error = Db::open_with(dir.join("new"), Options { keyspace: own(), ..tiny() }).unwrap_err().to_string();
    assert!(error.contains("keyspace `default` has placement `append_only`"), "{error}");
}

#[test]
fn names_are_short_unique_and_those_of_the_placement() {
    for name in ["", "two words", "größe", "a/b", &"x".repeat(33)] {
        assert!(PlacementKind::own(name).is_err(), "{name}");
        assert!(Registry::default().with(name, example::AppendOnly::open).is_err(), "{name}");
    }
    let longest = "A-z_9".repeat(6) + "12";
    assert_eq!(PlacementKind::own(&longest).unwrap().name(), longest);
    assert!(registered().with(example::NAME, example::AppendOnly::open).is_err(), "registered twice");
    let dir = TempDir::new();
    let placements = Registry::default().with("alias", example::AppendOnly::open).unwrap();
    let keyspace = KeyspaceOptions { placement: PlacementKind::own("alias").unwrap(), ..own() };
    let error = Db::open_with(dir.join("db"), Options { placements, keyspace, ..tiny() }).unwrap_err().to_string();
    assert!(error.contains("the placement registered as `alias` calls itself `append_only`"), "{error}");
}

/// A factory's error is the error of opening; the options that it gets are those of the keyspace.
#[test]
fn a_factory_gets_the_options_of_the_keyspace_and_may_refuse_them() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let open = move |files: &Arc<ValueFiles>,
                     options: &placement::Settings|
          -> bifold::Result<Box<dyn placement::Placement>> {
        counted.fetch_add(1, Ordering::Relaxed);
        if options.now().separates_from() > 100 {
            return Err(Error::InvalidArgument { what: "values".into(), reason: "too long for me".into() });
        }
        example::AppendOnly::open(files, options)
    };
    let placements = Registry::default().with(example::NAME, open).unwrap();
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), Options { placements, ..tiny() }).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let mut refused = own();
    refused.values.separate_from_bytes = Some(101);
    let error = db.keyspace("papers", refused).unwrap_err().to_string();
    assert!(error.contains("too long for me"), "{error}");
    fill(&db.keyspace("papers", own()).unwrap(), 10, "x");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn the_name_is_an_option_and_the_registry_outlasts_changes_of_options() {
    let mut options = Options { placements: registered(), ..Options::default() };
    options.set("keyspace.placement.own=append_only").unwrap();
    assert_eq!(options.keyspace.placement, own().placement);
    assert_eq!(format!("{:?}", options.placements), "{\"append_only\"}");
    options.set("memory_limit=64MiB").unwrap();
    assert_eq!(options.placements.names().count(), 1);
    assert!(options.to_toml().contains("own = \"append_only\""), "{}", options.to_toml());
    let read = Options::from_toml(&options.to_toml()).unwrap();
    assert_eq!(read.keyspace, options.keyspace);
    assert_eq!(read.placements, Registry::default(), "code is not in TOML");
    assert!(options.set("keyspace.placement.own=no name").is_err());
    options.set("keyspace.placement=wisckey").unwrap();
    assert_eq!(options.keyspace.placement, PlacementKind::WiscKey);
    let text = "[keyspace.placement]\nown = \"two words\"";
    assert!(Options::from_toml(text).unwrap_err().to_string().contains("1 to 32 ASCII letters"));
}
