//! lab: the list of experiments, runs that add up and can be continued, reports.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Scratch, bifold, text};

fn runs(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("runs.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_experiment_lists_its_claims() {
    let experiments = bifold(&["lab", "list", "--json"]).json();
    let said = bifold(&["lab", "list", "--claims"]).ok();
    for experiment in &experiments {
        let (name, claims) = (experiment["name"].as_str().unwrap(), experiment["claims"].as_array().unwrap());
        assert!(said.contains(name) && !claims.is_empty(), "{experiment}");
        for claim in claims {
            assert!(said.contains(claim["what"].as_str().unwrap()), "{claim}");
        }
    }
    for paper in ["HashKV", "NovKV", "DiffKV", "UniKV", "VAT", "Bifold"] {
        assert!(experiments.iter().any(|experiment| experiment["paper"] == paper), "{paper}");
    }
}

#[test]
fn a_run_adds_up_and_is_not_made_twice() {
    let scratch = Scratch::new();
    let dir = scratch.path("results");
    let args = ["lab", "run", "hashkv-e1", "--scale", "tiny", "--out", text(&dir), "--json"];
    let first = bifold(&args).json();
    assert_eq!((first.len(), &first[0]["experiment"], &first[0]["rounds"]), (1, &"hashkv-e1".into(), &1.into()));
    let made = fs::read(dir.join("runs.jsonl")).unwrap();
    for run in runs(&dir) {
        check(&run);
    }
    assert_eq!(bifold(&args).json(), first);
    assert_eq!(fs::read(dir.join("runs.jsonl")).unwrap(), made, "existing runs were made again");
    assert!(!dir.join("bifold-lab-store").exists(), "a store was left behind");
    let more = bifold(&[&args[..], &["--rounds", "2"]].concat()).json();
    assert_eq!(more[0]["rounds"], 2);
    assert_eq!(runs(&dir).len(), 2 * runs(&dir).iter().filter(|run| run["round"] == 1).count());
    let other = bifold(&[&args[..], &["--seed", "2"]].concat());
    assert!(other.code == 2 && other.err.contains("another directory"), "{other:?}");
}

/// A run is complete, its figures are finite, and bytes by source add up to what the system saw.
fn check(run: &Value) {
    let what = format!("{} {}", run["experiment"], run["arm"]);
    let spec = run["spec"]["steps"].as_array().unwrap();
    let steps = run["steps"].as_array().unwrap();
    assert_eq!(steps.len(), spec.len(), "{what}");
    for (step, spec) in steps.iter().zip(spec) {
        assert_eq!(step["step"], spec["name"], "{what}");
        check_finite(step, &what);
        assert!(step["operations"].as_u64() > Some(0) && step["seconds"].as_f64() > Some(0.0), "{what}: {step}");
    }
    for account in run["accounts"].as_array().unwrap() {
        let by_source: u64 = account["by_source"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        // Not every system counts the bytes of system calls.
        if let Some(called) = account["called"].as_u64() {
            let ratio = by_source as f64 / called as f64;
            assert!((0.98..=1.02).contains(&ratio), "{what}: {by_source} bytes by source, the system saw {called}");
        }
    }
    for field in ["processor", "system", "bifold"] {
        assert!(run["machine"][field].is_string(), "{what}: no {field}");
    }
    assert!(run["spec"]["plan"]["seed"].is_u64() && run["version"].is_string(), "{what}");
}

/// JSON has no infinite numbers: such a figure would be `null`.
fn check_finite(value: &Value, what: &str) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            // Not every system reports these.
            if !["called", "peak_rss_bytes", "device", "busy"].contains(&name.as_str()) {
                check_finite(value, &format!("{what} {name}"));
            }
        }),
        Value::Array(values) => values.iter().for_each(|value| check_finite(value, what)),
        Value::Null => panic!("{what}: not finite"),
        _ => {}
    }
}

/// The fastest place for runs. They create and delete thousands of small files within seconds, which is slow in some
/// file systems (ext4 looks at every recently freed inode before it creates a file).
fn place(scratch: &Scratch) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let name = format!("bifold-lab-{}-{}", std::process::id(), scratch.0.file_name().unwrap().to_string_lossy());
    if memory.is_dir() { memory.join(name) } else { scratch.path("data") }
}

/// Runs experiments at the smallest scale, and returns their results.
fn run_tiny(scratch: &Scratch, names: &[&str], out: &Path, seed: &str) -> Vec<Value> {
    let data = place(scratch);
    let args = ["--scale", "tiny", "--json", "--seed", seed, "--out", text(out), "--data", text(&data)];
    let lines = bifold(&[&["lab", "run"], names, &args[..]].concat()).json();
    fs::remove_dir_all(&data).unwrap();
    lines
}

/// The digest of all operations and their keys, by spec and step.
fn asked(dir: &Path) -> BTreeMap<String, String> {
    let of_run = |run: Value| {
        let steps = run["steps"].as_array().unwrap().clone();
        let asked = move |step: Value| {
            (format!("{} {} {}", run["key"], run["arm"], step["step"]), step["operations_digest"].to_string())
        };
        steps.into_iter().map(asked)
    };
    runs(dir).into_iter().flat_map(of_run).collect()
}

/// Runs everything twice.
#[test]
fn every_experiment_is_complete_adds_up_and_repeats_the_same_operations() {
    let scratch = Scratch::new();
    let (first, again) = (scratch.path("first"), scratch.path("again"));
    let experiments = run_tiny(&scratch, &["all"], &first, "1");
    for experiment in &experiments {
        for outcome in experiment["checks"].as_array().unwrap() {
            // Other stores are measured only in builds that have them.
            let what = outcome["what"].as_str().unwrap();
            let other = what.ends_with("rocksdb") || what.ends_with("peer");
            // Merges between levels are not judged in trees that have few of them, as all have of so little data.
            let name = experiment["experiment"].as_str().unwrap();
            let is_judged = !matches!(name, "diffkv-f15" | "diffkv-f16");
            assert!(outcome["ours"].is_f64() == is_judged || other, "{name}: {outcome}");
        }
    }
    assert_eq!(experiments.len(), bifold(&["lab", "list", "--json"]).json().len());
    for run in runs(&first) {
        check(&run);
    }
    // What stands for Titan's GC looks keys up, as that does.
    let titan = runs(&first).into_iter().find(|run| run["experiment"] == "diffkv-f10" && run["arm"] == "logs, GC");
    let steps = titan.unwrap()["steps"].as_array().unwrap().clone();
    let update = steps.iter().find(|step| step["step"] == "update").unwrap();
    assert!(update["facts"]["gc_index_lookups"].as_f64() > Some(0.0), "{update}");
    let report = fs::read_to_string(first.join("report.html")).unwrap();
    assert!(experiments.iter().all(|experiment| report.contains(experiment["experiment"].as_str().unwrap())));
    run_tiny(&scratch, &["all"], &again, "1");
    assert_eq!(asked(&first), asked(&again));
}

/// Some stores now, the others later, and none when the time is over.
#[test]
fn a_session_is_made_in_parts() {
    let scratch = Scratch::new();
    let (dir, data) = (scratch.path("parts"), place(&scratch));
    let run = |more: &[&str]| {
        let args = ["lab", "run", "hashkv-e1", "--scale", "tiny", "--out", text(&dir), "--data", text(&data)];
        bifold(&[&args[..], more].concat()).ok()
    };
    let made = || runs(&dir).iter().map(|run| run["arm"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let said = run(&["--minutes", "0"]);
    assert!(said.contains("runs are left: the same command continues them"), "{said}");
    // Other experiments share its run, and compare it with one that is not there yet.
    run(&["--stores", "hashkv"]);
    let first = made();
    assert_eq!(first, ["hashkv"]);
    assert!(dir.join("report.html").exists());
    let said = run(&[]);
    assert!(!said.contains("runs are left"), "{said}");
    let all = made();
    assert!(all.len() > first.len() && all.starts_with(&first), "{all:?}");
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn another_seed_chooses_other_operations() {
    let scratch = Scratch::new();
    let run = |seed: &str| {
        let out = scratch.path(seed);
        run_tiny(&scratch, &["novkv-f8"], &out, seed);
        // A load writes every key, whatever the seed.
        asked(&out).into_iter().filter(|(name, _)| name.contains("write") || name.contains("pass"))
    };
    let other: Vec<String> = run("2").map(|(_, digest)| digest).collect();
    let mut first = run("1").peekable();
    assert!(first.peek().is_some() && first.all(|(_, digest)| !other.contains(&digest)));
}

/// Runs the harness of our targets with little data.
#[test]
fn targets_are_judged_from_records_and_runs_are_continued() {
    let scratch = Scratch::new();
    for setting in ["cache", "confined"] {
        let dir = scratch.path(setting);
        let some = ["--stores", "inline,hashkv", "--scale", "tiny", "--busy", "--out", text(&dir)];
        let args = [&["lab", "run", "performance", "--setting", setting], &some[..]].concat();
        let lines = bifold(&[&args[..], &["--json"]].concat()).json();
        let scan = lines.iter().find(|line| line["step"] == "scan" && line["store"] == "hashkv").unwrap();
        assert!(scan["ops_per_sec"].as_f64() > Some(0.0) && scan["latency_us"]["p9999"].is_f64(), "{scan}");
        let targets: Vec<_> = lines.iter().filter(|line| line["target"].is_string()).collect();
        let of = |words: &str| targets.iter().find(|line| line["target"].as_str().unwrap().starts_with(words)).unwrap();
        if setting == "cache" {
            let two = of("hashkv: get, 2 threads");
            assert!(two["ours"].as_f64() > Some(0.0) && two["reached"].is_boolean(), "{two}");
        }
        assert!(of("unikv: ")["reached"].is_null(), "it was not run");
        let made = fs::read(dir.join("runs.jsonl")).unwrap();
        assert_eq!(bifold(&[&args[..], &["--json"]].concat()).json(), lines);
        let tables = bifold(&args).ok();
        assert!(tables.contains("| get, 2 threads | a second |") && tables.contains("| hashkv |"), "{tables}");
        assert_eq!(fs::read(dir.join("runs.jsonl")).unwrap(), made, "existing runs were made again");
        runs(&dir).iter().for_each(|run| check_performance(run, setting));
    }
}

/// What only the harness records.
fn check_performance(run: &Value, setting: &str) {
    let steps = run["steps"].as_array().unwrap();
    for step in steps {
        assert!(step["busy"].is_null() || step["busy"]["others"].as_f64() >= Some(0.0), "{step}");
    }
    let device = steps.iter().find(|step| step["phase"] == "device");
    assert_eq!(device.is_some(), setting == "confined");
}

#[test]
fn a_setting_and_performance_need_each_other() {
    for (wrong, named) in [
        (&["performance"][..], "--setting cache"),
        (&["hashkv-e1", "--setting", "cache"], "lab run performance"),
        (&["performance", "all", "--setting", "cache"], "runs alone"),
        (&["performance", "--setting", "hot"], "confined"),
        (&["performance", "--setting", "cache", "--stores", "oracle"], "`oracle` is not measured"),
    ] {
        let refused = bifold(&[&["lab", "run"], wrong, &["--out", "/nonexistent/bifold"]].concat());
        assert!(refused.code == 2 && refused.err.contains(named), "{wrong:?}: {refused:?}");
    }
}

/// Nothing is measured with other options than those that were given.
#[test]
fn options_that_a_run_does_not_take_are_refused() {
    for names in [&["performance", "--setting", "cache"][..], &["hashkv-e1"]] {
        for (given, value) in [("--set", "durability=sync"), ("--options", "x.toml"), ("--durability", "sync")] {
            let args = [&["lab", "run"], names, &["--out", "/nonexistent/bifold", given, value]].concat();
            let said = bifold(&args).refused(2);
            assert!(said.contains(given) && said.contains("bifold lab compare"), "{said}");
        }
    }
}

#[test]
fn stores_are_compared_and_unknown_ones_named() {
    let scratch = Scratch::new();
    let dir = scratch.path("compare");
    let args = ["lab", "compare", "--peers", "none", "--scale", "tiny", "--out", text(&dir)];
    let some = ["--placements", "inline,unikv", "--workloads", "load,read,settle,update,read"];
    let lines = bifold(&[&args[..], &some, &["--json"]].concat()).json();
    let read: Vec<_> = lines.iter().filter(|line| line["workload"] == "read 2").collect();
    // A wait for background work has no rate.
    assert_eq!((lines.len(), read.len(), &read[1]["store"]), (8, 2, &"unikv".into()));
    for line in &lines {
        assert!(line["ops_per_sec"]["median"].as_f64() > Some(0.0) && line["ratio"].is_f64(), "{line}");
    }
    for (wrong, named) in [
        (&["--peers", "oracle"][..], "oracle"),
        (&["--peers", "none", "--placements", "none"], "nothing to compare"),
        (&["--placements", "spacious"], "spacious"),
        (&["--rounds", "0"], "--rounds 0"),
        (&["--options", "x.toml"], "--set"),
    ] {
        let dir = scratch.path("wrong");
        let ran = bifold(&[&["lab", "compare", "--scale", "tiny", "--out", text(&dir)], wrong].concat());
        assert!(ran.code == 2 && ran.err.contains(named), "{wrong:?}: {ran:?}");
    }
}

/// Not everybody may create control groups; the error says so.
#[test]
fn memory_can_be_limited_and_the_page_cache_dropped() {
    let scratch = Scratch::new();
    let dir = scratch.path("bounded");
    let args = ["lab", "compare", "--peers", "none", "--placements", "hashkv", "--scale", "tiny", "--out", text(&dir)];
    let ran = bifold(&[&args[..], &["--cold", "--memory", "64MiB"]].concat());
    if ran.code != 0 {
        assert!(ran.err.contains("--memory") && ran.err.contains("control groups"), "{ran:?}");
        return;
    }
    for run in runs(&dir) {
        check(&run);
        assert_eq!((&run["spec"]["process_memory"], &run["spec"]["page_cache"]), (&(64 << 20).into(), &"cold".into()));
    }
}

#[test]
fn real_data_is_replayed() {
    let scratch = Scratch::new();
    let lines: String = (0..500).map(|n| format!("user/{n}\t{}\n", "x".repeat(n % 90))).collect();
    let (input, dir) = (scratch.write("users.tsv", lines), scratch.path("real"));
    let args = ["lab", "run", "real", "--input", text(&input), "--scale", "tiny", "--out", text(&dir), "--json"];
    let lines = bifold(&args).json();
    assert!(lines.iter().any(|line| line["workload"] == "scan" && line["store"] == "hashkv"), "{lines:?}");
    for run in runs(&dir) {
        check(&run);
        assert_eq!(run["steps"][0]["operations"], 500);
    }
    fs::write(&input, "user/1\tanother\n").unwrap();
    let changed = bifold(&args);
    assert!(changed.code == 2 && changed.err.contains("another directory"), "{changed:?}");
    for (wrong, named) in [
        (&["lab", "run", "real"][..], "--input"),
        (&["lab", "run", "hashkv-e1", "--input", text(&input)], "real"),
        (&["lab", "run", "nonsense"], "lab list"),
        (&["lab", "run", "hashkv-e99"], "hashkv-e1"),
        (&["lab", "report", text(&scratch.path("nothing"))], "lab run"),
    ] {
        let ran = bifold(wrong);
        assert!(ran.code == 2 && ran.err.contains(named), "{wrong:?}: {ran:?}");
    }
}

#[test]
fn a_simulation_prints_what_each_design_writes() {
    let args = ["lab", "simulate", "streams", "hashkv", "--keys", "20000", "--updates-of", "zipf", "--buffer", "100"];
    let table = bifold(&args).ok();
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 3 && rows[0].contains("1.25") && rows[0].contains("zipf:0.99"), "{table}");
    let lines = bifold(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(lines.len(), 4, "two designs, two targets");
    for (line, row) in lines.iter().zip([rows[1], rows[1], rows[2], rows[2]]) {
        assert!(row.starts_with(line["design"].as_str().unwrap()), "{row}");
        assert!(row.contains(&format!("{:.2}", line["written"].as_f64().unwrap())), "{row}: {line}");
        assert!(line["space_max"].as_f64().unwrap() <= line["space_target"].as_f64().unwrap() + 0.001);
        assert!(line["absorbed"].as_f64().unwrap() > 0.1);
    }
    for (wrong, named) in [
        (&["lab", "simulate", "hash"][..], "hashkv-segments"),
        (&["lab", "simulate", "--space-target", "1"], "space target"),
        (&["lab", "simulate", "--updates-of", "zipf:2"], "between 0 and 1"),
        (&["lab", "simulate", "--keys", "100"], "--keys"),
    ] {
        let ran = bifold(wrong);
        assert!(ran.code == 2 && ran.err.contains(named), "{wrong:?}: {ran:?}");
    }
}
