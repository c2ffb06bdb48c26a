//! The cost model: figures that can be checked by hand, complete pictures, and refused arguments.

#[cfg(target_os = "linux")]
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
use std::{fs, path::Path};

use serde_json::Value;

#[cfg(target_os = "linux")]
use super::PROFILE;
use super::{Ran, Scratch, bifold, text};

fn vat(line: &str) -> Ran {
    bifold(&["vat"].into_iter().chain(line.split(' ')).collect::<Vec<_>>())
}

fn figures(line: &str) -> Value {
    vat(&format!("model --json {line}")).json().remove(0)
}

#[track_caller]
fn about(figure: &Value, expected: f64) {
    let figure = figure.as_f64().unwrap();
    assert!((figure / expected - 1.0).abs() < 1e-9, "{figure}, not {expected}");
}

#[test]
fn the_figures_of_the_paper_come_out() {
    let best = figures("--levels 5 --growth 4 --alpha 1");
    about(&best["amplification"], 24.0);
    about(&best["write_amplification"], 12.5);
    about(&best["cost_ratio"], 24.0);
    about(&best["space_amplification"], 1.0 / 3.0);
    about(&best["size_ratio"], 1024.0);
    assert_eq!(best["optimum"]["levels"], 5);
    about(&best["optimum"]["growth"], 4.0);
    about(&best["optimum"]["amplification"], 24.0);
    assert_eq!(best["key_share"], Value::Null);

    let wider = figures("--levels 3 --growth 10 --alpha 1 --beta 0.5");
    about(&wider["amplification"], 32.0);
    about(&wider["cost_ratio"], 64.0);
    assert_eq!(wider["optimum"]["levels"], 5);
    about(&figures("--levels 3 --growth 10 --alpha 0.1")["cost_ratio"], 7.7);
    about(&figures("--levels 5 --growth 4 --alpha 1 --per-table")["amplification"], 49.0);
}

#[test]
fn with_a_log_only_keys_go_through_the_levels() {
    let log = figures("--levels 5 --growth 4 --alpha 1 --key-share 0.01");
    about(&log["amplification"], 1.24);
    about(&log["cost_ratio"], 1.24);
    about(&log["space_amplification"], 0.01 * 4.0 / 3.0);
    about(&log["optimum"]["amplification"], 1.24);
}

#[test]
fn tiering_has_no_alpha() {
    for line in ["--tiering", "--tiering --alpha 1"] {
        let tiering = figures(&format!("--levels 3 --growth 10 {line}"));
        about(&tiering["amplification"], 5.0);
        assert_eq!((tiering["alpha"].as_f64(), tiering["compaction"].as_str()), (Some(0.0), Some("tiering")));
        assert_eq!(tiering["optimum"]["levels"], 1);
    }
}

#[test]
fn the_table_says_what_each_figure_means() {
    let table = vat("model --levels 3 --growth 10 --alpha 0.68 --per-table --key-share 0.05").ok();
    for part in ["3 levels with size ratio 10", "one table at a time", "1 000 times", "values in a log, p = 0.05"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    for (name, meaning) in [
        ("amplification", "bytes read and written"),
        ("cost ratio", "amplification / beta"),
        ("space amplification", "extra bytes for each byte"),
        ("levels", "whole number"),
        ("size ratio", "same size"),
    ] {
        let line = table.lines().find(|line| line.trim_start().starts_with(name));
        assert!(line.is_some_and(|line| line.contains(meaning)), "{name}: {table}");
    }
}

#[test]
fn figures_outside_the_model_are_refused_by_name() {
    for (line, parts) in [
        ("--levels 0 --growth 4 --alpha 1", ["--levels", "from 1 to 100", "not 0"]),
        ("--levels -1 --growth 4 --alpha 1", ["--levels", "from 1 to 100", "not -1"]),
        ("--levels 2.5 --growth 4 --alpha 1", ["--levels", "whole number", "not 2.5"]),
        ("--levels 5 --growth 1 --alpha 1", ["--growth", "above 1", "not 1"]),
        ("--levels 5 --growth -4 --alpha 1", ["--growth", "above 1", "not -4"]),
        ("--levels 5 --growth NaN --alpha 1", ["--growth", "above 1", "not NaN"]),
        ("--levels 5 --growth inf --alpha 1", ["--growth", "above 1", "not inf"]),
        ("--levels 5 --growth -inf --alpha 1", ["--growth", "above 1", "not -inf"]),
        ("--levels 5 --growth four --alpha 1", ["--growth", "four", "not a number"]),
        ("--levels 5 --growth 4 --alpha 1.5", ["--alpha", "from 0 to 1", "not 1.5"]),
        ("--levels 5 --growth 4 --alpha -0.1", ["--alpha", "from 0 to 1", "not -0.1"]),
        ("--levels 5 --growth 4 --alpha 1 --beta 0", ["--beta", "above 0", "not 0"]),
        ("--levels 5 --growth 4 --alpha 1 --beta 1.1", ["--beta", "at most 1", "not 1.1"]),
        ("--levels 5 --growth 4 --alpha 1 --key-share 0", ["--key-share", "above 0", "not 0"]),
        ("--levels 5 --growth 4 --alpha 1 --key-share 2", ["--key-share", "at most 1", "not 2"]),
        ("--levels 50 --growth 1000 --alpha 1", ["growth to the power of levels", "1e15", "not 1.00e150"]),
        ("--levels 5 --growth 4", ["--alpha", "vat model --help", ""]),
        ("--levels 5 --growth 4 --tiering --per-table", ["--tiering", "--per-table", ""]),
    ] {
        for json in ["", " --json"] {
            let said = vat(&format!("model {line}{json}")).refused(2);
            assert!(parts.iter().all(|part| said.contains(part)), "{line}: {said}");
        }
    }
    assert!(bifold(&["vat"]).refused(2).contains("`bifold vat --help`"));
    assert!(vat("modle").refused(2).contains("`bifold vat --help`"));
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

/// The width and height that an SVG declares.
fn dimensions(svg: &str) -> (f64, f64) {
    let number = |name: &str| svg.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok();
    (number("width").unwrap(), number("height").unwrap())
}

#[test]
fn all_figures_are_drawn_and_drawn_again() {
    let scratch = Scratch::new();
    let dir = scratch.path("new/pictures");
    let lines = bifold(&["vat", "plot", "--out", text(&dir)]).ok();
    let expected = [2, 4, 5, 6].map(|figure| format!("vat-figure-{figure}.svg"));
    assert_eq!(names(&dir), expected);
    assert!(expected.iter().all(|name| lines.contains(name)), "{lines}");
    for name in &expected {
        let svg = fs::read_to_string(dir.join(name)).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{name}");
        assert!(svg.contains("(a) ") && svg.contains("(b) ") && svg.contains("<polyline"), "{name}");
        let (width, height) = dimensions(&svg);
        assert!(width == 800.0 && (600.0..1200.0).contains(&height), "{name}: {width} x {height}");
    }
    // Pictures depend on nothing but the model, and replace earlier ones.
    let before = fs::read(dir.join("vat-figure-4.svg")).unwrap();
    fs::write(dir.join("vat-figure-4.svg"), "older").unwrap();
    let report = bifold(&["vat", "plot", "--figure", "4", "--out", text(&dir), "--json"]).json();
    assert_eq!(fs::read(dir.join("vat-figure-4.svg")).unwrap(), before);
    assert_eq!((report.len(), &report[0]["figure"], &report[0]["format"]), (1, &4.into(), &"svg".into()));
    assert_eq!(report[0]["bytes"].as_u64(), Some(before.len() as u64));
    assert_eq!(names(&dir), expected);
}

/// What is not UTF-8 is replaced, instead of an error when the pictures are written.
#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_not_utf_8_are_printed_as_json() {
    let scratch = Scratch::new();
    let dir = scratch.0.join(OsStr::from_bytes(b"pictures-\xff"));
    let printed = |line: &str, path: &Path| {
        let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).chain([path.as_os_str()]).collect();
        bifold(&words).json().remove(0)
    };
    let picture = printed("vat plot --json --figure 4 --out", &dir);
    assert_eq!(picture["path"], dir.join("vat-figure-4.svg").display().to_string());
    assert!(dir.join("vat-figure-4.svg").exists());
    let profile = dir.join("device.toml");
    fs::write(&profile, PROFILE).unwrap();
    let cost = printed("vat model --json --levels 5 --growth 4 --alpha 1 --unit 4096 --device", &profile);
    assert_eq!(cost["device"]["path"], profile.display().to_string());
}

#[test]
fn what_is_no_file_is_not_replaced_and_nothing_is_half_written() {
    let scratch = Scratch::new();
    let dir = scratch.path("pictures");
    fs::create_dir_all(dir.join("vat-figure-6.svg")).unwrap();
    let said = bifold(&["vat", "plot", "--out", text(&dir)]).refused(2);
    assert!(said.contains("vat-figure-6.svg is not a regular file"), "{said}");
    assert_eq!(names(&dir), ["vat-figure-6.svg"]);
    // The other figures are not concerned.
    bifold(&["vat", "plot", "--out", text(&dir), "--figure", "2"]).ok();

    let file = scratch.write("taken", "x");
    let said = bifold(&["vat", "plot", "--out", text(&file)]).refused(2);
    assert!(said.contains("cannot make directory") && said.contains("taken"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), b"x");
}

#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_written_is_named() {
    // Where nobody may make files, not even root.
    let said = bifold(&["vat", "plot", "--out", "/proc/self"]).refused(2);
    assert!(said.contains("cannot write /proc/self/vat-figure-2.svg"), "{said}");
}

#[test]
fn figures_that_are_no_projections_are_refused() {
    for figure in ["3", "0", "-2", "two", "2,4"] {
        let said = vat(&format!("plot --figure {figure}")).refused(2);
        assert!(said.contains("--figure") && said.contains("2, 4, 5, 6 or all"), "{said}");
    }
}
