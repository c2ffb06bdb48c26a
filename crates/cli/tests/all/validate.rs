//! The engine compared with the model: a tiny run has every figure, and a second run has the same ones.

use std::{fs, path::Path};

use serde_json::Value;

use super::{Ran, Scratch, bifold, text};

/// Eleven trees of up to eight flushes of five entries.
fn validate(dir: &Path, more: &[&str]) -> Ran {
    let tiny = ["vat", "validate", "--levels", "2,3", "--growth", "2", "--scale", "0.02", "--dir", text(dir)];
    bifold(&[&tiny[..], more].concat())
}

#[test]
fn a_tiny_run_has_every_figure_twice_the_same() {
    let scratch = Scratch::new();
    let rows = validate(&scratch.0, &["--json"]).json();
    assert_eq!(rows, validate(&scratch.0, &["--json"]).json());
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "databases are left");
    assert_eq!(rows.len(), 11);
    let trees: Vec<String> = rows
        .iter()
        .map(|row| ["compaction", "values", "tables", "levels"].map(|name| row[name].to_string()).join(" "))
        .collect();
    for tree in [
        "\"leveling\" \"inline\" \"whole\" 2",
        "\"tiering\" \"log\" \"quarter\" 3",
        "\"leveling\" \"inline\" \"small\" 3",
    ] {
        assert!(trees.contains(&tree.to_owned()), "{tree} in {trees:?}");
    }
    for row in &rows {
        assert_complete(row);
    }
}

#[track_caller]
fn assert_complete(row: &Value) {
    for name in ["alpha", "measured", "predicted", "ratio", "last_quarter"] {
        assert!(row[name].as_f64().is_some_and(|figure| figure.is_finite() && figure >= 0.0), "{name}: {row}");
    }
    let count = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"));
    // Each flush has five entries of 1 KiB.
    assert_eq!(count("user_bytes"), count("flushes") * 5 * 1024, "{row}");
    let moved = count("flush_bytes_written") + count("compaction_bytes_read") + count("compaction_bytes_written");
    let measured = (moved + count("values_bytes_written")) as f64 / count("user_bytes") as f64;
    assert!((row["measured"].as_f64().unwrap() / measured - 1.0).abs() < 1e-9, "{row}");
    assert!(count("merges") + count("moves") > 0 && count("table_bytes") > 0 && row["level_bytes"].is_array(), "{row}");
    let in_log = row["values"] == "log";
    assert_eq!(in_log, row["key_share"].is_f64(), "{row}");
    assert_eq!(in_log, count("values_bytes_written") > 0, "{row}");
    let (within, ratio) = (row["within"].as_bool().unwrap(), row["ratio"].as_f64().unwrap());
    assert_eq!(within, (ratio - 1.0).abs() <= 0.15, "{row}");
    assert_eq!(within, row["causes"].as_array().unwrap().is_empty(), "{row}");
}

#[test]
fn the_table_says_what_is_within_and_a_picture_is_drawn() {
    let scratch = Scratch::new();
    let pictures = scratch.path("pictures");
    let table = validate(&std::env::temp_dir(), &["--out", text(&pictures)]).ok();
    assert_eq!(
        table.lines().filter(|line| line.ends_with("within 15 %") || line.ends_with("not within")).count(),
        11,
        "{table}"
    );
    assert!(table.lines().next().unwrap().contains("predicted"), "{table}");
    let svg = fs::read_to_string(pictures.join("vat-validate.svg")).unwrap();
    assert!(
        svg.contains("tiering, measured") && svg.contains("small tables, predicted") && !svg.contains("NaN"),
        "{svg}"
    );
}

#[test]
fn bad_arguments_are_refused() {
    let scratch = Scratch::new();
    for (words, parts) in [
        (&["--levels", "1"][..], ["--levels", "2..=15"]),
        (&["--levels", "16"], ["--levels", "2..=15"]),
        (&["--growth", "1"], ["--growth", "2..=100"]),
        (&["--scale", "0"], ["--scale", "from 0.001 to 1000"]),
        (&["--scale", "NaN"], ["--scale", "from 0.001 to 1000"]),
        (&["--levels", "15", "--growth", "100"], ["the largest tree needs", "smaller --scale"]),
        (&["--dir", "no/such"], ["no/such does not exist", "make it"]),
    ] {
        let said = bifold(&[&["vat", "validate", "--out", text(&scratch.path("out"))], words].concat()).refused(2);
        assert!(parts.iter().all(|part| said.contains(part)), "{words:?}: {said}");
    }
    assert!(!scratch.path("out").exists());
    // The path of the picture is checked before anything runs.
    fs::create_dir_all(scratch.path("out/vat-validate.svg")).unwrap();
    let said = validate(&scratch.0, &["--out", text(&scratch.path("out"))]).refused(2);
    assert!(said.contains("vat-validate.svg is not a regular file"), "{said}");
}
