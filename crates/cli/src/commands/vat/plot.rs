//! `vat plot`: the projections of the paper as pictures.
//!
//! All pictures are drawn in memory, then written: see [`publish`].

use std::{
    fs,
    path::{Path, PathBuf},
};

use bifold_lab::chart::{panels, svg};
use bifold_vat::figures;
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    global::Global,
    output::{self, Output},
    publish::{NewFile, publish},
};

pub const LONG_ABOUT: &str = "\
Draw the projections of the paper, computed from the model alone, as SVG.

  2  amplification by levels for several alpha; cost where smaller alpha means smaller beta
  4  what a value log gains by key share; what tiering gains by alpha
  5  tiering by size ratio, values inline and in a log
  6  merge and level amplification, which compete; writes alone, by size

The files are called vat-figure-2.svg and so on. Regular files of these names are replaced; anything else of such a \
name is an error. A picture that cannot be written leaves nothing behind. No font is needed.";

pub const EXAMPLES: &str = "Examples:
  bifold vat plot
  bifold vat plot --out pictures --figure 4";

#[derive(Args, Debug)]
pub struct PlotArgs {
    /// The directory of the pictures; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,

    /// Which figure of the paper: 2, 4, 5, 6 or all.
    #[arg(long, value_name = "N|all", default_value = "all", value_parser = which, allow_hyphen_values = true)]
    pub figure: Which,
}

/// Which figures to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    All,
    One(u32),
}

/// A picture that was written.
#[derive(Serialize)]
struct Written {
    figure: u32,
    format: &'static str,
    #[serde(serialize_with = "output::path")]
    path: PathBuf,
    bytes: u64,
}

/// `bifold vat plot`
pub fn run(args: &PlotArgs, global: &Global, out: &mut Output) -> Result<()> {
    let numbers = figures::NUMBERS.into_iter().filter(|n| args.figure == Which::All || args.figure == Which::One(*n));
    let (drawn, files): (Vec<Written>, Vec<NewFile>) =
        numbers.filter_map(figures::figure).map(|figure| draw(&figure, &args.out)).unzip();
    fs::create_dir_all(&args.out).map_err(|e| Failure::file("make directory", &args.out, &e))?;
    publish(&files)?;
    for picture in drawn {
        if global.json {
            out.json(&picture)?;
        } else {
            out.line(format!("{}  {}", picture.path.display(), output::bytes(picture.bytes)))?;
        }
    }
    Ok(())
}

fn draw(figure: &figures::Figure, dir: &Path) -> (Written, NewFile) {
    let (number, format) = (figure.number, "svg");
    let content = svg::draw(&panels::picture(figure), svg::Colors::Fixed).into_bytes();
    let path = dir.join(format!("vat-figure-{number}.{format}"));
    let bytes = content.len() as u64;
    (Written { figure: number, format, path: path.clone(), bytes }, NewFile { path, content })
}

fn which(text: &str) -> std::result::Result<Which, String> {
    if text == "all" {
        return Ok(Which::All);
    }
    let number = text.parse().ok().filter(|n| figures::NUMBERS.contains(n));
    number
        .map(Which::One)
        .ok_or_else(|| "choose 2, 4, 5, 6 or all: the paper's other figures are not projections".to_owned())
}
