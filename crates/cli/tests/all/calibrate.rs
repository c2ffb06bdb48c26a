//! Measuring a device: the profile, its use, and that nothing is left behind. No test depends on a measured figure.

use std::{fs, path::Path, thread, time::Duration};

use serde_json::Value;

use super::{Ran, Scratch, bifold, command, finish, text};

/// The smallest file and the shortest time there are.
const TINY: [&str; 4] = ["--bytes", "8MiB", "--seconds", "0.001"];

fn calibrate(dir: &Path, more: &[&str]) -> Ran {
    bifold(&[&["vat", "calibrate", text(dir)], &TINY[..], more].concat())
}

fn model(line: &str, device: &Path) -> Ran {
    let words = ["vat", "model", "--levels", "5", "--growth", "4", "--alpha", "1", "--device", text(device)];
    bifold(&words.into_iter().chain(line.split(' ')).collect::<Vec<_>>())
}

#[track_caller]
fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_profile_is_written_and_beta_comes_from_it() {
    let scratch = Scratch::new();
    let (dir, profile) = (scratch.path("device"), scratch.path("profile.toml"));
    fs::create_dir(&dir).unwrap();
    let table = calibrate(&dir, &["--out", text(&profile)]).ok();
    assert_empty(&dir);
    for part in ["4 KiB", "4 MiB", "beta", "page cache", "profile.toml"] {
        assert!(table.contains(part) || (part == "page cache" && table.contains("in memory")), "{part}: {table}");
    }
    let written = fs::read_to_string(&profile).unwrap();
    assert!(written.starts_with("# ") && written.matches("[[measured]]").count() >= 12, "{written}");

    let json = model("--unit 8KiB --depth 4 --json", &profile).json().remove(0);
    let (read, write) = (json["device"]["beta_read"].as_f64().unwrap(), json["device"]["beta_write"].as_f64().unwrap());
    let both = json["beta"].as_f64().unwrap();
    assert!((both * (1.0 / read + 1.0 / write) - 2.0).abs() < 1e-9, "{json}");
    assert!((json["cost_ratio"].as_f64().unwrap() * both - 24.0).abs() < 1e-9, "{json}");
    assert_eq!((json["device"]["unit_bytes"].as_u64(), json["device"]["depth"].as_u64()), (Some(8192), Some(4)));
    // The default depth is 32, and the table says where beta comes from.
    let table = model("--unit 8KiB", &profile).ok();
    assert!(table.contains("profile.toml at 8.0 KiB, depth 32: "), "{table}");

    // A profile is replaced by the next one.
    fs::write(&profile, "older").unwrap();
    calibrate(&dir, &["--out", text(&profile)]).ok();
    model("--unit 8KiB", &profile).ok();
}

#[test]
fn json_goes_to_standard_output_and_to_no_file() {
    let scratch = Scratch::new();
    let words = [&["vat", "calibrate", ".", "--json"], &TINY[..]].concat();
    let json = finish(command(&words).current_dir(&scratch.0)).json().remove(0);
    assert_empty(&scratch.0);
    let rows = |name: &str| json[name].as_array().unwrap().clone();
    assert_eq!((json["format"].as_u64(), json["file_bytes"].as_u64()), (Some(1), Some(8 << 20)));
    assert_eq!(rows("measured").len(), rows("beta").len());
    for (measured, beta) in rows("measured").iter().zip(rows("beta")) {
        assert_eq!((&measured["unit_bytes"], &measured["depth"]), (&beta["unit_bytes"], &beta["depth"]));
        let is_beta = |value: &Value| value.as_f64().is_some_and(|b| b > 0.0 && b <= 1.0);
        assert!(["read", "write", "both"].into_iter().all(|name| is_beta(&beta[name])), "{beta}");
    }
    // By default it goes to a file in the working directory.
    let words = [&["vat", "calibrate", "."], &TINY[..]].concat();
    finish(command(&words).current_dir(&scratch.0)).ok();
    assert!(scratch.path("device.toml").is_file());
}

#[test]
fn bad_arguments_are_refused_and_nothing_is_left() {
    let scratch = Scratch::new();
    let dir = scratch.path("device");
    fs::create_dir(&dir).unwrap();
    let file = scratch.write("file", "x");
    let out = scratch.path("profile.toml");
    let refused = |dir: &Path, more: &[&str]| {
        let words = [&["vat", "calibrate", text(dir), "--out", text(&out)], more].concat();
        bifold(&words).refused(2)
    };
    for (dir, more, parts) in [
        (scratch.path("none"), &[][..], ["none does not exist", "make it"]),
        (file.clone(), &[], ["file is not a directory", "give one"]),
        (dir.clone(), &["--bytes", "4KiB"], ["--bytes 4096 is too small", "8.0 MiB"]),
        (dir.clone(), &["--bytes", "8000000 TiB"], ["more than a tenth of the free space", "give at most"]),
        (dir.clone(), &["--bytes", "lots"], ["--bytes", "`lots` is not a unit"]),
        (dir.clone(), &["--seconds", "0"], ["--seconds", "from 0.001 to 60"]),
        (dir.clone(), &["--seconds", "-1"], ["--seconds", "from 0.001 to 60"]),
        (dir.clone(), &["--seconds", "NaN"], ["--seconds", "from 0.001 to 60"]),
    ] {
        let said = refused(&dir, more);
        assert!(parts.iter().all(|part| said.contains(part)), "{more:?}: {said}");
    }
    // The path of the profile is checked before anything is measured.
    let said = calibrate(&dir, &["--out", text(&dir)]).refused(2);
    assert!(said.contains("is not a regular file"), "{said}");
    let said = calibrate(&dir, &["--out", text(&scratch.path("no/such/profile.toml"))]).refused(2);
    assert!(said.contains("no/such/profile.toml: there is no directory"), "{said}");
    assert_empty(&dir);
    assert!(!out.exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_written_is_named_before_measuring() {
    // Nobody can create files there, not even root. The file system has no free space either, which may be reported
    // first.
    let said = bifold(&["vat", "calibrate", "/proc/self", "--json"]).refused(2);
    assert!(said.contains("/proc/self"), "{said}");
}

/// The file has no name, so that there is nothing to clean up: after an error in the middle, or when the program is
/// killed.
#[cfg(target_os = "linux")]
#[test]
fn nothing_is_left_after_a_failure_or_a_kill() {
    let scratch = Scratch::new();
    let words = [&["vat", "calibrate", ".", "--json"], &TINY[..]].concat();
    let mut limited = std::process::Command::new("sh");
    // Files may have a few MiB at most, and the signal about that is ignored: writing the test file fails.
    let script = format!("trap '' XFSZ; ulimit -f 4096; exec {} \"$@\"", env!("CARGO_BIN_EXE_bifold"));
    limited.args(["-c", &script, "sh"]).args(&words).current_dir(&scratch.0);
    let said = finish(&mut limited).refused(2);
    assert!(said.contains("cannot write the test file in ."), "{said}");
    assert_empty(&scratch.0);

    let words = ["vat", "calibrate", ".", "--bytes", "8MiB", "--seconds", "60"];
    let mut child = command(&words).current_dir(&scratch.0).spawn().unwrap();
    thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_empty(&scratch.0);
}

#[test]
fn an_unusable_profile_is_named() {
    let scratch = Scratch::new();
    let row = "[[measured]]\nunit_bytes = 4096\ndepth = 32\nsequential_read_bytes_per_second = 100\n\
        random_read_bytes_per_second = 50\nsequential_write_bytes_per_second = 100\nrandom_write_bytes_per_second = \
        50\n";
    let head = "format = 1\ncaching = \"direct\"\nfile_bytes = 1\nseconds = 1.0\n";
    let good = scratch.write("good.toml", format!("{head}{row}"));
    assert!(model("--unit 4096", &good).ok().contains("beta = 0.5"));
    for (line, parts) in [
        ("--unit 4096 --depth 1", ["good.toml: depth must be at least", "not 1"]),
        ("--unit 0", ["good.toml: unit must be at least one byte", "not 0"]),
        ("--unit many", ["--unit", "`many` is not a unit"]),
        ("--unit 4096 --beta 0.5", ["--beta", "cannot be used with"]),
        ("--depth 4", ["--unit", "required"]),
    ] {
        let said = model(line, &good).refused(2);
        assert!(parts.iter().all(|part| said.contains(part)), "{line}: {said}");
    }
    let said = bifold(&["vat", "model", "--levels", "5", "--growth", "4", "--alpha", "1", "--unit", "4096"]).refused(2);
    assert!(said.contains("--device"), "{said}");

    for (name, content, says) in [
        ("empty", String::new(), "missing field"),
        ("noise", "\u{fffd}\0[[".to_owned(), "not a device profile"),
        ("later", format!("{head}{row}").replace("format = 1", "format = 9"), "its format is 9"),
        ("none", format!("{head}measured = []\n"), "it has 0 measurements"),
    ] {
        let path = scratch.write(name, content);
        let said = model("--unit 4096", &path).refused(2);
        assert!(said.contains(&format!("{name}: not a device profile: ")) && said.contains(says), "{said}");
    }
    let said = model("--unit 4096", &scratch.path("missing")).refused(2);
    assert!(said.contains("cannot read") && said.contains("missing"), "{said}");
}
