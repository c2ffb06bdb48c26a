//! The runs with every option: first what all runs of the experiment have in common, then the differences.

use super::{
    finding::Finding,
    markup::{Markup, element, text, words},
    words::{bytes, count, distribution, duration},
};
use crate::{
    experiment::Arm,
    record::Run,
    spec::{Act, PageCache, Spec},
};

/// A line of settings: what it is about, and how it is.
type Fact = (String, String);

/// The settings of an experiment's runs; nothing where there are none.
pub fn all(finding: &Finding<'_>) -> Option<Markup> {
    let arms = &finding.experiment.arms;
    if arms.is_empty() {
        return None;
    }
    let runs = |arm: &Arm| {
        let of = finding.data.measured().find(|(other, _)| std::ptr::eq(*other, arm));
        of.map_or_else(Vec::new, |(_, runs)| runs.to_vec())
    };
    let facts: Vec<Vec<Fact>> = arms.iter().map(|arm| facts(&arm.spec, &runs(arm))).collect();
    let shared: Vec<Fact> = match facts.split_first() {
        Some((first, rest)) if !rest.is_empty() => {
            first.iter().filter(|fact| rest.iter().all(|facts| facts.contains(fact))).cloned().collect()
        }
        _ => Vec::new(),
    };
    let mut parts = vec![words("summary", &[], &format!("All runs, with every setting ({})", arms.len()))];
    if !shared.is_empty() {
        parts.push(words("h3", &[], "All of them"));
        parts.push(described(&shared));
    }
    for (arm, mut facts) in arms.iter().zip(facts) {
        facts.retain(|fact| !shared.contains(fact));
        parts.push(words("h3", &[], &arm.label()));
        let runs = runs(arm);
        let seconds: f64 = runs.iter().map(|run| run.seconds).filter(|seconds| seconds.is_finite()).sum();
        let made = match runs.len() {
            0 => "not yet".to_owned(),
            1 => format!("once, {}", duration(seconds)),
            times => format!("{times} times, {} in total", duration(seconds)),
        };
        facts.push(("run".to_owned(), made));
        parts.push(described(&facts));
    }
    Some(element("details", &[("class", "settings")], parts))
}

fn facts(spec: &Spec, runs: &[&Run]) -> Vec<Fact> {
    let Spec { store, toml, set, plan, input, steps, page_cache, process_memory } = spec;
    let fact = |what: &str, how: String| (what.to_owned(), how);
    let version = runs.first().map(|run| run.version.as_str()).filter(|version| !version.is_empty());
    let mut facts = vec![fact("store", version.map_or_else(|| store.clone(), |version| format!("{store} {version}")))];
    facts.extend(toml.iter().map(|text| fact("options file", text.clone())));
    facts.extend(set.iter().map(|word| fact("option", word.clone())));
    let settings = runs.first().map(|run| run.settings.as_slice()).unwrap_or_default();
    facts.extend(settings.iter().map(|(name, value)| fact("setting", format!("{name}={value}"))));
    let data = match input {
        Some(input) => format!("{} entries of {}, {} in total", input.entries, input.path, bytes(input.bytes)),
        None => format!("{} keys of {}, values {}", plan.keys, bytes(plan.key_bytes as u64), plan.sizes),
    };
    facts.push(fact("data", data));
    facts.push(fact(
        "choices",
        format!("updates {}, reads {}, seed {}", distribution(plan.updates), distribution(plan.reads), plan.seed),
    ));
    facts.push(fact("callers", format!("{}, {} per commit", count(plan.threads, "thread"), count(plan.batch, "key"))));
    let step = |step: &crate::spec::Step| match step.act {
        Act::Run(workload) if workload.name() == step.name => step.name.clone(),
        Act::Run(workload) => format!("{} ({})", step.name, workload.name()),
        Act::Recover => format!("{} (killed and opened again)", step.name),
        Act::Device => format!("{} (random reads of 4 KiB, bypassing the page cache)", step.name),
    };
    facts.push(fact("steps", steps.iter().map(step).collect::<Vec<_>>().join(", ")));
    let cache = match page_cache {
        PageCache::Warm => "warm: as earlier steps left it",
        PageCache::Cold => "cold before steps that only read",
    };
    facts.push(fact("page cache", cache.to_owned()));
    let limit = process_memory.map_or_else(|| "none".to_owned(), bytes);
    facts.push(fact("process memory limit", limit));
    facts
}

/// Facts as a list; all options share one item, and so do all settings.
fn described(facts: &[Fact]) -> Markup {
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for (what, how) in facts {
        match entries.last_mut() {
            Some((before, all)) if *before == what.as_str() => all.push(how),
            _ => entries.push((what.as_str(), vec![how.as_str()])),
        }
    }
    let entry = |(what, all): (&str, Vec<&str>)| {
        let many = ["option", "setting"].contains(&what);
        let name = if many { format!("{what}s") } else { what.to_owned() };
        let said = all.into_iter().map(|how| if many { words("code", &[], how) } else { text(how) });
        [words("dt", &[], &name), element("dd", &[], said)]
    };
    element("dl", &[("class", "facts")], entries.into_iter().flat_map(entry))
}
