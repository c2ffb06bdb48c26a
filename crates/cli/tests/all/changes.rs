//! `bifold changes`.

use bifold::{Db, KeyspaceOptions, MergeOperator, Options, RetainChanges};

use super::{Scratch, bifold, text};

/// One line per operation, from the number that was seen on, in words and as JSON.
#[test]
fn changes_are_printed_from_a_number_on() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let retain_changes = Some(RetainChanges { bytes: 1 << 20, age: None });
    let open = Db::open_with(&db, Options { retain_changes, ..Options::default() }).unwrap();
    let append = KeyspaceOptions { merge: Some(MergeOperator::append()), ..KeyspaceOptions::default() };
    let words = open.keyspace("words", append).unwrap();
    open.put("a\tb", "1\n").unwrap();
    words.merge("w", [0xFF]).unwrap();
    open.delete("a\tb").unwrap();
    open.delete_range("x".."z").unwrap();
    open.delete_range("zz"..).unwrap();
    drop(words);
    open.close().unwrap();
    let db = text(&db);
    let all = bifold(&["changes", db]).ok();
    let lines: Vec<(&str, &str)> = all.lines().map(|line| line.split_once('\t').unwrap()).collect();
    let words: Vec<&str> = lines.iter().map(|(_, rest)| *rest).collect();
    assert_eq!(
        words,
        [
            "default\tput\ta\\tb\t1\\n",
            "words\tmerge\tw\t\\xff",
            "default\tdelete\ta\\tb",
            "default\tdelete_range\tx\tz",
            "default\tdelete_range\tzz",
        ]
    );
    let rest = bifold(&["changes", db, "--since", lines[2].0]).ok();
    assert_eq!(rest.lines().collect::<Vec<_>>(), all.lines().skip(3).collect::<Vec<_>>());
    assert_eq!(bifold(&["changes", db, "--since", lines[4].0]).ok(), "");
    let json = bifold(&["changes", db, "--json", "--limit", "2"]).ok();
    let objects: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 2);
    assert_eq!((&objects[0]["key"], &objects[0]["value"]), (&"a\tb".into(), &"1\n".into()));
    assert_eq!((&objects[1]["kind"], &objects[1]["value_base64"]), (&"merge".into(), &"/w==".into()));
    assert_eq!(objects[1]["ends_commit"], true);
}

/// They are not printed, but their length is.
#[test]
fn large_values_are_printed_by_their_length() {
    let scratch = Scratch::new();
    let (db, source) = (scratch.path("db"), scratch.path("source"));
    let retain_changes = Some(RetainChanges { bytes: 1 << 20, age: None });
    let open = Db::open_with(&db, Options { retain_changes, ..Options::default() }).unwrap();
    open.put("first", "1").unwrap();
    open.close().unwrap();
    std::fs::write(&source, vec![b'x'; 2 << 20]).unwrap();
    bifold(&["put", text(&db), "film", "--value-file", text(&source)]).ok();
    bifold(&["put", text(&db), "film", "short"]).ok();
    let said = bifold(&["changes", text(&db)]).ok();
    let lines: Vec<&str> = said.lines().map(|line| line.split_once('\t').unwrap().1).collect();
    assert_eq!(lines, ["default\tput\tfirst\t1", "default\tput\tfilm\t[2097152 bytes]", "default\tput\tfilm\tshort"]);
    let json = bifold(&["changes", text(&db), "--json", "--since", "1", "--limit", "1"]).ok();
    let object: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&object["large_bytes"], object.get("value")), (&(2u64 << 20).into(), None));
}

/// What is not there is said, and how to have it.
#[test]
fn a_database_without_changes_is_refused_with_the_option_to_set() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "a", "1"]).ok();
    let said = bifold(&["changes", text(&db)]).refused(2);
    assert!(said.contains("retain_changes"), "{said}");
}

/// An opening is what changes how long changes are kept, and a refused command must not.
#[test]
fn a_refused_put_does_not_change_how_long_changes_are_kept() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "a", "1"]).ok();
    let keep = ["--set", "retain_changes.bytes=1MiB"];
    let refused = bifold(&[&["put", text(&db), "a", "2", "--merge"][..], &keep].concat()).refused(2);
    assert!(refused.contains("merge operator"), "{refused}");
    assert!(bifold(&["changes", text(&db)]).refused(2).contains("retain_changes"));
    bifold(&[&["put", text(&db), "a", "2"][..], &keep].concat()).ok();
    bifold(&["put", text(&db), "a", "3"]).ok();
    assert_eq!(bifold(&["changes", text(&db), "--since", "2"]).ok(), "3\tdefault\tput\ta\t3\n");
}

/// What is committed before it is started, and after.
#[test]
fn changes_of_a_running_writer_are_followed() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let retain_changes = Some(RetainChanges { bytes: 1 << 20, age: None });
    let writer = Db::open_with(&db, Options { retain_changes, ..Options::default() }).unwrap();
    writer.put("first", "1").unwrap();
    let said = bifold(&["changes", text(&db)]).ok();
    assert_eq!(said, "1\tdefault\tput\tfirst\t1\n");
    let follow = ["changes", text(&db), "--follow", "--limit", "3"];
    let following = std::thread::scope(|scope| {
        let following = scope.spawn(|| bifold(&follow).ok());
        while writer.stats().followers.readers == 0 {
            std::thread::yield_now();
        }
        writer.put("second", "2").unwrap();
        writer.flush().unwrap();
        writer.put("third", "3").unwrap();
        following.join().unwrap()
    });
    let keys: Vec<&str> = following.lines().map(|line| line.split('\t').nth(3).unwrap()).collect();
    assert_eq!(keys, ["first", "second", "third"]);
}

/// Those of one keyspace if it is named, even the default one, and of all without a name.
#[test]
fn changes_of_one_keyspace_are_those_that_were_asked_for() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    let retain_changes = Some(RetainChanges { bytes: 1 << 20, age: None });
    let open = Db::open_with(&db, Options { retain_changes, ..Options::default() }).unwrap();
    let users = open.keyspace("users", KeyspaceOptions::default()).unwrap();
    open.put("a", "1").unwrap();
    users.put("ada", "2").unwrap();
    let mut batch = open.batch();
    batch.put(&users, "bob", "3").unwrap().put(&users, "cyd", "4").unwrap();
    batch.put(open.default_keyspace(), "b", "5").unwrap();
    open.commit(batch).unwrap();
    users.put("dan", "6").unwrap();
    drop(users);
    open.close().unwrap();
    let keys = |more: &[&str]| -> Vec<String> {
        let said = bifold(&[&["changes", text(&db)], more].concat()).ok();
        said.lines().map(|line| line.split('\t').nth(3).unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&[]), ["a", "ada", "bob", "cyd", "b", "dan"]);
    assert_eq!(keys(&["--keyspace", "users"]), ["ada", "bob", "cyd", "dan"]);
    assert_eq!(keys(&["--keyspace", "default"]), ["a", "b"]);
    // A commit is printed whole, as far as it was asked for; operations that are not printed do not count.
    assert_eq!(keys(&["--keyspace", "users", "--limit", "1"]), ["ada"]);
    assert_eq!(keys(&["--keyspace", "users", "--limit", "2"]), ["ada", "bob", "cyd"]);
    assert_eq!(keys(&["--keyspace", "default", "--limit", "2"]), ["a", "b"]);
    assert_eq!(keys(&["--limit", "0"]), [""; 0]);
    let objects = bifold(&["changes", text(&db), "--keyspace", "users", "--json"]).json();
    let ends: Vec<_> = objects.iter().map(|object| object["ends_commit"].as_bool().unwrap()).collect();
    assert_eq!(ends, [true, false, true, true], "{objects:?}");
    let said = bifold(&["changes", text(&db), "--keyspace", "nobody"]).refused(2);
    assert!(said.contains("no keyspace `nobody`"), "{said}");
}
