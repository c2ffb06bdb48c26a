//! A database with a merge operator that the program does not have.

use bifold::{Db, KeyspaceOptions, MergeOperator, MergeOperators, Options};

use super::{Scratch, bifold, text};

/// The program looks after it. What has operands cannot be read, and nothing of it is lost.
#[test]
fn an_operator_that_the_program_does_not_have_is_left_alone() {
    let scratch = Scratch::new();
    let (db, out) = (scratch.path("db"), scratch.path("out"));
    let last = || MergeOperator::new("last", |_, _, newer| Ok(newer.to_vec())).unwrap();
    let with_last =
        || Options { merge_operators: MergeOperators::default().with(last()).unwrap(), ..Options::default() };
    let open = Db::open_with(&db, with_last()).unwrap();
    let words = open.keyspace("words", KeyspaceOptions { merge: Some(last()), ..KeyspaceOptions::default() }).unwrap();
    words.put("whole", "value").unwrap();
    words.put("k", "a").unwrap();
    words.merge("k", "b").unwrap();
    words.merge("k", "c").unwrap();
    drop(words);
    open.close().unwrap();
    let (db_text, out) = (text(&db), text(&out));
    for args in [&["stats", db_text][..], &["compact", db_text], &["gc", db_text], &["verify", db_text]] {
        bifold(args).ok();
    }
    assert_eq!(bifold(&["get", db_text, "whole", "--keyspace", "words"]).ok().trim(), "value");
    for args in [
        &["get", db_text, "k", "--keyspace", "words"][..],
        &["export", db_text, "--keyspace", "words"],
        &["convert", db_text, out, "--placement", "hashkv"],
    ] {
        let said = bifold(args).refused(2);
        assert!(said.contains("merge operator `last`") && said.contains("key `k` of keyspace `words`"), "{said}");
        assert!(!std::fs::exists(out).unwrap(), "{args:?}");
    }
    bifold(&["checkpoint", db_text, out]).ok();
    for path in [db.as_path(), out.as_ref()] {
        let open = Db::open_with(path, with_last()).unwrap();
        let words = open.existing_keyspace("words").unwrap().unwrap();
        assert_eq!(words.get("k").unwrap().as_deref(), Some(&b"c"[..]));
        drop(words);
        open.close().unwrap();
    }
}

/// Salvage combines operands of Bifold's own operators, and says of which other ones it does not.
#[test]
fn salvage_names_the_operator_that_it_lacks() {
    let scratch = Scratch::new();
    let (db, out) = (scratch.path("db"), scratch.path("out"));
    let last = MergeOperator::new("last", |_, _, newer| Ok(newer.to_vec())).unwrap();
    let mut options =
        Options { merge_operators: MergeOperators::default().with(last.clone()).unwrap(), ..Options::default() };
    options.keyspace.merge = Some(MergeOperator::append());
    let open = Db::open_with(&db, options.clone()).unwrap();
    open.default_keyspace().merge("text", "a").unwrap();
    open.default_keyspace().merge("text", "b").unwrap();
    let words = open.keyspace("words", KeyspaceOptions { merge: Some(last), ..KeyspaceOptions::default() }).unwrap();
    words.put("whole", "value").unwrap();
    words.put("k", "a").unwrap();
    words.merge("k", "b").unwrap();
    drop(words);
    let plain = open.keyspace("plain", KeyspaceOptions::default()).unwrap();
    plain.put_with_ttl("k", "expires", std::time::Duration::from_secs(1000)).unwrap();
    drop(plain);
    // As if the process had been killed.
    let held = open.snapshot();
    let copy = scratch.path("killed");
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(&db).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    drop(held);
    open.close().unwrap();
    let args = ["salvage", text(&copy), "--out", text(&out), "--set", "keyspace.merge=append"];
    let ran = bifold(&args);
    assert_eq!(ran.code, 1, "{ran:?}");
    let said = String::from_utf8(ran.out).unwrap();
    assert!(said.contains("the value of key `k`") && said.contains("the operands of 1 key: "), "{said}");
    assert!(said.contains("merge operator `last`") && said.contains("SalvageOptions::merge_operators"), "{said}");
    assert_eq!(bifold(&["get", text(&out), "text"]).ok().trim(), "ab");
    assert_eq!(bifold(&["get", text(&out), "whole", "--keyspace", "words"]).ok().trim(), "value");
    assert_eq!(bifold(&["get", text(&out), "k", "--keyspace", "plain"]).ok().trim(), "expires");
    // The keyspaces have the operators that they had.
    let open = Db::open_with(&out, options).unwrap();
    open.default_keyspace().merge("text", "c").unwrap();
    let words = open.existing_keyspace("words").unwrap().unwrap();
    words.merge("k", "d").unwrap();
    assert_eq!(words.get("k").unwrap().as_deref(), Some(&b"d"[..]));
    drop(words);
    open.close().unwrap();
}
