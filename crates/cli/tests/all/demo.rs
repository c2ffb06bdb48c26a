//! demo: the first command a user types.

use super::{Scratch, bifold, text};

fn tree(scratch: &Scratch) {
    for n in 0..40 {
        scratch.write(&format!("tree/part{}/file {n}", n % 3), format!("content of {n}\n").repeat(n + 1));
    }
    scratch.write("tree/.git/never", "imported");
    scratch.write("tree/target/never", "imported");
}

#[test]
fn the_demo_keeps_acknowledged_commits_and_prints_what_to_type_next() {
    let scratch = Scratch::new();
    tree(&scratch);
    let db = scratch.path("demo's db");
    let said = bifold(&["demo", text(&scratch.path("tree")), "--dir", text(&db)]).ok();
    for word in ["imported 40 files", "overwrote 14", "kill -9", "nothing lost", "verified every byte", "type next"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(bifold(&["verify", text(&db)]).ok().contains("sound"));
    assert_eq!(bifold(&["scan", text(&db), "--prefix", ".git"]).ok(), "");

    // Every command it proposes works in a shell, except the long one.
    let next = said.split("What to type next").nth(1).unwrap();
    let commands: Vec<&str> =
        next.lines().filter_map(|line| line.split_once("  #")).map(|(command, _)| command.trim()).collect();
    assert!(commands.len() >= 6, "{said}");
    for command in commands.iter().filter(|command| !command.contains(" bench ")) {
        let output = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{command}: {output:?}");
    }
}

#[test]
fn the_demo_takes_files_of_lines_and_entries_and_prints_json() {
    let scratch = Scratch::new();
    for (name, content) in [
        ("words.txt", (0..100).map(|n| format!("word {n}\n")).collect::<String>()),
        ("entries.tsv", (0..100).map(|n| format!("k{n}\tv{n}\n")).collect()),
    ] {
        let file = scratch.write(name, content);
        let db = scratch.path(&format!("{name}.db"));
        let figures = bifold(&["demo", text(&file), "--dir", text(&db), "--json"]).json();
        assert_eq!(figures[0]["imported"], 100);
        assert_eq!(figures[0]["checked"].as_u64(), figures[0]["kept"].as_u64().map(|kept| kept + 90));
        assert!(figures[0]["kept"].as_u64() >= figures[0]["acknowledged"].as_u64());
        assert!(figures[0]["acknowledged"].as_u64() > Some(0));
    }
}

#[test]
fn the_demo_refuses_what_it_cannot_show() {
    let scratch = Scratch::new();
    tree(&scratch);
    let (from, db) = (scratch.path("tree"), scratch.path("db"));
    std::fs::create_dir(scratch.path("empty")).unwrap();
    let missing = scratch.path("missing");
    let bad = scratch.write("bad.tsv", "k\tv\nno tab here\n");
    let (no_lines, no_entries) = (scratch.write("empty.txt", ""), scratch.write("empty.tsv", ""));
    // The demo's own writer uses such keys.
    let taken = scratch.write("taken.tsv", "k\tv\nkilled-writer/7\tv\n");
    scratch.write("own/killed-writer/0000000001", "v");
    for (args, why) in [
        (&["demo", text(&from), "--dir", text(&from)][..], "exists"),
        (&["demo", text(&missing), "--dir", text(&db)], "cannot open"),
        (&["demo", text(&scratch.path("empty")), "--dir", text(&db)], "no files"),
        (&["demo", text(&from), "--dir", text(&db), "--durability", "memory"], "durability"),
        (&["demo", text(&bad), "--dir", text(&db)], "bad.tsv:2:"),
        (&["demo", text(&no_lines), "--dir", text(&db)], "is empty"),
        (&["demo", text(&no_entries), "--dir", text(&db)], "no entry"),
        (&["demo", text(&taken), "--dir", text(&db)], "taken.tsv has key `killed-writer/7`"),
        (&["demo", text(&scratch.path("own")), "--dir", text(&db)], "own has key `killed-writer/0000000001`"),
    ] {
        let line = bifold(args).refused(2);
        assert!(line.contains(why), "{line}");
        assert!(!db.exists());
    }
}
