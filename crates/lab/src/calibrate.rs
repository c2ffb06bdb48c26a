//! Measures the device under a directory by unit and depth (`bifold vat calibrate`).
//!
//! | file | what it is |
//! |---|---|
//! | [`scratch`] | the file to measure on, which has no name, and how it bypasses the page cache |
//! | [`measure`] | one measurement: threads that take units until the time is over |

pub mod measure;
pub mod scratch;

use std::{path::PathBuf, time::Duration};

use bifold_vat::{Measured, Profile};

use self::{
    measure::{Measurement, Transfer, UnitOrder},
    scratch::Scratch,
};
use crate::{Failure, Result};

/// About a factor of four between neighbours, starting at the sectors of old disks.
const UNITS: [usize; 7] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// A store that waits for each request, and about as many in flight as the paper found in stores (§3.2).
const DEPTHS: [u32; 2] = [1, 32];

/// Larger than a disk's own cache, and written in a second or two by all but the slowest devices.
const BYTES: u64 = 256 << 20;

/// Two of the largest unit, so that there is a second one.
const BYTES_LEAST: u64 = 8 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// A directory on the device.
    pub dir: PathBuf,
    /// Size of the test file, from 8 MiB to a tenth of the free space; by default 256 MiB, or that tenth.
    pub bytes: Option<u64>,
    /// Duration of each measurement, in seconds.
    pub seconds: f64,
}

/// Progress of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalibrationProgress {
    /// Bytes of the test file: written, and in all.
    Writing(u64, u64),
    /// Measurements: finished, and in all.
    Measuring(u64, u64),
}

impl Calibration {
    /// Measures all units and depths, and reports progress to `seen`.
    ///
    /// # Errors
    /// [`Failure::Plan`] for a bad size of the test file; [`Failure::System`].
    pub fn run(&self, seen: &mut dyn FnMut(CalibrationProgress)) -> Result<Profile> {
        let bytes = scratch::size(self.bytes, BYTES, BYTES_LEAST, &self.dir)?;
        let scratch = Scratch::new(&self.dir, bytes, &UNITS, seen)?;
        let measured = self.measure_all(&scratch, seen)?;
        Profile::new(scratch.caching, bytes, self.seconds, measured).map_err(|error| Failure::Plan(error.to_string()))
    }

    /// All units and depths.
    fn measure_all(&self, scratch: &Scratch, seen: &mut dyn FnMut(CalibrationProgress)) -> Result<Vec<Measured>> {
        let units: Vec<usize> = UNITS.into_iter().filter(|&unit| unit >= scratch.unit_least).collect();
        let total = (units.len() * DEPTHS.len() * 4) as u64;
        let mut finished = 0;
        seen(CalibrationProgress::Measuring(finished, total));
        let mut measured = Vec::new();
        for depth in DEPTHS {
            for &unit in &units {
                let mut rate = |direction, order| {
                    let time = Duration::from_secs_f64(self.seconds);
                    let rate = Measurement { direction, order, unit, depth, time }.run(scratch).map_err(|error| {
                        let verb = if direction == Transfer::Read { "read" } else { "write" };
                        Failure::file(&format!("{verb} {unit} bytes of the test file in"), &self.dir, &error)
                    })?;
                    finished += 1;
                    seen(CalibrationProgress::Measuring(finished, total));
                    // A profile has no zeros, and a byte per second is close enough.
                    Ok::<u64, Failure>((rate as u64).max(1))
                };
                measured.push(Measured {
                    unit_bytes: unit as u64,
                    depth,
                    sequential_read_bytes_per_second: rate(Transfer::Read, UnitOrder::Sequential)?,
                    random_read_bytes_per_second: rate(Transfer::Read, UnitOrder::Random)?,
                    sequential_write_bytes_per_second: rate(Transfer::Write, UnitOrder::Sequential)?,
                    random_write_bytes_per_second: rate(Transfer::Write, UnitOrder::Random)?,
                });
            }
        }
        Ok(measured)
    }
}
