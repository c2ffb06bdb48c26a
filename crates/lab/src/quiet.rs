//! How busy the machine is with other things than a run.
//!
//! Figures of a machine that others use are worth nothing, so what others take is measured before each run and during
//! each step. Others are everything but this process: other programs, and the kernel's own threads, some of which write
//! out and reclaim pages on behalf of the run. Steal is what the host of a virtual machine takes.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{Failure, Result, measure};

/// Ticks of `/proc/stat` a second: Linux reports in hundredths to programs, whatever it counts in.
const TICKS_PER_SECOND: f64 = 100.0;

/// A machine counts as quiet while others and the host take less than this share of one processor.
pub const QUIET_BELOW: f64 = 0.2;

/// How long each look takes.
const LOOK: Duration = Duration::from_millis(500);

/// The processors that others took, on average: 1 is one whole processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// Other processes and the kernel's threads.
    pub others: f64,
    /// The host of a virtual machine.
    pub steal: f64,
}

impl Busy {
    /// Both.
    #[must_use]
    pub fn processors(self) -> f64 {
        self.others + self.steal
    }
}

/// Processor time so far.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    at: Instant,
    /// Seconds of all processes, of the host, and of this process.
    busy: f64,
    steal: f64,
    own: f64,
}

impl Moment {
    /// The present one; `None` if the system does not report it.
    #[must_use]
    pub fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let (busy, steal) = of_all(&stat)?;
        Some(Self { at: Instant::now(), busy, steal, own: measure::cpu_seconds() })
    }

    /// What others took between `before` and this moment.
    #[must_use]
    pub fn since(self, before: Self) -> Busy {
        let seconds = (self.at - before.at).as_secs_f64().max(1.0 / TICKS_PER_SECOND);
        // Ticks are coarse: a difference may be below zero.
        let others = (self.busy - before.busy) - (self.own - before.own);
        Busy { others: others.max(0.0) / seconds, steal: (self.steal - before.steal).max(0.0) / seconds }
    }
}

/// Seconds that all processors worked, and that the host took, from the first line of `/proc/stat` (proc(5)): user,
/// nice, system, idle, iowait, irq, softirq, steal. User time includes that of guests.
fn of_all(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|ticks| ticks.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().map(|&at| ticks.get(at)).sum::<Option<f64>>()?;
    Some((busy / TICKS_PER_SECOND, ticks.get(7)? / TICKS_PER_SECOND))
}

/// Looks at the machine for half a second; `None` if the system does not report it.
fn look() -> Option<Busy> {
    let before = Moment::now()?;
    thread::sleep(LOOK);
    Some(Moment::now()?.since(before))
}

/// Waits until the machine is quiet, but no longer than `time`.
///
/// # Errors
/// [`Failure::System`] if it still is not.
pub fn wait(time: Duration) -> Result<()> {
    let begin = Instant::now();
    loop {
        let Some(busy) = look().filter(|busy| busy.processors() >= QUIET_BELOW) else { return Ok(()) };
        if begin.elapsed() >= time {
            return Err(Failure::System(format!(
                "the machine is busy: for {} s others have taken {:.2} processors and its host {:.2}: end what else \
                 runs, or give --busy, and the records will say so",
                time.as_secs(),
                busy.others,
                busy.steal
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_all_processors_become_seconds() {
        let stat = "cpu  100 20 30 4000 500 6 4 70 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(of_all(stat), Some((1.6, 0.7)));
        for wrong in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3"] {
            assert_eq!(of_all(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn own_time_is_not_that_of_others() {
        let at = Instant::now();
        let before = Moment { at, busy: 10.0, steal: 1.0, own: 4.0 };
        let after = Moment { at: at + Duration::from_secs(2), busy: 13.0, steal: 1.5, own: 6.0 };
        let busy = after.since(before);
        assert_eq!((busy, busy.processors()), (Busy { others: 0.5, steal: 0.25 }, 0.75));
        // A process whose own ticks are counted later takes nothing from others.
        assert_eq!(Moment { own: 9.0, ..after }.since(before).others, 0.0);
    }
}
