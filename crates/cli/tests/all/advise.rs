//! `advise`: what it recommends, that its options work, and what it refuses.

#[cfg(target_os = "linux")]
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use serde_json::Value;

#[cfg(target_os = "linux")]
use super::PROFILE;
use super::{Ran, Scratch, bifold, text};

const SESSIONS: &str = "
keys = 1_000_000
key_bytes = 24
value_bytes = \"1KiB\"
[operations]
update = 1
read = 1
[skew]
updates = 0.99
";

fn advise(words: &[&str]) -> Ran {
    bifold(&[&["advise", "--page-cache", "16GiB", "--processors", "2"], words].concat())
}

fn json(words: &[&str]) -> Value {
    advise(&[words, &["--json"]].concat()).json().remove(0)
}

#[test]
fn all_placements_are_compared_and_the_best_comes_first() {
    let dir = Scratch::new();
    let path = dir.write("sessions.toml", SESSIONS);
    let report = json(&["--workload", text(&path)]);
    let candidates = report["candidates"].as_array().unwrap();
    for placement in ["inline", "wisckey", "hashkv", "novkv", "diffkv", "unikv"] {
        assert!(candidates.iter().any(|c| c["candidate"]["placement"] == placement), "{placement}");
    }
    let rates: Vec<_> = candidates
        .iter()
        .filter(|c| c["within_space"] == true)
        .map(|c| c["operations_per_second"].as_f64().unwrap())
        .collect();
    assert!(rates.windows(2).all(|pair| pair[0] >= pair[1]) && rates.len() > 3);
    assert_eq!(report["workload"]["keys"], 1e6);
    let shown = advise(&["--workload", text(&path)]).ok();
    let why = report["why"].as_str().unwrap();
    assert!(shown.replace('\n', " ").contains(why), "{shown}");
}

#[test]
fn the_advice_can_be_to_keep_values_inline() {
    let dir = Scratch::new();
    let short = dir.write("short.toml", SESSIONS.replace("\"1KiB\"", "100").replace("1_000_000", "8_000_000"));
    let report = json(&["--workload", text(&short), "--set", "memory_limit=128MiB"]);
    assert!(report["why"].as_str().unwrap().starts_with("Do not separate"), "{report}");
    let long = dir.write("long.toml", SESSIONS.replace("\"1KiB\"", "\"16KiB\"").replace("read = 1", "read = 0"));
    let report = json(&["--workload", text(&long), "--set", "memory_limit=128MiB"]);
    assert!(report["why"].as_str().unwrap().starts_with("Separate values with"), "{report}");
}

#[test]
fn the_options_it_writes_open_a_database() {
    let dir = Scratch::new();
    let (db, options) = (dir.path("db"), dir.path("options.toml"));
    for value_bytes in ["100", "1000", "\"64KiB\"", "[{ bytes = 100, share = 5 }, { bytes = 5000 }]"] {
        let workload = dir.write("w.toml", SESSIONS.replace("\"1KiB\"", value_bytes));
        advise(&["--workload", text(&workload), "--apply", text(&options), "--set", "memory_limit=64MiB"]).ok();
        bifold(&["put", text(&db), "key", "value", "--options", text(&options)]).ok();
        assert_eq!(bifold(&["get", text(&db), "key"]).ok(), "value");
        let written = std::fs::read_to_string(&options).unwrap();
        assert!(
            written.starts_with("# Options that `bifold advise` chose") && written.contains("memory_limit = 67108864")
        );
        std::fs::remove_dir_all(&db).unwrap();
    }
}

#[test]
fn sizes_and_writes_come_from_a_database() {
    let dir = Scratch::new();
    let db = dir.path("db");
    let lines = |round: u32| {
        (0..500).map(|n| format!("user/{n:04}\t{}\n", format!("{round}").repeat(2000))).collect::<String>()
    };
    for round in 0..4 {
        let entries = dir.write("entries.tsv", lines(round));
        bifold(&["import", text(&db), text(&entries), "--set", "keyspace.preset=hashkv"]).ok();
    }
    let report = json(&["--db", text(&db), "--reads-per-write", "3"]);
    let workload = &report["workload"];
    assert_eq!(workload["keys"], 500.0, "{workload}");
    assert_eq!((workload["key_bytes"].as_f64(), workload["values"][0]["bytes"].as_f64()), (Some(9.0), Some(2000.0)));
    let operations = &workload["operations"];
    let share = |name: &str| operations[name].as_f64().unwrap();
    assert!((share("read") - 0.75).abs() < 1e-9 && share("update") > 2.5 * share("insert"), "{operations}");
    // Sizes of the database, operations of the file.
    let described = dir.write("w.toml", SESSIONS);
    let both = json(&["--db", text(&db), "--workload", text(&described)]);
    assert_eq!(
        (&both["workload"]["keys"], &both["workload"]["update_skew"]),
        (&Value::from(500.0), &Value::from(0.99))
    );
}

#[test]
fn the_space_target_is_that_of_the_keyspace_unless_it_is_given() {
    let dir = Scratch::new();
    let path = dir.database();
    let db = text(&path);
    bifold(&["options", db, "--set", "keyspace.values.space_target=1.3"]).ok();
    let before = bifold(&["options", db]).ok();
    let target = |more: &[&str]| json(&[&["--db", db][..], more].concat())["machine"]["space_target"].as_f64();
    assert_eq!(target(&[]), Some(1.3));
    assert_eq!(target(&["--set", "keyspace.values.space_target=1.2"]), Some(1.2));
    assert_eq!(bifold(&["options", db]).ok(), before, "it was only asked");
}

#[cfg(target_os = "linux")]
#[test]
fn a_profile_whose_name_is_not_utf_8_is_printed_as_json() {
    let dir = Scratch::new();
    let workload = dir.write("sessions.toml", SESSIONS);
    let profile = dir.0.join(OsStr::from_bytes(b"device-\xff"));
    std::fs::write(&profile, PROFILE).unwrap();
    let words = ["advise", "--json", "--workload", text(&workload), "--device"].map(OsStr::new);
    let words: Vec<&OsStr> = words.into_iter().chain([profile.as_os_str()]).collect();
    let report = bifold(&words).json().remove(0);
    assert_eq!(report["machine"]["device"], profile.display().to_string());
}

#[test]
fn a_trace_is_a_workload_too() {
    let dir = Scratch::new();
    let mut lines = String::from("# a session store\n");
    (0..200).for_each(|n| lines += &format!("put user/{n} 700\nget user/{n}\nput user/{} 700\n", n % 20));
    let path = dir.write("ops.trace", lines);
    let workload = json(&["--workload", text(&path)])["workload"].clone();
    assert_eq!((workload["keys"].as_f64(), workload["values"][0]["bytes"].as_f64()), (Some(200.0), Some(700.0)));
    assert!(workload["update_skew"].as_f64().unwrap() > 0.3, "{workload}");
}

#[test]
fn bad_workloads_are_refused_and_nothing_is_left() {
    let dir = Scratch::new();
    let file = |name: &str, content: &str| text(&dir.write(name, content)).to_owned();
    let refused = |words: &[&str], says: &str| {
        let ran = advise(words);
        assert!(ran.code == 2 && ran.err.contains(says) && ran.err.lines().count() == 1, "{words:?}: {ran:?}");
    };
    let good = file("good.toml", SESSIONS);
    refused(&[], "--workload");
    refused(&["--workload", "nowhere.toml"], "nowhere.toml");
    refused(&["--workload", &file("empty.trace", "")], "empty trace");
    refused(&["--workload", &file("bad.trace", "put a 1\nput b\n")], "bad.trace:2: no length");
    refused(
        &["--workload", &file("a.toml", &SESSIONS.replace("\"1KiB\"", "-1"))],
        "values.bytes must be at least 0, not -1",
    );
    refused(&["--workload", &file("b.toml", &SESSIONS.replace("keys = 1_000_000", "keys = 0"))], "keys must be");
    refused(&["--workload", &file("c.toml", &SESSIONS.replace("update = 1", "updates = 1"))], "line");
    refused(&["--workload", &file("d.toml", &SESSIONS.replace("0.99", "1.5"))], "update_skew must be");
    refused(&["--workload", &file("e.toml", "keys = 1")], "key_bytes");
    refused(&["--workload", &good, "--device", &file("p.toml", "format = 1")], "not a device profile");
    refused(&["--workload", &good, "--set", "keyspace.values.space_target=0.5"], "space_target");
    refused(&["--db", text(&dir.path("no.db"))], "no.db");
    let apply = dir.path("missing/options.toml");
    refused(&["--workload", &good, "--apply", text(&apply)], "missing/options.toml");
    refused(&["--workload", &good, "--apply", text(&dir.0)], "is not a regular file");
    let left: Vec<_> = std::fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("options")), "{left:?}");
}
