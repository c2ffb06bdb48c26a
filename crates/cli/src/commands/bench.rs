//! `bench`: the lab's workloads from the command line.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bifold::{DEFAULT_KEYSPACE, Options, PlacementKind};
use bifold_lab::{
    PhaseReport, Plan, Runner, Store, Workload,
    choose::Distribution,
    keys::Order,
    store::{bifold::BifoldStore, cached::CachedStore, peer::Peer},
    values::Sizes,
};
use clap::{
    Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use serde::Serialize;

use super::compare;
use crate::{
    failure::{Failure, Result},
    global::Global,
    interrupt::{Unfinished, making},
    open,
    output::{Output, Tone},
};

pub const LONG_ABOUT: &str = "\
Measure load, update, read, scan and YCSB, for Bifold alone or compared with a peer.

Workloads, in any order, separated by commas:
  load      every key once, in hashed order        missing  reads of missing keys
  update    overwrites, Zipf 0.99 unless --dist    scan     --scan-len consecutive keys from a random one on
  read      reads, uniform unless --read-dist      mix      half reads, half overwrites
  ycsb-a    50 % read, 50 % update, Zipf           ycsb-d   95 % read of the newest, 5 % insert
  ycsb-b    95 % read, 5 % update, Zipf            ycsb-e   95 % scan, 5 % insert, Zipf
  ycsb-c    reads, Zipf                            ycsb-f   50 % read, 50 % read-modify-write, Zipf
  mix-30    30 % reads, 70 % overwrites            mix-70   70 % reads, 30 % overwrites
  insert    new keys                               scan-back  a scan in descending order
  settle    flush, wait for background work        compact  compact everything

Every value that is read by its key is checked, and of a scan the first value and the order of keys; a wrong one ends \
the run. Write, read and space amplification and `gc` count from the beginning of the run; bytes by source (--json) \
are those of the phase. Values are incompressible unless --compressible is given. Latencies are those of a closed \
loop: a waiting thread issues no other request.";

pub const EXAMPLES: &str = "Examples:
  bifold bench --num 1000000 --value-size 1000
  bifold bench --workload load,ycsb-a,ycsb-b --threads 4 --value-size pareto
  bifold bench --dir /mnt/nvme/test --workload load,update,settle,read,scan --json
  bifold bench --set memory_limit=64MiB --set keyspace.compression=lz4 --compressible 0.5
  bifold bench --compare=keyspace.compaction.tiered.size_ratio=4 --rounds 3
  bifold bench --compare=rocksdb,blobdb --rounds 3      # needs a build with --features rocksdb
  bifold bench --compare=fjall,fjall-blobs,redb,lmdb    # needs a build with --features fjall,redb,lmdb";

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// The placement of values, with its tree: as --set keyspace.preset=NAME before all other --set.
    #[arg(long, value_name = "NAME")]
    pub placement: Option<String>,

    /// The database's directory [default: a temporary one, removed at the end].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// What to measure, in this order.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "load,update,read,scan")]
    pub workload: Vec<Workload>,

    /// The number of keys.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub num: u64,

    /// Operations of each phase after the load [default: as many as keys; scans read as many keys in total].
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,

    /// End each phase after the load when this many seconds have passed.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub seconds: Option<f64>,

    /// Bytes of each value, or `pareto` for sizes of a generalised Pareto distribution (0.92, 226, 0; at most
    /// 128 KiB).
    #[arg(long, value_name = "BYTES|pareto", default_value = "1000", value_parser = sizes)]
    pub value_size: Sizes,

    /// Bytes of each key.
    #[arg(long, value_name = "BYTES", default_value_t = 24)]
    pub key_size: usize,

    /// Fraction of each value that compresses away, 0 to 1.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    pub compressible: f64,

    /// The order in which keys are loaded.
    #[arg(long, value_enum, default_value = "hashed")]
    pub order: KeyOrder,

    /// How `update`, `mix`, `mix-30` and `mix-70` choose keys.
    #[arg(long, value_enum, default_value = "zipf")]
    pub dist: Dist,

    /// How `read`, `missing`, `scan` and `scan-back` choose keys.
    #[arg(long, value_enum, default_value = "uniform")]
    pub read_dist: Dist,

    /// The skew of Zipf's law, between 0 and 1.
    #[arg(long, value_name = "THETA", default_value_t = 0.99)]
    pub theta: f64,

    /// Keys in each scan.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub scan_len: usize,

    /// Keys in each commit.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,

    /// Threads that call the store.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// The seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Measure this store instead of Bifold.
    #[arg(long, value_name = "NAME", value_parser = peers())]
    pub peer: Option<Peer>,

    /// Gather writes in a cache of this size, as HashKV's stores do: a crash loses what is in it.
    #[arg(long, value_name = "SIZE", value_parser = bifold::options::parse_size)]
    #[arg(conflicts_with_all = ["peer", "compare"])]
    pub write_cache: Option<u64>,

    /// Compare with peers, and with Bifold under other options (NAME=VALUE), in turns; separate several by commas.
    #[arg(long, value_name = "WITH", num_args = 0..=1, require_equals = true, default_missing_value = "rocksdb")]
    pub compare: Option<String>,

    /// How often --compare runs each store.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyOrder {
    /// In hashed order.
    Hashed,
    /// In ascending order.
    Sequential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dist {
    /// Uniformly.
    Uniform,
    /// A few keys often, most rarely.
    Zipf,
    /// The newest keys most often.
    Latest,
    /// Nine of ten operations in a tenth of the keys; in another tenth after as many operations as there are keys.
    Shifting,
}

impl Dist {
    fn with(self, theta: f64) -> Distribution {
        match self {
            Self::Uniform => Distribution::Uniform,
            Self::Zipf => Distribution::Zipf { theta },
            Self::Latest => Distribution::Latest { theta },
            Self::Shifting => Distribution::Shifting,
        }
    }
}

/// Parses the name of a peer; the help has a line for each.
fn peers() -> impl TypedValueParser<Value = Peer> {
    let names = Peer::ALL.map(|peer| PossibleValue::new(peer.name()).help(peer.about()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Peer>())
}

/// Parses `--value-size`.
pub fn sizes(text: &str) -> std::result::Result<Sizes, String> {
    match text {
        "pareto" => Ok(Sizes::Pareto),
        _ => bifold::options::parse_size(text)
            .ok()
            .and_then(|bytes| usize::try_from(bytes).ok())
            .map(Sizes::Fixed)
            .ok_or_else(|| "give a number of bytes, a size such as 4KiB, or pareto".to_owned()),
    }
}

/// A phase's figures with their context.
#[derive(Serialize)]
struct PhaseLine<'a> {
    #[serde(flatten)]
    report: &'a PhaseReport,
    /// Other stores have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<PlacementKind>,
    keys: u64,
    key_bytes: usize,
    value_bytes: Option<usize>,
    threads: usize,
    batch: usize,
    seed: u64,
}

/// `bifold bench`
pub fn run(args: &BenchArgs, global: &Global, out: &mut Output) -> Result<()> {
    let plan = args.plan()?;
    if global.keyspace != DEFAULT_KEYSPACE {
        // Stores of other makers have one keyspace, and all stores are measured alike.
        let why = "bench works on keyspace `default` alone: leave --keyspace out, or name another directory with --dir";
        return Err(Failure::trouble(why));
    }
    open::options_for(global, args.placement.as_deref())?;
    args.peer.map_or(Ok(()), Peer::check_built_in)?;
    if let Some(with) = &args.compare {
        return compare::run(args, &plan, with, global, out);
    }
    let place = Place::new(args.dir.as_deref())?;
    let options = args.options(&place.dir, global)?;
    let placement = args.peer.is_none().then(|| options.keyspace.resolved().placement);
    let store = open_store(args, &place.dir, options)?;
    let mut runner = Runner::new(&*store, &place.dir, plan, &args.workload)?;
    if !global.json {
        let name = format!("{} {}", store.name(), store.version());
        out.line(out.paint(Tone::Dim, &args.describe(name.trim_end(), &place.dir)))?;
        let settings: Vec<_> = store.settings().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        if !settings.is_empty() {
            out.line(out.paint(Tone::Dim, &settings.join(", ")))?;
        }
        out.line_now(out.paint(Tone::Strong, &PhaseReport::table_head()))?;
    }
    for &workload in &args.workload {
        let report = runner.phase(workload)?;
        if global.json {
            out.json(&args.line(&report, placement))?;
        } else {
            out.line_now(report.table_line())?;
            if let Some(line) = report.slow_line() {
                out.line_now(out.paint(Tone::Dim, &line))?;
            }
        }
    }
    drop(runner);
    store.close()?;
    Ok(())
}

impl BenchArgs {
    /// The plan of a run.
    fn plan(&self) -> Result<Plan> {
        let time_max = self.seconds.map(Duration::try_from_secs_f64).transpose();
        let plan = Plan {
            keys: self.num,
            operations: self.ops,
            time_max: time_max.map_err(|e| Failure::trouble(format!("--seconds: {e}")))?,
            key_bytes: self.key_size,
            order: match self.order {
                KeyOrder::Hashed => Order::Hashed,
                KeyOrder::Sequential => Order::Sequential,
            },
            sizes: self.value_size,
            compressible: self.compressible,
            updates: self.dist.with(self.theta),
            reads: self.read_dist.with(self.theta),
            theta: self.theta,
            scan_len: self.scan_len,
            batch: self.batch,
            threads: self.threads,
            seed: self.seed,
        };
        plan.check()?;
        Ok(plan)
    }

    fn options(&self, dir: &Path, global: &Global) -> Result<Options> {
        match self.peer {
            None => {
                let options = open::prepared(dir, global, self.placement.as_deref())?;
                let of_transactions = self.write_cache.or(options.transaction_bytes_max);
                Ok(Options { transaction_bytes_max: of_transactions, ..options })
            }
            Some(_) => open::overlaid(Options::default(), global, self.placement.as_deref()),
        }
    }

    fn line<'a>(&self, report: &'a PhaseReport, placement: Option<PlacementKind>) -> PhaseLine<'a> {
        PhaseLine {
            report,
            placement,
            keys: self.num,
            key_bytes: self.key_size,
            value_bytes: match self.value_size {
                Sizes::Fixed(bytes) => Some(bytes),
                _ => None,
            },
            threads: self.threads,
            batch: self.batch,
            seed: self.seed,
        }
    }

    /// One line that describes the run.
    pub fn describe(&self, store: &str, dir: &Path) -> String {
        format!(
            "{store} in {}: {} keys of {} B, values {}, threads {}, batch {}, seed {}",
            dir.display(),
            self.num,
            self.key_size,
            self.value_size,
            self.threads,
            self.batch,
            self.seed
        )
    }
}

fn open_store(args: &BenchArgs, dir: &Path, options: Options) -> Result<Box<dyn Store>> {
    making(|| {
        let store: Box<dyn Store> = match args.peer {
            None if args.write_cache.is_some() => Box::new(CachedStore::open(dir, options)?),
            None => Box::new(BifoldStore::open(dir, options)?),
            Some(peer) => peer.open(dir, &options)?,
        };
        Ok(store)
    })
}

/// The directory of the database; a temporary one is removed on drop.
pub struct Place {
    pub dir: PathBuf,
    temporary: Option<Unfinished>,
}

impl Place {
    /// The given directory, or a temporary one. It is made if needed, so that its size can be watched from the
    /// beginning.
    pub fn new(dir: Option<&Path>) -> Result<Self> {
        let temporary = || std::env::temp_dir().join(format!("bifold-bench-{}", std::process::id()));
        let path = dir.map_or_else(temporary, Path::to_owned);
        let place = Self { temporary: dir.is_none().then(|| Unfinished::new(&path)), dir: path };
        making(|| fs::create_dir_all(&place.dir)).map_err(|e| Failure::file("create directory", &place.dir, &e))?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.temporary.is_some() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
