//! `bench --compare`: stores in turns, A B C A B C, by the lab's driver; medians, and ratios of the first to each of
//! the others.

use bifold::Options;
use bifold_lab::{
    Plan, Spec,
    driver::{self, Job, Watch},
    execute::Seen,
    experiment::{Arm, data::middle, setup},
    record::Run,
    report::grouped,
    spec::PageCache,
    store::peer::Peer,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    bench::{BenchArgs, Place},
    lab::launch::Processes,
};
use crate::{
    failure::{Failure, Result},
    global::Global,
    open,
    output::{Output, Tone},
    progress::Progress,
};

/// One of the stores.
struct Side {
    /// A for Bifold as given, B, C, … for the others.
    label: char,
    name: String,
    /// `bifold` or the name of a peer.
    store: String,
    /// Its options, as `name=value` words, in addition to those of all sides.
    set: Vec<String>,
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
pub fn run(args: &BenchArgs, plan: &Plan, with: &str, global: &Global, out: &mut Output) -> Result<()> {
    if args.peer.is_some() {
        return Err(Failure::trouble("--compare runs Bifold against WITH: leave --peer out"));
    }
    if args.rounds == 0 {
        return Err(Failure::trouble("--rounds 0 measures nothing: give at least 1"));
    }
    let sides = sides(with)?;
    let arms = sides.iter().map(|side| side.arm(args, plan, global)).collect::<Result<Vec<_>>>()?;
    let rounds = 1..=args.rounds;
    let jobs: Vec<_> = rounds
        .flat_map(|round| arms.iter().map(move |arm| Job { experiment: "bench", arm, round, again_within: None }))
        .collect();
    let place = Place::new(args.dir.as_deref())?;
    if !global.json {
        let names: Vec<_> = sides.iter().map(|side| format!("{} {}", side.label, side.name)).collect();
        out.line_now(out.paint(Tone::Dim, &args.describe(&names.join(", "), &place.dir)))?;
    }
    let mut runs: Vec<Run> = Vec::new();
    let mut shown = CompareProgress { out, quiet: global.json, sides: &sides, bar: Progress::steps() };
    driver::drive(&jobs, &place.dir, &Processes::Anytime, &mut shown, &mut |run| {
        runs.push(run);
        Ok(())
    })?;
    drop(shown);
    report(args, &sides, &runs, global, out)
}

impl Side {
    /// Its run.
    fn arm(&self, args: &BenchArgs, plan: &Plan, global: &Global) -> Result<Arm> {
        // The preset comes first, so that an option of the side itself overrides it.
        let preset = args.placement.iter().map(|name| format!("keyspace.preset={name}"));
        let durability = global.durability.map(|level| format!("durability={}", format!("{level:?}").to_lowercase()));
        let spec = Spec {
            store: self.store.clone(),
            toml: global.options.as_deref().map(open::text_of).transpose()?,
            set: preset.chain(global.set.iter().cloned()).chain(self.set.iter().cloned()).chain(durability).collect(),
            plan: plan.clone(),
            input: None,
            steps: setup::steps(&args.workload),
            page_cache: PageCache::Warm,
            process_memory: None,
        };
        spec.options()?;
        Ok(Arm { series: self.name.clone(), x: None, spec })
    }
}

/// Progress: a bar at a terminal, and a line for each finished run.
struct CompareProgress<'a> {
    out: &'a mut Output,
    quiet: bool,
    sides: &'a [Side],
    bar: Progress,
}

impl Watch for CompareProgress<'_> {
    fn begin(&mut self, _: &Job<'_>, _: usize, _: usize) {
        self.bar = Progress::steps();
    }

    fn seen(&mut self, job: &Job<'_>, seen: &Seen) {
        let what = format!("round {} {}: {}", job.round, job.arm.series, seen.step);
        self.bar.reach(&what, seen.done, seen.total);
    }

    fn end(&mut self, run: &Run) {
        if !self.quiet {
            let label = self.sides.iter().find(|side| side.name == run.arm).map_or('?', |side| side.label);
            let rates: Vec<String> = run.steps.iter().map(rate).collect();
            // If nobody reads the output any more, the command ends when it prints the medians.
            let _ = self.out.line_now(format!("round {} {label} {}", run.round, rates.join("  ")));
        }
    }
}

/// Bifold as given, then each peer of `with`, then Bifold with the options in `with`, if there are any.
fn sides(with: &str) -> Result<Vec<Side>> {
    let bifold = || "bifold".to_owned();
    let mut sides = vec![Side { label: 'A', name: bifold(), store: bifold(), set: Vec::new() }];
    let mut add = |name: String, store: String, set: Vec<String>| {
        if sides.iter().any(|side| side.name == name) {
            return Err(Failure::trouble(format!("--compare={with}: {name} is given twice")));
        }
        sides.extend(('A'..='Z').nth(sides.len()).map(|label| Side { label, name, store, set }));
        Ok(())
    };
    let mut sets = Vec::new();
    for part in with.split(',') {
        match part.parse::<Peer>() {
            Ok(peer) => {
                peer.check_built_in()?;
                add(part.to_owned(), part.to_owned(), Vec::new())?;
            }
            Err(_) => sets.push(part.to_owned()),
        }
    }
    // A typo must be reported before the first side runs.
    sets.iter().try_for_each(|set| Options::default().set(set))?;
    if !sets.is_empty() {
        add(format!("bifold {}", sets.join(",")), bifold(), sets)?;
    }
    Ok(sides)
}

fn rate(phase: &Value) -> String {
    let name = phase["phase"].as_str().unwrap_or("?");
    format!("{name} {}/s", grouped(phase["ops_per_sec"].as_f64().unwrap_or(0.0)))
}

fn report(args: &BenchArgs, sides: &[Side], runs: &[Run], global: &Global, out: &mut Output) -> Result<()> {
    if !global.json {
        out.line(String::new())?;
        out.line(out.paint(Tone::Strong, &format!("medians of {} rounds; ×: A over the line above", args.rounds)))?;
        out.line(out.paint(Tone::Strong, &head()))?;
    }
    for (at, workload) in args.workload.iter().enumerate() {
        let medians = |side: &Side| {
            let runs = runs.iter().filter(|run| run.arm == side.name);
            let phases: Vec<&Value> = runs.filter_map(|run| run.steps.get(at)).collect();
            Medians::of(&side.name, &phases)
        };
        let medians: Vec<Medians> = sides.iter().map(medians).collect();
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
            // Without the figure the median is 0.
            middle(&figures).unwrap_or(0.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_together_are_one_store() {
        let sides = sides("memory_limit=64MiB,keyspace.compression=lz4").unwrap();
        let found: Vec<_> = sides.iter().map(|side| (side.label, &*side.name, side.set.join(" "))).collect();
        let set = "memory_limit=64MiB keyspace.compression=lz4";
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
