//! Which design fits a workload: forecasts the cost of every candidate. docs/cost-model.md states the formulas and
//! their errors.
//!
//! The levels follow the paper's model. Formulas of our own cover what it leaves out: updates, the commit log, GC,
//! reads, scans, the processor.
//!
//! | file | what it is |
//! |---|---|
//! | [`workload`] | what a program does |
//! | [`candidate`] | the designs that are compared |
//! | `skew` | how often each key is chosen: distinct keys in a buffer, copies by a log's GC |
//! | `flows` | bytes and entries that each write moves |
//! | [`costs`] | measured costs of the engine's operations |
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
//! assert_eq!(advice.best().candidate.placement, ModelPlacement::Inline);
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
    candidate::{Candidate, CandidateCompaction, ModelPlacement, candidates},
    forecast::{Bottleneck, Forecast, Machine, Times},
    skew::skew_of,
    workload::{Operations, SKEW_MAX, ValueSize, Workload},
};
use crate::input::{OutOfRange, checked};

/// The forecasts of all candidates, the best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    workload: Workload,
    /// Not empty.
    forecasts: Vec<Forecast>,
}

/// Forecasts every candidate. Those within the space limit come first, the fastest at the top.
///
/// # Errors
/// When a figure of the workload or machine makes no sense.
pub fn advise(workload: Workload, machine: &Machine<'_>) -> Result<Advice, OutOfRange> {
    let workload = workload.checked()?;
    let Machine { processors, memory_limit, page_cache, space, .. } = *machine;
    checked("processors", f64::from(processors), processors >= 1, "at least 1")?;
    checked("memory", memory_limit, (1e6..=1e15).contains(&memory_limit), "from 1 MB to 1 PB")?;
    checked("page_cache", page_cache, (0.0..=1e15).contains(&page_cache), "from 0 to 1 PB")?;
    checked("space", space, (1.05..=100.0).contains(&space), "from 1.05 to 100")?;
    let mut forecasts: Vec<_> =
        candidates(&workload).into_iter().map(|candidate| Forecast::of(&workload, candidate, machine)).collect();
    // With a single level the size ratio has no effect, so only the default is kept.
    let has_default_ratio =
        |f: &Forecast| f.candidate.shape == CandidateCompaction::Leveled { size_ratio: costs::GROWTH };
    forecasts.retain(|f| {
        f.levels > 1.0 || !matches!(f.candidate.shape, CandidateCompaction::Leveled { .. }) || has_default_ratio(f)
    });
    forecasts.sort_by(|a, b| {
        let slower = b.operations_per_second.total_cmp(&a.operations_per_second);
        b.within_space.cmp(&a.within_space).then(slower)
    });
    Ok(Advice { workload, forecasts })
}

impl Advice {
    /// All forecasts, the best first.
    pub fn forecasts(&self) -> &[Forecast] {
        &self.forecasts
    }

    /// The best forecast.
    pub fn best(&self) -> &Forecast {
        &self.forecasts[0]
    }

    /// The workload, with shares that add up to 1.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }
}
