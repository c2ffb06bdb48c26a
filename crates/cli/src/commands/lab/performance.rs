//! `lab run performance`: prints the figures as tables, and which targets were reached.

use bifold_lab::{
    experiment::{
        CheckOutcome, Data, Experiment,
        data::{
            CPU_US, DEVICE_BYTES_OF_ONE, DEVICE_READS_OF_ONE, OTHERS, P50_US, P99_US, P999_US, P9999_US, RATE,
            SLOWEST_OWN_US, SLOWEST_US, STEAL, of_step,
        },
        performance::Setting,
    },
    quiet::QUIET_BELOW,
    record::Run,
    report::grouped,
};
use serde::Serialize;

use crate::{
    failure::Result,
    global::Global,
    output::{Output, Tone},
};

/// The columns of a table: head, figure, what it is divided by.
const COLUMNS: [(&str, &str, f64); 10] = [
    ("a second", RATE, 1.0),
    ("p50, µs", P50_US, 1.0),
    ("p99", P99_US, 1.0),
    ("p99.9", P999_US, 1.0),
    ("p99.99", P9999_US, 1.0),
    ("slowest, ms", SLOWEST_US, 1e3),
    ("… without stalls", SLOWEST_OWN_US, 1e3),
    ("device reads", DEVICE_READS_OF_ONE, 1.0),
    ("device KiB", DEVICE_BYTES_OF_ONE, 1024.0),
    ("CPU, µs", CPU_US, 1.0),
];

/// The figures of a step of a store, as a line of JSON.
#[derive(Serialize)]
struct StepLine<'a> {
    setting: &'a str,
    step: &'a str,
    store: &'a str,
    rounds: usize,
    ops_per_sec: Option<f64>,
    latency_us: Latency,
    /// The slowest operation without the time for which the machine stalled.
    slowest_own_us: Option<f64>,
    device_requests_per_op: Option<f64>,
    device_bytes_per_op: Option<f64>,
    cpu_us_per_op: Option<f64>,
    /// The most that others and the host took in any round, in processors.
    others: f64,
}

#[derive(Serialize)]
struct Latency {
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    p9999: Option<f64>,
    max: Option<f64>,
}

/// A target and whether it was reached, as a line of JSON.
#[derive(Serialize)]
struct Target<'a> {
    setting: &'a str,
    target: &'a str,
    rule: &'a str,
    ours: Option<f64>,
    reached: Option<bool>,
}

/// Prints medians of all rounds, and the targets.
pub fn print(experiment: &Experiment, setting: Setting, runs: &[Run], global: &Global, out: &mut Output) -> Result<()> {
    let data = Data::new(&experiment.arms, runs);
    for step in setting.shown() {
        if global.json {
            lines(setting, step, &data, out)?;
        } else {
            table(step, &data, out)?;
        }
    }
    for CheckOutcome { what, rule, ours, holds, .. } in &experiment.outcomes(&data) {
        if global.json {
            out.json(&Target { setting: setting.name(), target: what, rule, ours: *ours, reached: *holds })?;
            continue;
        }
        let (word, tone) = match holds {
            Some(true) => ("reached", Tone::Good),
            Some(false) => ("missed", Tone::Bad),
            None => ("-", Tone::Dim),
        };
        let ours = ours.map_or_else(|| "not measured".to_owned(), |ours| format!("{ours:.2}"));
        let word = out.paint(tone, &format!("{word:<8}"));
        out.line(format!("{word} {what}: {ours} ({rule})"))?;
    }
    if global.json { Ok(()) } else { say_busy(setting, &data, out) }
}

/// A step of all stores, as a table of Markdown.
fn table(step: &str, data: &Data<'_>, out: &mut Output) -> Result<()> {
    let heads: Vec<&str> = COLUMNS.iter().map(|(head, _, _)| *head).collect();
    out.line(out.paint(Tone::Strong, &format!("| {step} | {} |", heads.join(" | "))))?;
    out.line(format!("|---|{}", "--:|".repeat(COLUMNS.len())))?;
    for store in data.series() {
        let figure = |&(_, metric, per): &(&str, &str, f64)| {
            data.of(store, step, metric).map_or_else(|| "–".to_owned(), |figure| short(figure / per))
        };
        let figures: Vec<String> = COLUMNS.iter().map(figure).collect();
        out.line(format!("| {store} | {} |", figures.join(" | ")))?;
    }
    out.line("")?;
    Ok(())
}

/// Three digits, or all of a whole number.
fn short(figure: f64) -> String {
    match figure {
        figure if figure < 10.0 => format!("{figure:.2}"),
        figure if figure < 100.0 => format!("{figure:.1}"),
        figure => grouped(figure),
    }
}

fn lines(setting: Setting, step: &str, data: &Data<'_>, out: &mut Output) -> Result<()> {
    for (arm, runs) in data.measured() {
        let of = |metric| data.of(&arm.series, step, metric);
        out.json(&StepLine {
            setting: setting.name(),
            step,
            store: &arm.series,
            rounds: runs.len(),
            ops_per_sec: of(RATE),
            latency_us: Latency {
                p50: of(P50_US),
                p99: of(P99_US),
                p999: of(P999_US),
                p9999: of(P9999_US),
                max: of(SLOWEST_US),
            },
            slowest_own_us: of(SLOWEST_OWN_US),
            device_requests_per_op: of(DEVICE_READS_OF_ONE),
            device_bytes_per_op: of(DEVICE_BYTES_OF_ONE),
            cpu_us_per_op: of(CPU_US),
            others: runs.iter().map(|run| others(run, step)).fold(0.0, f64::max),
        })?;
    }
    Ok(())
}

/// What others and the host took during a step, in processors.
fn others(run: &Run, step: &str) -> f64 {
    [OTHERS, STEAL].iter().filter_map(|metric| of_step(run, step, metric)).sum()
}

/// Says how many steps others disturbed.
fn say_busy(setting: Setting, data: &Data<'_>, out: &mut Output) -> Result<()> {
    let shown = setting.shown();
    let runs = || data.measured().flat_map(|(_, runs)| runs.iter().copied());
    let taken: Vec<f64> = runs().flat_map(|run| shown.iter().map(|step| others(run, step))).collect();
    let busy = taken.iter().filter(|taken| **taken >= QUIET_BELOW).count();
    let most = taken.iter().copied().fold(0.0, f64::max);
    let line = format!(
        "In {busy} of {} steps others, the kernel's own threads among them, took {QUIET_BELOW} processors or more; at \
         most {most:.2}.",
        taken.len()
    );
    out.line(out.paint(if busy == 0 { Tone::Dim } else { Tone::Strong }, &line))
}
