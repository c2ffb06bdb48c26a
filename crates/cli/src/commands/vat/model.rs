//! `vat model`: what a design costs, in a small table or as JSON.

use std::{fs, path::PathBuf};

use bifold_vat::{
    Compaction, Design, Growth, KeyShare, Levels, MergeAmplification, OutOfRange, Profile, Throughput, Tree, ValuePlace,
};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    global::Global,
    output::{self, Output, Tone},
};

pub const LONG_ABOUT: &str = "\
Print the cost of a design, and the best levels and size ratio for its size.

The size is the size ratio to the power of levels: how many times larger the last level is than memory. Only \
levels on the device count, not the one in memory.

  alpha      the share of the lower level that a merge reads and writes. 1: all of it; 0: none. `bifold stats DB \
  --json` prints that of a database; the paper measured 0.68 for RocksDB, 0.8 for BlobDB, 0.25 for Kreon.
  beta       the throughput of the device with requests of the store's size, over its best throughput. 1 for large \
tables; the paper measured 0.91 for reads of 8 KiB on NVMe. With --device it comes from a profile that `bifold vat \
calibrate` wrote, for --depth concurrent requests of --unit bytes: the harmonic mean of reads and writes.
  key share  bytes of a key and its pointer over bytes of key and value. With it, values are in a log.

With --json it prints `amplification`, `write_amplification`, `cost_ratio`, `space_amplification`, and `optimum` with \
`levels`, `growth` and `amplification` of the best whole number of levels for that size; also the input, with alpha as \
the model uses it: 0 for tiering.";

pub const EXAMPLES: &str = "Examples:
  bifold vat model --levels 5 --growth 4 --alpha 1                     # leveling at its best
  bifold vat model --levels 3 --growth 10 --alpha 0.68 --per-table     # as RocksDB compacts
  bifold vat model --levels 3 --growth 8 --alpha 0.25 --beta 0.91 --key-share 0.03
  bifold vat model --levels 3 --growth 8 --alpha 0.25 --device nvme.toml --unit 8KiB --depth 16
  bifold vat model --levels 3 --growth 10 --tiering --json | jq .cost_ratio";

#[derive(Args, Debug)]
pub struct ModelArgs {
    /// The number of levels on the device, 1 to 100.
    #[arg(long, value_name = "L", value_parser = levels, allow_hyphen_values = true)]
    pub levels: Levels,

    /// The size ratio: how many times larger each level is than the one above it; above 1.
    #[arg(long, value_name = "F", value_parser = |text: &str| number(text, Growth::new), allow_hyphen_values = true)]
    pub growth: Growth,

    /// The share of the lower level that a merge reads and writes, 0 to 1; not for tiering.
    #[arg(long, value_name = "A", value_parser = |text: &str| number(text, MergeAmplification::new),
        allow_hyphen_values = true, required_unless_present = "tiering")]
    pub alpha: Option<MergeAmplification>,

    /// The share of the device's throughput that the store achieves, above 0 to 1.
    #[arg(long, value_name = "B", value_parser = |text: &str| number(text, Throughput::new), default_value = "1",
        allow_hyphen_values = true)]
    pub beta: Throughput,

    /// Take beta from this profile, which `bifold vat calibrate` wrote.
    #[arg(long, value_name = "FILE", conflicts_with = "beta", requires = "unit")]
    pub device: Option<PathBuf>,

    /// The bytes of one read or write of the store, such as 8KiB, or the size of its tables.
    #[arg(long, value_name = "SIZE", value_parser = bifold::options::parse_size, requires = "device")]
    pub unit: Option<u64>,

    /// The number of concurrent requests.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "device")]
    pub depth: u32,

    /// Values are in a log, and keys are this share of keys and values, above 0 to 1.
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, KeyShare::new), allow_hyphen_values = true)]
    pub key_share: Option<KeyShare>,

    /// Tiering: a level moves down without a merge with the next one; alpha is 0.
    #[arg(long)]
    pub tiering: bool,

    /// Merge one table at a time into a level that is nearly full.
    #[arg(long, conflicts_with = "tiering")]
    pub per_table: bool,
}

/// The inputs and results. The names are documented.
#[derive(Serialize)]
struct ModelReport {
    compaction: &'static str,
    levels: u32,
    growth: f64,
    alpha: f64,
    beta: f64,
    device: Option<Device>,
    key_share: Option<f64>,
    size_ratio: f64,
    amplification: f64,
    write_amplification: f64,
    cost_ratio: f64,
    space_amplification: f64,
    optimum: Best,
}

/// The source of β, if it is a profile.
#[derive(Serialize)]
struct Device {
    #[serde(serialize_with = "output::path")]
    path: PathBuf,
    unit_bytes: u64,
    depth: u32,
    beta_read: f64,
    beta_write: f64,
}

/// The best whole number of levels for the size.
#[derive(Serialize)]
struct Best {
    levels: u32,
    growth: f64,
    amplification: f64,
}

/// `bifold vat model`
pub fn run(args: &ModelArgs, global: &Global, out: &mut Output) -> Result<()> {
    let tree = Tree::new(args.levels, args.growth).map_err(|error| Failure::trouble(error.to_string()))?;
    let (throughput, device) = args.throughput()?;
    let design = args.design()?.with_throughput(throughput);
    let report = ModelReport { device, ..report(args.levels, tree, design) };
    if global.json { out.json(&report) } else { print(&report, out) }
}

impl ModelArgs {
    fn design(&self) -> Result<Design> {
        let compaction = match (self.tiering, self.alpha) {
            (true, _) => Compaction::Tiering,
            (false, Some(alpha)) if self.per_table => Compaction::PerTable(alpha),
            (false, Some(alpha)) => Compaction::Leveling(alpha),
            (false, None) => return Err(Failure::trouble("--alpha is needed unless --tiering is given")),
        };
        let design = Design::new(compaction);
        Ok(self.key_share.map_or(design, |p| design.with_log(p)))
    }

    /// β, as given or from a profile.
    fn throughput(&self) -> Result<(Throughput, Option<Device>)> {
        let (Some(path), Some(unit_bytes)) = (&self.device, self.unit) else { return Ok((self.beta, None)) };
        let text = fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
        let wrong = |error: &dyn std::fmt::Display| Failure::trouble(format!("{}: {error}", path.display()));
        let profile = Profile::from_toml(&text).map_err(|error| wrong(&error))?;
        let beta = profile.beta(unit_bytes, self.depth).map_err(|error| wrong(&error))?;
        let (beta_read, beta_write) = (beta.read.get(), beta.write.get());
        let device = Device { path: path.clone(), unit_bytes, depth: self.depth, beta_read, beta_write };
        Ok((beta.both(), Some(device)))
    }
}

fn report(levels: Levels, tree: Tree, design: Design) -> ModelReport {
    let best = design.optimum(tree.size_ratio());
    ModelReport {
        compaction: match design.compaction {
            Compaction::Leveling(_) => "leveling",
            Compaction::PerTable(_) => "per-table",
            Compaction::Tiering => "tiering",
        },
        levels: levels.get(),
        growth: tree.growth(),
        alpha: design.compaction.alpha(),
        beta: design.throughput.get(),
        device: None,
        key_share: match design.values {
            ValuePlace::InPlace => None,
            ValuePlace::Log(p) => Some(p.get()),
        },
        size_ratio: tree.size_ratio().get(),
        amplification: design.amplification(tree),
        write_amplification: design.write_amplification(tree),
        cost_ratio: design.cost_ratio(tree),
        space_amplification: design.space_amplification(tree),
        optimum: Best { levels: best.levels.get(), growth: best.growth, amplification: best.amplification },
    }
}

fn print(report: &ModelReport, out: &mut Output) -> Result<()> {
    let kind = match report.compaction {
        "per-table" => "leveling, one table at a time",
        other => other,
    };
    let values = report.key_share.map_or_else(|| "inline values".to_owned(), |p| format!("values in a log, p = {p}"));
    let head = format!("{kind}, {} with size ratio {}", plural(report.levels), figure(report.growth));
    let (head, alpha, beta) = (out.paint(Tone::Strong, &head), report.alpha, figure(report.beta));
    out.line(format!("{head}  alpha = {alpha}, beta = {beta}, {values}"))?;
    if let Some(Device { path, unit_bytes, depth, beta_read, beta_write }) = &report.device {
        let (read, write, unit) = (figure(*beta_read), figure(*beta_write), output::bytes(*unit_bytes));
        let path = path.display();
        out.line(format!("beta of {path} at {unit}, depth {depth}: {read} for reads, {write} for writes"))?;
    }
    out.line(format!("the last level is {} times as large as memory\n", figure(report.size_ratio)))?;
    for (name, value, meaning) in [
        ("amplification", report.amplification, "bytes read and written on the device for each byte of data"),
        ("  written", report.write_amplification, "bytes written for each byte of data"),
        ("cost ratio", report.cost_ratio, "time over the time to append all data to one file: amplification / beta"),
        (
            "space amplification",
            report.space_amplification,
            "extra bytes for each byte of data while upper levels are full",
        ),
    ] {
        out.line(format!("  {name:<20} {:>9}   {}", figure(value), out.paint(Tone::Dim, meaning)))?;
    }
    let best = &report.optimum;
    out.line(format!("\n{}", out.paint(Tone::Strong, "the best for this size")))?;
    for (name, value, meaning) in [
        ("levels", f64::from(best.levels), "the whole number that moves the fewest bytes"),
        ("size ratio", best.growth, "gives the same size with that many levels"),
        ("amplification", best.amplification, "bytes read and written there for each byte of data"),
    ] {
        out.line(format!("  {name:<20} {:>9}   {}", figure(value), out.paint(Tone::Dim, meaning)))?;
    }
    Ok(())
}

fn plural(levels: u32) -> String {
    format!("{levels} level{}", if levels == 1 { "" } else { "s" })
}

/// A figure with at least three digits, without meaningless ones: `24`, `7.7`, `0.333`, `1 024`.
fn figure(value: f64) -> String {
    if value >= 1e9 || (value > 0.0 && value < 1e-3) {
        return format!("{value:.2e}");
    }
    let decimals = match value {
        v if v >= 1000.0 => return bifold_lab::report::grouped(v),
        v if v >= 100.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn levels(text: &str) -> std::result::Result<Levels, String> {
    let levels = text.parse().map_err(|_| format!("levels must be a whole number from 1 to 100, not {text}"))?;
    Levels::new(levels).map_err(|error| error.to_string())
}

/// A number that `new` accepts.
fn number<T>(text: &str, new: impl Fn(f64) -> std::result::Result<T, OutOfRange>) -> std::result::Result<T, String> {
    let number = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    new(number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_say_something() {
        for (value, text) in [
            (24.0, "24"),
            (7.7, "7.7"),
            (1.0 / 3.0, "0.3333"),
            (3.981, "3.98"),
            (100.04, "100"),
            (1024.0, "1 024"),
            (1e15, "1.00e15"),
            (1e-9, "1.00e-9"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
