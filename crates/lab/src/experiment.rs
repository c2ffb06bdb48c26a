//! Experiments as data: their runs, their charts, and the rules by which a paper's result counts as reproduced.
//!
//! ```text
//! Experiment ── arms ──▶ Spec, Spec, …      runs: one store each, several rounds in turns
//!            ── views ─▶ chart              charts: one figure over steps, or over a parameter
//!            ── checks ▶ Verdict            the paper's claims, as rules that were written before the first run
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | [`data`] | medians over the rounds of an experiment's runs |
//! | [`check`] | rules, and the verdict they make |
//! | [`view`] | charts |
//! | [`setup`] | stores with their options, plans, arms |
//! | [`hashkv`], [`novkv`], [`diffkv`], [`unikv`], [`vat`] | the experiments of the papers |
//! | [`rivals`] | ours: comparisons with other stores |
//! | [`performance`] | ours: targets, and what was reached |

pub mod check;
pub mod data;
pub mod diffkv;
pub mod hashkv;
pub mod novkv;
pub mod performance;
pub mod rivals;
pub mod setup;
pub mod unikv;
pub mod vat;
pub mod view;

use serde::Serialize;

pub use self::{
    check::{Check, CheckOutcome, Verdict},
    data::Data,
    view::{Chart, View},
};
use crate::{Failure, Result, Spec, scale::Scale};

/// An experiment.
pub struct Experiment {
    /// Its name on the command line, such as `hashkv-e1`.
    pub name: &'static str,
    /// The paper.
    pub paper: Paper,
    /// Its place in the paper, such as `experiment 1, figure 6`.
    pub place: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Differences from the paper, beyond sizes and machine.
    pub note: &'static str,
    /// Its runs; none if everything is computed.
    pub arms: Vec<Arm>,
    /// Its charts.
    pub views: Vec<View>,
    /// Its rules.
    pub checks: Vec<Check>,
}

/// Where an experiment comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Paper {
    /// Chan et al., *HashKV: Enabling Efficient Updates in KV Storage via Hashing*, ATC 2018.
    HashKv,
    /// Shen et al., *NovKV: Efficient Garbage Collection for Key-Value Separated LSM-Stores*, MSST 2020.
    NovKv,
    /// Li et al., *Differentiated Key-Value Storage Management for Balanced I/O Performance*, ATC 2021.
    DiffKv,
    /// Zhang et al., *UniKV: Toward High-Performance and Scalable KV Storage in Mixed Workloads via Unified
    /// Indexing*, ICDE 2020.
    UniKv,
    /// Xanthakis et al., *VAT: Asymptotic Cost Analysis for Multi-level Key-Value Stores*, 2020.
    Vat,
    /// Ours.
    Bifold,
}

impl Paper {
    /// Its short name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HashKv => "HashKV",
            Self::NovKv => "NovKV",
            Self::DiffKv => "DiffKV",
            Self::UniKv => "UniKV",
            Self::Vat => "VAT",
            Self::Bifold => "Bifold",
        }
    }
}

/// A run of an experiment.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its curve or bar: the store and what distinguishes it.
    pub series: String,
    /// The value of the parameter, if there is one.
    pub x: Option<f64>,
    /// The spec.
    pub spec: Spec,
}

impl Arm {
    /// Series and parameter in words.
    #[must_use]
    pub fn label(&self) -> String {
        self.x.map_or_else(|| self.series.clone(), |x| format!("{} at {x}", self.series))
    }
}

/// Makes an experiment at a scale; all its choices follow from a seed.
type Maker = fn(Scale, u64) -> Experiment;

/// Every experiment, in the papers' order.
fn makers() -> impl Iterator<Item = Maker> {
    [hashkv::ALL, novkv::ALL, diffkv::ALL, unikv::ALL, vat::ALL, rivals::ALL].into_iter().flatten().copied()
}

/// Every experiment at this scale.
#[must_use]
pub fn all(scale: Scale, seed: u64) -> Vec<Experiment> {
    makers().map(|make| make(scale, seed)).collect()
}

/// The experiments with these names; `all` stands for every one, and the name of a paper (`hashkv`) for all of its
/// experiments.
///
/// # Errors
/// [`Failure::Plan`] for unknown names.
pub fn select(experiments: Vec<Experiment>, names: &[String]) -> Result<Vec<Experiment>> {
    let meant = |name: &str, experiment: &Experiment| {
        name == "all" || name == experiment.name || name.eq_ignore_ascii_case(experiment.paper.name())
    };
    if let Some(unknown) = names.iter().find(|name| !experiments.iter().any(|experiment| meant(name, experiment))) {
        let near: Vec<_> = experiments
            .iter()
            .map(|e| e.name)
            .filter(|name| name.split('-').next() == unknown.split('-').next())
            .collect();
        let hint = if near.is_empty() { "`bifold lab list` lists all".to_owned() } else { near.join(", ") };
        return Err(Failure::Plan(format!("no experiment is called `{unknown}`: {hint}")));
    }
    Ok(experiments.into_iter().filter(|e| names.iter().any(|name| meant(name, e))).collect())
}

#[cfg(test)]
mod tests;
