//! `vat calibrate`: measures the device under a directory by unit and depth, and writes a profile; see
//! [`bifold_lab::calibrate`].

use std::path::{Path, PathBuf};

use bifold_lab::{
    calibrate::{Calibration, CalibrationProgress as Seen},
    room,
};
use bifold_vat::{Caching, Measured, Profile};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    global::Global,
    output::{self, Output, Tone},
    progress::Progress,
    publish::{self, NewFile, publish},
};

pub const LONG_ABOUT: &str = "\
Measure the throughput of the device under DIR, and write a profile from which `vat model --device` takes beta.

Reads and writes, sequential and random, at units of 512 B, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB and 4 MiB and depths \
1 and 32; a depth of 32 is 32 threads. Beta is random throughput over the best sequential one.

The page cache is bypassed: by O_DIRECT if the file system supports it; otherwise the file is dropped from the cache \
before each measurement, and no unit is read or written twice. The profile says which (`caching`). Units that O_DIRECT \
refuses are left out. Writes end with a sync that counts in their time. Caches of the device, or of the host of a \
virtual machine, are not bypassed: a file larger than they are helps (--bytes).

The test file is in DIR but has no name there, so nothing is left however the program ends. It takes at most a tenth \
of the free space. With --json the profile goes to standard output, and to a file only with --out.";

pub const EXAMPLES: &str = "Examples:
  bifold vat calibrate /mnt/nvme
  bifold vat calibrate /mnt/nvme --out nvme.toml --bytes 4GiB --seconds 2
  bifold vat calibrate . --json | jq .measured
  bifold vat model --levels 5 --growth 4 --alpha 0.25 --device device.toml --unit 8KiB";

/// 56 measurements of half a second and their syncs take under a minute.
const SECONDS: &str = "0.5";

/// The default file for the profile.
const OUT: &str = "device.toml";

#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// A directory on the device to measure.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// The file for the profile; an existing one is replaced [default: device.toml; with --json none].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Size of the test file, from 8 MiB to a tenth of the free space [default: 256 MiB, or that tenth].
    #[arg(long, value_name = "SIZE", value_parser = bifold::options::parse_size)]
    pub bytes: Option<u64>,

    /// Duration of each measurement in seconds, 0.001 to 60; there are at most 56.
    #[arg(long, value_name = "SECONDS", default_value = SECONDS, value_parser = seconds, allow_hyphen_values = true)]
    pub seconds: f64,
}

/// `bifold vat calibrate`
pub fn run(args: &CalibrateArgs, global: &Global, out: &mut Output) -> Result<()> {
    let to = args.out.clone().or_else(|| (!global.json).then(|| PathBuf::from(OUT)));
    room::check_dir(&args.dir)?;
    to.as_deref().map_or(Ok(()), check_place)?;
    let calibration = Calibration { dir: args.dir.clone(), bytes: args.bytes, seconds: args.seconds };
    let profile = calibration.run(&mut bars())?;
    if let Some(to) = &to {
        let text = profile.to_toml().map_err(|error| Failure::trouble(error.to_string()))?;
        let head = "# The throughput of a device, measured by `bifold vat calibrate`; see docs/cost-model.md.\n\n";
        publish(&[NewFile { path: to.clone(), content: format!("{head}{text}").into_bytes() }])?;
    }
    if global.json { out.json(&report(&profile)?) } else { print(&profile, to.as_deref(), out) }
}

/// Refuses the path of the profile before a minute is spent on measuring.
fn check_place(to: &Path) -> Result<()> {
    publish::check_free(to)?;
    let above = to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if to.file_name().is_none() || !above.is_dir() {
        return Err(Failure::trouble(format!("--out {}: there is no directory for it", to.display())));
    }
    Ok(())
}

/// Shows the progress of a calibration: first the test file, then the measurements.
fn bars() -> impl FnMut(Seen) {
    let (mut writing, mut measuring) = (None, None);
    move |seen| match seen {
        Seen::Writing(done, total) => {
            writing.get_or_insert_with(|| Progress::bytes("writing the test file", total)).reach_of(done, total);
        }
        Seen::Measuring(done, total) => {
            writing = None;
            measuring.get_or_insert_with(|| Progress::count("measuring", total)).reach_of(done, total);
        }
    }
}

/// The profile and the β derived from it.
#[derive(Serialize)]
struct CalibrationReport<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    beta: Vec<Row<'a>>,
}

/// β at a measured point.
#[derive(Serialize)]
struct Row<'a> {
    unit_bytes: u64,
    depth: u32,
    read: f64,
    write: f64,
    both: f64,
    #[serde(skip)]
    measured: &'a Measured,
}

fn report(profile: &Profile) -> Result<CalibrationReport<'_>> {
    let rows = profile.measured().iter().map(|measured| row(profile, measured));
    Ok(CalibrationReport { profile, beta: rows.collect::<Result<_>>()? })
}

fn row<'a>(profile: &Profile, measured: &'a Measured) -> Result<Row<'a>> {
    let Measured { unit_bytes, depth, .. } = *measured;
    let beta = profile.beta(unit_bytes, depth).map_err(|error| Failure::trouble(error.to_string()))?;
    let (read, write, both) = (beta.read.get(), beta.write.get(), beta.both().get());
    Ok(Row { unit_bytes, depth, read, write, both, measured })
}

fn print(profile: &Profile, to: Option<&Path>, out: &mut Output) -> Result<()> {
    let head = format!(
        "{:>9} {:>5}  {:>24} {:>6}  {:>24} {:>6}",
        "unit", "depth", "read: sequential, random", "beta", "write: sequential, random", "beta"
    );
    out.line(out.paint(Tone::Strong, &head))?;
    for Row { unit_bytes, depth, read, write, measured, .. } in report(profile)?.beta {
        let rates = |sequential, random| format!("{:>11} {:>12}", rate(sequential), rate(random));
        let reads = rates(measured.sequential_read_bytes_per_second, measured.random_read_bytes_per_second);
        let writes = rates(measured.sequential_write_bytes_per_second, measured.random_write_bytes_per_second);
        let unit = output::bytes(unit_bytes).replace(".0 ", " ");
        out.line(format!("{unit:>9} {depth:>5}  {reads} {read:>6.3}  {writes:>25} {write:>6.3}"))?;
    }
    let (caching, tone) = match profile.caching() {
        Caching::Direct => ("the page cache was bypassed (O_DIRECT)", Tone::Dim),
        Caching::Dropped => {
            ("through the page cache, which was dropped before each measurement; each unit once", Tone::Dim)
        }
        Caching::Memory => ("the file system is in memory: these figures are of memory, not of a device", Tone::Bad),
    };
    out.line(out.paint(tone, &format!("\n{caching}")))?;
    let Some(to) = to else { return Ok(()) };
    out.line(format!("written to {}; use it with `bifold vat model --device`", to.display()))
}

fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", output::bytes(bytes_per_second))
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.001..=60.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err(format!("seconds must be from 0.001 to 60, not {text}"))
}
