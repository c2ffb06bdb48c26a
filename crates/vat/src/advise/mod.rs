//! Which design fits a workload: every candidate's cost, by formulas that docs/cost-model.md states with their errors.
//!
//! The levels follow the paper's model; what it leaves out (updates, the commit log, collection of garbage, reads,
//! scans, the processor) is ours.
//!
//! | file | what it is |
//! |---|---|
//! | [`workload`] | what a program does |
//! | [`candidate`] | the designs that are compared |
//! | `skew` | how often keys are met: distinct keys in a buffer, copies of a log |
//! | `flows` | bytes and entries that each write moves |
//! | [`costs`] | what the engine's parts cost, measured |
//! | [`forecast`] | time, amplification and memory of a candidate |
//! | `why` | the recommendation in words |
//!
//! ```
//! use bifold_vat::advise::*;
//!
//! let operations = Operations { update: 0.5, read: 0.5, ..Operations::default() };
//! let values = vec![ValueSize { bytes: 100.0, share: 1.0 }];
//! let workload = Workload { keys: 1e7, key_bytes: 24.0, values, operations, update_skew: 0.99, read_skew: 0.0 };
//! let machine = Machine { processors: 2, memory_limit: 128e6, page_cache: 8e9, device: None, space: 1.5 };
//! let advice = advise(workload, &machine)?;
//! assert_eq!(advice.best().candidate.placement, Placement::Inline);
//! println!("{}", advice.why());
//! # Ok::<(), bifold_vat::OutOfRange>(())
//! ```

pub mod candidate;
pub mod costs;
mod flows;
pub mod forecast;
mod skew;
mod why;
pub mod workload;

pub use self::{
    candidate::{Candidate, Placement, Shape, candidates},
    forecast::{Bottleneck, Forecast, Machine, Times},
    skew::skew_of,
    workload::{Operations, SKEW_MAX, ValueSize, Workload},
};
use crate::input::{OutOfRange, checked};

/// All candidates, the best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    workload: Workload,
    /// Not empty.
    forecasts: Vec<Forecast>,
}

/// Forecasts every candidate. Those that keep to the bound of space come first, the fastest of them at the top.
///
/// # Errors
/// A workload or machine with figures that make no sense.
pub fn advise(workload: Workload, machine: &Machine<'_>) -> Result<Advice, OutOfRange> {
    let workload = workload.checked()?;
    let Machine { processors, memory_limit, page_cache, space, .. } = *machine;
    checked("processors", f64::from(processors), processors >= 1, "at least 1")?;
    checked("memory", memory_limit, (1e6..=1e15).contains(&memory_limit), "from 1 MB to 1 PB")?;
    checked("page_cache", page_cache, (0.0..=1e15).contains(&page_cache), "from 0 to 1 PB")?;
    checked("space", space, (1.05..=100.0).contains(&space), "from 1.05 to 100")?;
    let mut forecasts: Vec<_> =
        candidates(&workload).into_iter().map(|candidate| Forecast::of(&workload, candidate, machine)).collect();
    // Where there is one level, its growth is nothing to choose.
    let has_default_growth = |f: &Forecast| f.candidate.shape == Shape::Leveled { growth: costs::GROWTH };
    forecasts
        .retain(|f| f.levels > 1.0 || !matches!(f.candidate.shape, Shape::Leveled { .. }) || has_default_growth(f));
    forecasts.sort_by(|a, b| {
        let slower = b.operations_per_second.total_cmp(&a.operations_per_second);
        b.within_space.cmp(&a.within_space).then(slower)
    });
    Ok(Advice { workload, forecasts })
}

impl Advice {
    /// All of them, the best first.
    pub fn forecasts(&self) -> &[Forecast] {
        &self.forecasts
    }

    /// The best.
    pub fn best(&self) -> &Forecast {
        &self.forecasts[0]
    }

    /// The workload, its shares adding up to 1.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }
}
