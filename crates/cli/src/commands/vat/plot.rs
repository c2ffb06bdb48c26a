//! `vat plot`: the projections of the paper as pictures.
//!
//! 1. All pictures are drawn in memory.
//! 2. Each name must be free or a regular file: what else is there is not ours to replace.
//! 3. Each picture is written to a name of its own beside its place, all of them before the first is renamed. A full
//!    disk is met here, where removing the temporary files leaves everything as it was.
//! 4. They are renamed, so that what has the name of a picture is one, whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use bifold_vat::figures;
use clap::Args;
use serde::Serialize;

use crate::{
    args::Global,
    chart::{layout, png, raster, svg},
    failure::{Failure, Result},
    output::{self, Output},
};

pub const LONG_ABOUT: &str = "\
Draw the projections of the paper, computed from the model alone, as SVG and PNG.

  2  amplification by levels for several alpha; cost where smaller alpha means smaller beta
  4  what a value log gains by key share; what tiering gains by alpha
  5  tiering by growth factor, values in place and in a log
  6  merge and level amplification, which compete; writes alone, by size

Files are called vat-figure-2.svg, vat-figure-2.png and so on. Files of these names are replaced; what else has such a \
name is not. A picture that cannot be written leaves nothing behind. No font is needed.";

pub const EXAMPLES: &str = "Examples:
  bifold vat plot
  bifold vat plot --out pictures --figure 4";

#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Where the pictures go; made if it does not exist.
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
    path: PathBuf,
    bytes: u64,
}

/// `bifold vat plot`
pub fn run(args: &PlotArgs, global: &Global, out: &mut Output) -> Result<()> {
    let numbers = figures::NUMBERS.into_iter().filter(|n| args.figure == Which::All || args.figure == Which::One(*n));
    let drawn: Vec<Drawn> = numbers.filter_map(figures::figure).flat_map(|figure| draw(&figure, &args.out)).collect();
    fs::create_dir_all(&args.out).map_err(|e| Failure::file("make directory", &args.out, &e))?;
    publish(&drawn)?;
    for Drawn { figure, format, path, content } in drawn {
        let bytes = content.len() as u64;
        if global.json {
            out.json(&Written { figure, format, path, bytes })?;
        } else {
            out.line(format!("{}  {}", path.display(), output::bytes(bytes)))?;
        }
    }
    Ok(())
}

/// A picture that is not written yet.
struct Drawn {
    figure: u32,
    format: &'static str,
    path: PathBuf,
    content: Vec<u8>,
}

impl Drawn {
    /// Where it is until it is whole. The process is in the name, so that two of them do not write to one file.
    fn partial(&self) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        self.path.with_file_name(name)
    }
}

fn draw(figure: &figures::Figure, dir: &Path) -> [Drawn; 2] {
    let picture = layout::picture(figure);
    let drawn = |format, content| {
        let number = figure.number;
        Drawn { figure: number, format, path: dir.join(format!("vat-figure-{number}.{format}")), content }
    };
    [drawn("svg", svg::draw(&picture).into_bytes()), drawn("png", png::encode(&raster::draw(&picture)))]
}

/// Writes pictures, and no part of one.
fn publish(drawn: &[Drawn]) -> Result<()> {
    for picture in drawn {
        let taken = match fs::symlink_metadata(&picture.path) {
            Ok(there) => !there.is_file(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(Failure::file("look at", &picture.path, &error)),
        };
        if taken {
            let why = "is not a regular file, so it is not replaced: remove it, or choose another --out";
            return Err(Failure::trouble(format!("{} {why}", picture.path.display())));
        }
    }
    let published = drawn.iter().try_for_each(write).and_then(|()| drawn.iter().try_for_each(rename));
    if published.is_err() {
        for picture in drawn {
            // Not all of them are there, and the first failure is the one to tell.
            let _ = fs::remove_file(picture.partial());
        }
    }
    published
}

fn write(picture: &Drawn) -> Result<()> {
    let partial = picture.partial();
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(&picture.content)?;
        file.sync_all()
    });
    written.map_err(|e| Failure::file("write", &partial, &e))
}

fn rename(picture: &Drawn) -> Result<()> {
    fs::rename(picture.partial(), &picture.path).map_err(|e| Failure::file("write", &picture.path, &e))
}

fn which(text: &str) -> std::result::Result<Which, String> {
    if text == "all" {
        return Ok(Which::All);
    }
    let number = text.parse().ok().filter(|n| figures::NUMBERS.contains(n));
    number.map(Which::One).ok_or_else(|| "choose 2, 4, 5, 6 or all: the others are no projections".to_owned())
}
