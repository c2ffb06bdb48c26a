//! `advise`: which placement and which tree fit a workload, by the cost model.
//!
//! | file | what it is |
//! |---|---|
//! | [`described`] | a workload from a TOML file |
//! | [`traced`] | a workload from a trace of operations |
//! | [`stored`] | sizes, keys and updates of a database |
//! | [`chosen`] | a candidate as options of the engine |
//! | [`show`] | the table |

mod chosen;
mod described;
mod show;
mod stored;
mod traced;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use bifold::Options;
use bifold_lab::system::memory_info;
use bifold_vat::{
    Profile,
    advise::{Advice, Candidate, Forecast, Machine, Workload, advise},
};
use clap::Args;
use serde::Serialize;

use self::stored::Stored;
use crate::{
    failure::{Failure, Result},
    global::Global,
    open,
    output::Output,
    publish::{NewFile, publish},
};

pub const LONG_ABOUT: &str = "\
Say which placement of values, which thresholds and which tree fit a workload, and why.

Compares all placements with their main parameters: operations per second, what limits them, bytes written, read and \
stored for each byte, memory for indexes. The best comes first. Those that would exceed the space target come last; \
the 256 MiB that level 0 may hold do not count. The advice can be to keep values inline. docs/cost-model.md has every \
formula and its error.

The workload comes from a file, from a database, or from both: sizes from the database, operations from the file.

  --workload FILE.toml   a description:
      keys = 10_000_000
      key_bytes = 24
      value_bytes = 1000        # or \"4KiB\", or [{ bytes = 100, share = 9 }, { bytes = \"64KiB\", share = 1 }]
      [operations]              # how often each is called, relative to the others
      insert = 5
      update = 45
      delete = 0
      read = 50
      scan = 0
      scan_entries = 100        # entries of each scan
      [skew]                    # Zipf's theta, from 0 (all keys alike) to 0.999
      updates = 0.99
      reads = 0.9
  --workload FILE        any other name: a trace with one operation per line, words separated by blanks:
      put KEY BYTES | get KEY | delete KEY | scan KEY ENTRIES     lines that begin with # are comments
  --db DB                sizes and number of entries of a keyspace, from a sample, and the number of writes so far; a \
database does not record reads, so give --reads-per-write and --scans-per-write.

The machine: --set memory_limit=SIZE and --set keyspace.values.space_target=N limit the store, --page-cache is the \
memory in which the system caches its files, --device is a profile from `bifold vat calibrate`. With --db the space \
target is that of the keyspace unless it is given. Without a device only the processor counts, as for data that fit \
into memory.";

pub const EXAMPLES: &str = "Examples:
  bifold advise --workload session-store.toml --set memory_limit=1GiB
  bifold advise --workload ops.trace --device nvme.toml --page-cache 8GiB
  bifold advise --db my.db --reads-per-write 10 --apply options.toml
  bifold bench --options options.toml";

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["workload", "db"]))]
pub struct AdviseArgs {
    /// What the program does: a description (.toml) or a trace.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,

    /// Take sizes, the number of keys and the history of writes from this database.
    #[arg(long, value_name = "DB")]
    pub db: Option<PathBuf>,

    /// Reads per write, if only a database is given.
    #[arg(long, value_name = "N", default_value_t = 1.0, allow_hyphen_values = true)]
    pub reads_per_write: f64,

    /// Scans of 100 entries per write, if only a database is given.
    #[arg(long, value_name = "N", default_value_t = 0.0, allow_hyphen_values = true)]
    pub scans_per_write: f64,

    /// Zipf's theta of reads and updates, if only a database is given.
    #[arg(long, value_name = "THETA", default_value_t = 0.9, allow_hyphen_values = true)]
    pub skew: f64,

    /// The profile of the device, from `bifold vat calibrate`.
    #[arg(long, value_name = "PROFILE")]
    pub device: Option<PathBuf>,

    /// The memory in which the system caches the store's files [default: half of the machine's].
    #[arg(long, value_name = "SIZE", value_parser = bifold::options::parse_size)]
    pub page_cache: Option<u64>,

    /// Processors for the program and the store [default: those of this machine].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub processors: Option<u32>,

    /// Write options for the best candidate to this file, for --options and `Options::from_toml`.
    #[arg(long, value_name = "FILE.toml")]
    pub apply: Option<PathBuf>,
}

/// The output with --json. The names are documented.
#[derive(Serialize)]
struct AdviceReport<'a> {
    workload: &'a Workload,
    machine: MachineReport,
    why: String,
    /// Options for the best candidate, as TOML.
    options: String,
    candidates: &'a [Forecast],
}

#[derive(Serialize)]
struct MachineReport {
    processors: u32,
    memory_limit: u64,
    page_cache: u64,
    space_target: f64,
    device: Option<String>,
}

/// `bifold advise`
pub fn run(args: &AdviseArgs, global: &Global, out: &mut Output) -> Result<()> {
    let given = open::options(global)?;
    let device = args.device.as_deref().map(profile).transpose()?;
    let described = args.workload.as_deref().map(read).transpose()?;
    let stored = args.db.as_deref().map(|db| Stored::of(db, global)).transpose()?;
    let options = match &stored {
        Some(stored) => open::overlaid(stored.options(), global, None)?,
        None => given,
    };
    let machine = args.machine(&options, device.as_ref());
    let workload = args.workload(described, stored)?;
    let advice = advise(workload, &machine).map_err(|error| Failure::trouble(format!("{}: {error}", args.source())))?;
    let chosen = chosen::options(&options, &advice.best().candidate);
    chosen.check()?;
    if let Some(path) = &args.apply {
        let head = chosen::head(advice.best(), &args.source());
        publish(&[NewFile { path: path.clone(), content: format!("{head}{}", chosen.to_toml()).into_bytes() }])?;
    }
    if !global.json {
        return show::show(&advice, &machine, args, out);
    }
    let machine = MachineReport {
        processors: machine.processors,
        memory_limit: options.memory_limit,
        page_cache: machine.page_cache as u64,
        space_target: machine.space,
        device: args.device.as_ref().map(|path| path.display().to_string()),
    };
    let (why, candidates) = (advice.why(), advice.forecasts());
    out.json(&AdviceReport { workload: advice.workload(), machine, why, options: chosen.to_toml(), candidates })
}

fn profile(path: &Path) -> Result<Profile> {
    let text = fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    Profile::from_toml(&text).map_err(|error| Failure::trouble(format!("{}: {error}", path.display())))
}

impl AdviseArgs {
    fn machine<'a>(&self, options: &Options, device: Option<&'a Profile>) -> Machine<'a> {
        let here = || thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
        Machine {
            processors: self.processors.unwrap_or_else(here),
            memory_limit: options.memory_limit as f64,
            page_cache: self.page_cache.unwrap_or_else(half_of_memory) as f64,
            device,
            space: options.keyspace.values.space_target,
        }
    }

    fn workload(&self, described: Option<Workload>, stored: Option<Stored>) -> Result<Workload> {
        match (described, stored) {
            (Some(described), Some(stored)) => Ok(stored.under(described)),
            (Some(described), None) => Ok(described),
            (None, Some(stored)) => Ok(stored.assuming(self.reads_per_write, self.scans_per_write, self.skew)),
            (None, None) => Err(Failure::trouble("--workload or --db is needed")),
        }
    }

    /// The source of the figures, for messages.
    fn source(&self) -> String {
        let paths = [&self.workload, &self.db].into_iter().flatten();
        paths.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    }
}

fn read(path: &Path) -> Result<Workload> {
    if path.extension().is_some_and(|extension| extension == "toml") {
        described::read(path)
    } else {
        traced::read(path)
    }
}

/// Half of the machine's memory, or of 8 GiB if the system does not report it.
fn half_of_memory() -> u64 {
    memory_info("MemTotal").unwrap_or(8 << 30) / 2
}

/// A short description of a candidate.
fn describe(candidate: &Candidate, advice: &Advice) -> String {
    let separates =
        candidate.min_bytes.filter(|_| advice.workload().values.iter().any(|v| candidate.separates(v.bytes)));
    let shape = chosen::shape(candidate);
    let blocks = if candidate.block_bytes < 4096 { ", blocks of 1 KiB" } else { "" };
    let from = separates.map_or(String::new(), |bytes| format!(", from {bytes} B"));
    format!("{shape}{from}{blocks}")
}
