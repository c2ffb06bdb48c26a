//! `vat validate`: compares what the engine moves with the model, for trees of several depths.
//!
//! | file | what it is |
//! |---|---|
//! | [`config`] | the trees, and the engine's options for them |
//! | [`run`] | fills one tree, and counts what was read and written |
//! | [`verdict`] | compares measurement and prediction, and finds what the model leaves out |
//! | [`picture`] | both as curves |

mod config;
mod picture;
mod run;
mod verdict;

use std::path::{Path, PathBuf};

use bifold_lab::chart::svg;
use clap::Args;

use self::{
    config::{Config, Load, Place, Shape, Tables},
    verdict::Row,
};
use crate::{
    args::Global,
    failure::{Failure, Result},
    open,
    output::{self, Output, Tone},
    progress::Progress,
    publish::{self, NewFile, publish},
    room,
};

pub const LONG_ABOUT: &str = "\
Fill trees of several depths with the engine, and compare the bytes it moves with the model.

The trees are leveled and tiered, with inline values and with a value log, each with every number of --levels. Leveled \
trees come in three kinds: levels of one table, which are merged as a whole; tables of a quarter of a flush, which are \
merged one at a time; and, once, tables of 8 KiB. Keys are uniform and distinct, and each flush has the same number of \
entries, so the last level becomes as large as in the model: the growth factor to the power of levels. The figures \
follow from the options and the seed alone.

  measured   bytes that flushes, compactions and the value log read and write until all data are in the last level, \
  over bytes of keys and values
  predicted  the model's amplification, with the alpha that the engine measured and, with a log, its key share; for \
  leveling plus the cost of level 0, which in the model is memory

A row is `within 15 %` if the two differ by at most that. Otherwise the lines below it say what the model leaves out. \
docs/cost-model.md has a run.";

pub const EXAMPLES: &str = "Examples:
  bifold vat validate
  bifold vat validate --levels 2,3 --scale 0.25 --out pictures
  bifold vat validate --json | jq 'select(.within | not) | .causes'";

#[derive(Args, Debug)]
pub struct ValidateArgs {
    /// The numbers of levels to run, each 2 to 15.
    #[arg(long, value_name = "L,…", value_delimiter = ',', default_value = "2,3,4,5",
        value_parser = clap::value_parser!(u32).range(2..=15))]
    pub levels: Vec<u32>,

    /// The growth factor: how many times larger each level is than the one above it, 2 to 100.
    #[arg(long, value_name = "F", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub growth: u32,

    /// The size of each flush, relative to 256 entries of 1 KiB, 0.001 to 1000.
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale, allow_hyphen_values = true)]
    pub scale: f64,

    /// The seed of all keys and values.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// The directory of the databases, which are removed [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// The directory of vat-validate.svg; made if it does not exist [default: here; with --json nowhere].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

const PICTURE: &str = "vat-validate.svg";

/// Entries of a flush at scale 1: 256 KiB, so that the largest default tree has 256 MiB.
const ENTRIES: f64 = 256.0;

/// Key and value: 1 KiB together, as in the paper (§4).
const KEY_BYTES: usize = 24;
const VALUE_BYTES: usize = 1000;

/// A compaction of everything has its input and its output on disk at once; the rest is for the commit log and for
/// growth meanwhile.
const ROOM: u64 = 4;

/// `bifold vat validate`
pub fn run(args: &ValidateArgs, global: &Global, out: &mut Output) -> Result<()> {
    let base = open::options(global)?;
    let load = args.load();
    let configs = args.configs();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    check_room(&dir, &configs, &load)?;
    let to = args.out.clone().or_else(|| (!global.json).then(|| PathBuf::from(".")));
    to.as_deref().map_or(Ok(()), check_place)?;
    if !global.json {
        out.line_now(out.paint(Tone::Strong, &Row::head()))?;
    }
    let progress = Progress::count("filling trees", configs.iter().map(Config::flushes).sum());
    let mut rows = Vec::with_capacity(configs.len());
    for config in configs {
        let row = verdict::row(config, &load, run::run(&config, &load, &base, &dir, &progress)?)?;
        if global.json {
            out.json(&row)?;
        } else {
            print(&row, out)?;
        }
        rows.push(row);
    }
    drop(progress);
    to.map_or(Ok(()), |to| draw(&rows, &to, global, out))
}

impl ValidateArgs {
    fn load(&self) -> Load {
        let entries = (ENTRIES * self.scale).round().max(1.0) as u64;
        Load { entries, key_bytes: KEY_BYTES, value_bytes: VALUE_BYTES, seed: self.seed }
    }

    /// All trees, in the order of the table.
    fn configs(&self) -> Vec<Config> {
        let growth = self.growth;
        let mut configs = Vec::new();
        for (place, shape, tables) in [
            (Place::Inline, Shape::Leveling, Tables::Whole),
            (Place::Inline, Shape::Leveling, Tables::Quarter),
            (Place::Inline, Shape::Tiering, Tables::Quarter),
            // Keys and pointers take so few bytes that a quarter of them would be mostly header.
            (Place::Log, Shape::Leveling, Tables::Whole),
            (Place::Log, Shape::Tiering, Tables::Quarter),
        ] {
            configs.extend(self.levels.iter().map(|&levels| Config { shape, place, tables, levels, growth }));
        }
        // The second smallest tree, because small tables are many.
        let mut levels = self.levels.clone();
        levels.sort_unstable();
        if let Some(&levels) = levels.get(1).or(levels.first()) {
            let (shape, place) = (Shape::Leveling, Place::Inline);
            configs.push(Config { shape, place, tables: Tables::Small, levels, growth });
        }
        configs
    }
}

fn check_room(dir: &Path, configs: &[Config], load: &Load) -> Result<()> {
    room::check_dir(dir)?;
    let largest = configs.iter().map(|config| config.flushes().saturating_mul(load.flush_bytes())).max().unwrap_or(0);
    let (needed, free) = (largest.saturating_mul(ROOM), room::free(dir)?);
    if needed > free {
        let (needed, free) = (output::bytes(needed), output::bytes(free));
        let why = format!("the largest tree needs {needed}, and {} has {free} free", dir.display());
        return Err(Failure::trouble(format!("{why}: give fewer --levels, a smaller --scale, or another --dir")));
    }
    Ok(())
}

/// Makes the directory for the picture, or refuses it, before minutes are spent on what it shows.
fn check_place(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Failure::file("make directory", dir, &e))?;
    publish::check_free(&dir.join(PICTURE))
}

fn print(row: &Row, out: &mut Output) -> Result<()> {
    let (verdict, tone) = if row.within { ("within 15 %", Tone::Good) } else { ("not within", Tone::Bad) };
    out.line(format!("{}  {}", row.line(), out.paint(tone, verdict)))?;
    for cause in &row.causes {
        out.line(out.paint(Tone::Dim, &format!("    {cause}")))?;
    }
    out.flush()
}

fn draw(rows: &[Row], dir: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let content = svg::draw(&picture::of(rows), svg::Colors::Fixed).into_bytes();
    let file = NewFile { path: dir.join(PICTURE), content };
    publish(std::slice::from_ref(&file))?;
    if !global.json {
        out.line(format!("{}  {}", file.path.display(), output::bytes(file.content.len() as u64)))?;
    }
    Ok(())
}

fn scale(text: &str) -> std::result::Result<f64, String> {
    let scale = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.001..=1000.0).contains(&scale) {
        return Ok(scale);
    }
    Err(format!("scale must be from 0.001 to 1000, not {text}"))
}
