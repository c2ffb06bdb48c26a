//! `vat validate`: compares what the engine moves with the model, for trees of several depths; see
//! [`bifold_lab::validate`].

use std::path::{Path, PathBuf};

use bifold_lab::{
    chart::svg,
    validate::{self, Validation, config::Config, picture, verdict::Row},
};
use clap::Args;

use crate::{
    failure::{Failure, Result},
    global::Global,
    interrupt::Unfinished,
    open,
    output::{self, Output, Tone},
    progress::Progress,
    publish::{self, NewFile, publish},
};

pub const LONG_ABOUT: &str = "\
Fill trees of several depths with the engine, and compare the bytes it moves with the model.

The trees are leveled and tiered, with inline values and with a value log, each with every number of --levels. Leveled \
trees come in three kinds: levels of one table, which are merged as a whole; tables of a quarter of a flush, which are \
merged one at a time; and, once, tables of 8 KiB. Keys are uniform and distinct, and each flush has the same number of \
entries, so the last level becomes as large as in the model: the size ratio to the power of levels. The figures \
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

    /// The size ratio: how many times larger each level is than the one above it, 2 to 100.
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

    /// The directory of vat-validate.svg; created if it does not exist [default: here; with --json nowhere].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

const PICTURE: &str = "vat-validate.svg";

/// `bifold vat validate`
pub fn run(args: &ValidateArgs, global: &Global, out: &mut Output) -> Result<()> {
    let base = open::options(global)?;
    let ValidateArgs { levels, growth, scale, seed, .. } = args;
    let validation = Validation { levels: levels.clone(), growth: *growth, scale: *scale, seed: *seed };
    let configs = validation.configs();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    validation.check_room(&dir)?;
    let to = args.out.clone().or_else(|| (!global.json).then(|| PathBuf::from(".")));
    to.as_deref().map_or(Ok(()), check_place)?;
    let path = validate::directory(&dir)?;
    let unfinished = Unfinished::new(&path);
    if !global.json {
        out.line_now(out.paint(Tone::Strong, &Row::head()))?;
    }
    let progress = Progress::count("filling trees", configs.iter().map(Config::flushes).sum());
    let mut rows = Vec::with_capacity(configs.len());
    for config in configs {
        let row = validation.row(config, &base, &path, &|| progress.advance(1))?;
        if global.json {
            out.json(&row)?;
        } else {
            print(&row, out)?;
        }
        rows.push(row);
    }
    drop((progress, unfinished));
    to.map_or(Ok(()), |to| draw(&rows, &to, global, out))
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
