//! Bifold compared with other stores, in sentences: for each workload the best placement and the best other store.

use super::finding::Finding;
use crate::{
    experiment::{Arm, Data, data::RATE},
    report::grouped,
};

/// The findings on each workload that both sides have run; `None` if no other store was measured.
pub fn lesson(findings: &[Finding<'_>]) -> Option<String> {
    let all: Vec<String> = findings.iter().filter(|finding| finding.is_comparison()).flat_map(sentences).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

fn sentences(finding: &Finding<'_>) -> Vec<String> {
    let steps = finding.experiment.arms.first().map(|arm| arm.spec.steps.as_slice()).unwrap_or_default();
    let of_step = |step: &str| {
        let (ours, rate) = best(&finding.data, step, |arm| arm.spec.store == "bifold")?;
        let (theirs, other) = best(&finding.data, step, |arm| arm.spec.store != "bifold")?;
        let rates = format!("{} operations per second", grouped(rate));
        Some(format!("{step}: {ours} with {rates}, {:.2} times the best other store, {theirs}.", rate / other))
    };
    steps.iter().filter(|step| step.act.has_rate()).filter_map(|step| of_step(&step.name)).collect()
}

/// The arm with the most operations per second among some.
fn best<'a>(data: &Data<'a>, step: &str, among: impl Fn(&Arm) -> bool) -> Option<(&'a str, f64)> {
    let arms = data.measured().filter(|(arm, _)| among(arm));
    let rates = arms.filter_map(|(arm, _)| Some((arm.series.as_str(), data.of(&arm.series, step, RATE)?)));
    rates.max_by(|a, b| a.1.total_cmp(&b.1))
}
