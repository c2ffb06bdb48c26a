//! `bench --compare`: stores in turns, A B C A B C, each run in its own process and directory; medians, and ratios of
//! the first to each of the others.
//!
//! Stores take turns because a machine's speed drifts over minutes. Each run has its own process so that the memory
//! and threads of one store do not burden another. All phases of a run use one store.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use bifold::Options;
use bifold_lab::{Workload, report::grouped, store::peer::Peer, values::Sizes};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use super::bench::{BenchArgs, Place};
use crate::{
    args::Global,
    failure::{Failure, Result},
    output::{Output, Tone},
};

/// One of the stores.
struct Side {
    /// A for Bifold as given, B, C, … for the others.
    label: char,
    name: String,
    /// The arguments of its runs in addition to the common ones.
    arguments: Vec<String>,
}

/// Medians of one phase: of the first store and of one other.
#[derive(Serialize)]
struct Compared<'a> {
    phase: String,
    rounds: usize,
    a: &'a Medians,
    b: &'a Medians,
    /// A over B: above 1 in `ops_per_sec` A is faster; below 1 in the others A needs less.
    ratio: Medians,
}

/// The figures that are compared.
#[derive(Clone, Default, Serialize)]
struct Medians {
    #[serde(skip_serializing_if = "String::is_empty")]
    store: String,
    ops_per_sec: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    write_amp: f64,
    read_amp: f64,
    space_amp: f64,
    cpu_us_per_op: f64,
    peak_rss_bytes: f64,
}

/// Runs all sides in turns, and prints medians and ratios.
pub fn run(args: &BenchArgs, with: &str, global: &Global, out: &mut Output) -> Result<()> {
    if args.peer.is_some() {
        return Err(Failure::trouble("--compare runs Bifold against WITH: leave --peer out"));
    }
    if args.rounds == 0 {
        return Err(Failure::trouble("--rounds 0 measures nothing: give at least 1"));
    }
    let sides = sides(with)?;
    let place = Place::new(args.dir.as_deref())?;
    if !global.json {
        let names: Vec<_> = sides.iter().map(|side| format!("{} {}", side.label, side.name)).collect();
        out.line_now(out.paint(Tone::Dim, &args.describe(&names.join(", "), &place.dir)))?;
    }
    let mut runs: Vec<Vec<Vec<Value>>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 1..=args.rounds {
        for (side, runs) in sides.iter().zip(&mut runs) {
            let dir = place.dir.join(format!("round-{round}-{}", side.label));
            let phases = one_run(args, side, global, &dir);
            // The next run must find as much space, and as idle a disk, as this one.
            let _ = std::fs::remove_dir_all(&dir);
            let phases = phases?;
            if !global.json {
                let rates: Vec<String> = phases.iter().map(rate).collect();
                out.line_now(format!("round {round} {} {}", side.label, rates.join("  ")))?;
            }
            runs.push(phases);
        }
    }
    report(args, &sides, &runs, global, out)
}

/// Bifold as given, then each peer of `with`, then Bifold with the options in `with`, if there are any.
fn sides(with: &str) -> Result<Vec<Side>> {
    let mut sides = vec![Side { label: 'A', name: "bifold".to_owned(), arguments: Vec::new() }];
    let mut add = |name: String, arguments: Vec<String>| {
        if sides.iter().any(|side| side.name == name) {
            return Err(Failure::trouble(format!("--compare={with}: {name} is there twice")));
        }
        sides.extend(('A'..='Z').nth(sides.len()).map(|label| Side { label, name, arguments }));
        Ok(())
    };
    let mut sets = Vec::new();
    for part in with.split(',') {
        match part.parse::<Peer>() {
            Ok(peer) => {
                peer.check_built_in()?;
                add(part.to_owned(), vec!["--peer".to_owned(), part.to_owned()])?;
            }
            Err(_) => sets.push(part),
        }
    }
    // A typo must be reported before the first side runs.
    sets.iter().try_for_each(|set| Options::default().set(set))?;
    if !sets.is_empty() {
        let arguments = sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]).collect();
        add(format!("bifold {}", sets.join(",")), arguments)?;
    }
    Ok(sides)
}

/// All phases of one run, in its own process.
fn one_run(args: &BenchArgs, side: &Side, global: &Global, dir: &Path) -> Result<Vec<Value>> {
    let program = std::env::current_exe().map_err(|e| Failure::trouble(format!("cannot find this program: {e}")))?;
    let child = Command::new(program)
        .arg("bench")
        .args(common_arguments(args, global))
        .args(&side.arguments)
        .arg("--dir")
        .arg(dir)
        .arg("--json")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let output = child.map_err(|e| Failure::trouble(format!("cannot run this program again: {e}")))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::trouble(format!("{}: {}", side.name, why.trim().trim_start_matches("bifold: "))));
    }
    let lines = output.stdout.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    let parsed = lines.map(serde_json::from_slice).collect::<std::result::Result<_, _>>();
    parsed.map_err(|e| Failure::trouble(format!("{}: its output is not JSON: {e}", side.name)))
}

/// The arguments of all sides.
fn common_arguments(args: &BenchArgs, global: &Global) -> Vec<String> {
    let value_size = match args.value_size {
        Sizes::Fixed(bytes) => bytes.to_string(),
        // The command line accepts nothing else.
        _ => "pareto".to_owned(),
    };
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let mut pairs = vec![
        ("--workload", args.workload.iter().copied().map(Workload::name).collect::<Vec<_>>().join(",")),
        ("--num", args.num.to_string()),
        ("--value-size", value_size),
        ("--key-size", args.key_size.to_string()),
        ("--compressible", args.compressible.to_string()),
        ("--order", name(&|| args.order.to_possible_value())),
        ("--dist", name(&|| args.dist.to_possible_value())),
        ("--read-dist", name(&|| args.read_dist.to_possible_value())),
        ("--theta", args.theta.to_string()),
        ("--scan-len", args.scan_len.to_string()),
        ("--batch", args.batch.to_string()),
        ("--threads", args.threads.to_string()),
        ("--seed", args.seed.to_string()),
    ];
    // As --set, so that a placement of the other side's own comes later and wins.
    pairs.extend(args.placement.iter().map(|name| ("--set", format!("keyspace.preset={name}"))));
    pairs.extend(args.ops.map(|ops| ("--ops", ops.to_string())));
    pairs.extend(args.seconds.map(|seconds| ("--seconds", seconds.to_string())));
    pairs.extend(global.options.iter().map(|file| ("--options", file.display().to_string())));
    pairs.extend(global.set.iter().map(|set| ("--set", set.clone())));
    pairs.extend(global.durability.map(|level| ("--durability", format!("{level:?}").to_lowercase())));
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn rate(phase: &Value) -> String {
    let name = phase["phase"].as_str().unwrap_or("?");
    format!("{name} {}/s", grouped(phase["ops_per_sec"].as_f64().unwrap_or(0.0)))
}

fn report(args: &BenchArgs, sides: &[Side], runs: &[Vec<Vec<Value>>], global: &Global, out: &mut Output) -> Result<()> {
    if !global.json {
        out.line(String::new())?;
        out.line(out.paint(Tone::Strong, &format!("medians of {} rounds; ×: A over the line above", args.rounds)))?;
        out.line(out.paint(Tone::Strong, &head()))?;
    }
    for (at, workload) in args.workload.iter().enumerate() {
        let medians = |(side, runs): (&Side, &Vec<Vec<Value>>)| {
            let phases: Vec<&Value> = runs.iter().filter_map(|run| run.get(at)).collect();
            Medians::of(&side.name, &phases)
        };
        let medians: Vec<Medians> = sides.iter().zip(runs).map(medians).collect();
        let Some((a, others)) = medians.split_first() else { continue };
        if !global.json {
            out.line(format!("{:<8} A {}", workload.to_string(), a.line("")))?;
        }
        for (side, b) in sides.iter().skip(1).zip(others) {
            let ratio = a.over(b);
            if global.json {
                out.json(&Compared { phase: workload.to_string(), rounds: args.rounds, a, b, ratio })?;
                continue;
            }
            out.line(format!("{:<8} {} {}", "", side.label, b.line("")))?;
            out.line(out.paint(Tone::Good, &format!("{:<8} × {}", "", ratio.line("×"))))?;
        }
    }
    Ok(())
}

fn head() -> String {
    format!(
        "{:<8}   {:>11} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8} {:>8}",
        "phase", "ops/s", "p50 µs", "p99 µs", "p999 µs", "max µs", "write", "read", "space", "CPU µs", "RSS MiB"
    )
}

impl Medians {
    fn of(store: &str, phases: &[&Value]) -> Self {
        let median = |pointer: &str| {
            let mut figures: Vec<f64> =
                phases.iter().filter_map(|p| p.pointer(pointer).and_then(Value::as_f64)).collect();
            figures.sort_by(f64::total_cmp);
            middle(&figures)
        };
        Self {
            store: store.to_owned(),
            ops_per_sec: median("/ops_per_sec"),
            p50_us: median("/latency_us/p50"),
            p99_us: median("/latency_us/p99"),
            p999_us: median("/latency_us/p999"),
            max_us: median("/latency_us/max"),
            write_amp: median("/write_amp"),
            read_amp: median("/read_amp"),
            space_amp: median("/space_amp"),
            cpu_us_per_op: median("/cpu_us_per_op"),
            peak_rss_bytes: median("/peak_rss_bytes"),
        }
    }

    fn over(&self, other: &Self) -> Self {
        // Without the figure on one side there is no ratio: 0.
        let ratio = |a: f64, b: f64| if b == 0.0 { 0.0 } else { a / b };
        Self {
            store: String::new(),
            ops_per_sec: ratio(self.ops_per_sec, other.ops_per_sec),
            p50_us: ratio(self.p50_us, other.p50_us),
            p99_us: ratio(self.p99_us, other.p99_us),
            p999_us: ratio(self.p999_us, other.p999_us),
            max_us: ratio(self.max_us, other.max_us),
            write_amp: ratio(self.write_amp, other.write_amp),
            read_amp: ratio(self.read_amp, other.read_amp),
            space_amp: ratio(self.space_amp, other.space_amp),
            cpu_us_per_op: ratio(self.cpu_us_per_op, other.cpu_us_per_op),
            peak_rss_bytes: ratio(self.peak_rss_bytes, other.peak_rss_bytes),
        }
    }

    fn line(&self, unit: &str) -> String {
        let ratios = !unit.is_empty();
        let rate = if ratios { format!("{:.2}", self.ops_per_sec) } else { grouped(self.ops_per_sec) };
        let figure = |n: f64| if ratios { format!("{n:.2}") } else { format!("{n:.1}") };
        let memory = if ratios { self.peak_rss_bytes } else { self.peak_rss_bytes / f64::from(1 << 20) };
        format!(
            "{rate:>11} {:>9} {:>9} {:>9} {:>9} {:>7.2} {:>7.2} {:>7.2} {:>8.2} {:>8}",
            figure(self.p50_us),
            figure(self.p99_us),
            figure(self.p999_us),
            figure(self.max_us),
            self.write_amp,
            self.read_amp,
            self.space_amp,
            self.cpu_us_per_op,
            figure(memory)
        )
    }
}

/// The median of sorted figures; 0 if there are none.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match (sorted.get(half), sorted.len().is_multiple_of(2)) {
        (None, _) => 0.0,
        (Some(&upper), true) => f64::midpoint(sorted[half - 1], upper),
        (Some(&middle), false) => middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        for (figures, median) in [(&[][..], 0.0), (&[3.0], 3.0), (&[1.0, 2.0], 1.5), (&[1.0, 2.0, 9.0], 2.0)] {
            assert_eq!(middle(figures), median);
        }
    }

    #[test]
    fn options_together_are_one_store() {
        let sides = sides("memory_limit=64MiB,keyspace.compression=lz4").unwrap();
        let found: Vec<_> = sides.iter().map(|side| (side.label, &*side.name, side.arguments.join(" "))).collect();
        let set = "--set memory_limit=64MiB --set keyspace.compression=lz4";
        let name = "bifold memory_limit=64MiB,keyspace.compression=lz4";
        assert_eq!(found, [('A', "bifold", String::new()), ('B', name, set.to_owned())]);
    }

    #[cfg(feature = "fjall")]
    #[test]
    fn every_peer_is_a_store_of_its_own() {
        let sides = sides("fjall-blobs,memory_limit=64MiB,fjall").unwrap();
        let found: Vec<_> = sides.iter().map(|side| (side.label, &*side.name)).collect();
        assert_eq!(found, [('A', "bifold"), ('B', "fjall-blobs"), ('C', "fjall"), ('D', "bifold memory_limit=64MiB")]);
        assert!(super::sides("fjall,fjall").is_err());
    }

    #[test]
    fn ratios_are_first_over_second() {
        let phases = [serde_json::json!({"ops_per_sec": 200.0, "latency_us": {"p50": 1.0}, "write_amp": 3.0})];
        let a = Medians::of("a", &phases.iter().collect::<Vec<_>>());
        let b = Medians { ops_per_sec: 100.0, p50_us: 2.0, ..Medians::default() };
        let ratio = a.over(&b);
        assert_eq!((ratio.ops_per_sec, ratio.p50_us, ratio.write_amp), (2.0, 0.5, 0.0));
    }
}
