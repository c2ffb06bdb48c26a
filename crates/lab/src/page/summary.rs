//! The summary: how many results are reproduced, the machine they were measured on, and the lessons.

use std::collections::BTreeSet;

use super::{
    Page,
    finding::Finding,
    stores,
    words::{bytes, count, date, duration, list, ours, rule},
};
use crate::{
    chart::numbers::number,
    experiment::{CheckOutcome, Paper, Verdict, check::Rule, data},
    machine::Machine,
    record::Run,
    scale::Scale,
};

/// Every verdict, the best first.
pub const VERDICTS: [Verdict; 4] = [Verdict::Reproduced, Verdict::Partly, Verdict::Not, Verdict::Open];

/// The summary of a page.
pub struct Summary {
    /// The numbers of verdicts, in a sentence.
    pub headline: String,
    /// Limits of the figures.
    pub warnings: Vec<String>,
    /// The numbers of verdicts for each paper, in the order of [`VERDICTS`].
    pub papers: Vec<(Paper, [usize; 4])>,
    /// The lessons: their subject, and the findings.
    pub lessons: Vec<(String, String)>,
    /// Where, when and how it was measured: names and values.
    pub facts: Vec<(&'static str, String)>,
}

impl Summary {
    /// Of these findings.
    pub fn new(page: &Page<'_>, findings: &[Finding<'_>]) -> Self {
        let runs = used(findings);
        let mut machines: Vec<&Machine> = Vec::new();
        for run in &runs {
            if !machines.contains(&&run.machine) {
                machines.push(&run.machine);
            }
        }
        let papers = by_paper(findings);
        Self {
            headline: headline(findings),
            warnings: warnings(page, findings, &machines),
            lessons: lessons(&papers, findings, &runs),
            papers,
            facts: facts(page, findings, &runs, &machines),
        }
    }
}

/// The numbers of verdicts: `3 reproduced, 1 open`.
pub fn counts(counts: &[usize; 4]) -> String {
    let some: Vec<String> = VERDICTS
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(verdict, count)| format!("{count} {}", verdict.name()))
        .collect();
    some.join(", ")
}

fn count_of<'a>(findings: impl IntoIterator<Item = &'a Finding<'a>>) -> [usize; 4] {
    let mut counts = [0; 4];
    for finding in findings {
        for (count, verdict) in counts.iter_mut().zip(VERDICTS) {
            *count += usize::from(finding.verdict == verdict);
        }
    }
    counts
}

fn by_paper(findings: &[Finding<'_>]) -> Vec<(Paper, [usize; 4])> {
    let papers: BTreeSet<Paper> = findings.iter().map(|finding| finding.experiment.paper).collect();
    let of = |paper: Paper| findings.iter().filter(move |finding| finding.experiment.paper == paper);
    papers.into_iter().map(|paper| (paper, count_of(of(paper)))).collect()
}

fn headline(findings: &[Finding<'_>]) -> String {
    let [reproduced, partly, not, open] = count_of(findings);
    let is = |count: usize| if count == 1 { "is" } else { "are" };
    let mut parts = vec![format!("{reproduced} {} reproduced", is(reproduced)), format!("{partly} in part")];
    parts.push(format!("{not} not"));
    let open = match open {
        0 => String::new(),
        open => {
            format!(
                " {open} {} open: not every rule was measured, and those that were all hold, or none does.",
                is(open)
            )
        }
    };
    format!("Of {}, {}.{open}", count(findings.len(), "experiment"), list(&parts))
}

/// The runs of the findings, each once.
fn used<'a>(findings: &[Finding<'a>]) -> Vec<&'a Run> {
    let mut seen = BTreeSet::new();
    let runs = findings.iter().flat_map(|finding| finding.data.measured()).flat_map(|(_, runs)| runs.to_vec());
    runs.filter(|run| seen.insert((&run.key, run.round))).collect()
}

fn warnings(page: &Page<'_>, findings: &[Finding<'_>], machines: &[&Machine]) -> Vec<String> {
    let mut warnings = Vec::new();
    if machines.iter().any(|machine| !machine.optimised) {
        warnings.push(
            "The program that was measured was built for debugging, not for speed (no optimisation). Do not draw \
             conclusions from any figure here: build with `--release` and run again."
                .to_owned(),
        );
    }
    if page.scale == Scale::Tiny {
        let size = bytes(page.scale.data_bytes());
        warnings.push(format!(
            "The scale is `tiny`: {size} of data. This shows that the experiments work; their figures mean nothing."
        ));
    }
    if machines.len() > 1 {
        let many = count(machines.len(), "machine");
        warnings.push(format!(
            "The runs come from {many}, builds or file systems. Figures of different ones cannot be compared."
        ));
    }
    let once = findings.iter().filter(|finding| finding.rounds().is_some_and(|(least, _)| least == 1)).count();
    if once > 0 && page.scale != Scale::Tiny {
        let experiments = count(once, "experiment");
        warnings.push(format!(
            "{experiments} came from runs that were made only once: the spread of their figures is unknown."
        ));
    }
    let cut = used(findings).iter().map(|run| data::cut_short(run)).sum();
    if cut > 0 {
        let steps = count(cut, "step");
        warnings.push(format!(
            "{steps} ended by the time limit before all operations were done. Bytes and seconds of such a step are \
             those of all its operations, at the rate of those that were done."
        ));
    }
    let missing: usize = findings.iter().map(|f| f.experiment.arms.len() - f.data.measured().count()).sum();
    let all: usize = findings.iter().map(|finding| finding.experiment.arms.len()).sum();
    if missing > 0 {
        warnings.push(format!("{missing} of {} have not been made yet.", count(all, "run")));
    }
    warnings
}

fn facts(
    page: &Page<'_>,
    findings: &[Finding<'_>],
    runs: &[&Run],
    machines: &[&Machine],
) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    for machine in machines {
        let Machine { processor, processors, memory, system, bifold, optimised, file_system, settings } = machine;
        let processor = if processor.is_empty() { "processor of unknown name" } else { processor };
        let processors = if *processors == 1 { "one processor".to_owned() } else { format!("{processors} processors") };
        let memory =
            if *memory == 0 { "memory of unknown size".to_owned() } else { format!("{} of memory", bytes(*memory)) };
        let build = if *optimised { "optimised" } else { "not optimised" };
        facts.push(("machine", format!("{processor}, {processors}, {memory}, {system}; Bifold {bifold}, {build}")));
        facts.push(("file system", file_system.clone().unwrap_or_else(|| "unknown".to_owned())));
        facts.extend(settings.map(|settings| ("page cache", settings.words())));
    }
    let size = bytes(page.scale.data_bytes());
    let fits = match page.scale {
        Scale::Tiny | Scale::Small => "; all of it fits into memory",
        Scale::Medium | Scale::Device | Scale::Large => "",
    };
    let limit = page.scale.process_memory();
    let limit = limit.map_or_else(String::new, |limit| format!("; a store has {} of memory", bytes(limit)));
    facts.push(("scale", format!("{}: {size} of keys and values{fits}{limit}", page.scale)));
    if let (Some(first), Some(last)) = (runs.iter().map(|run| run.began).min(), runs.iter().map(|run| run.began).max())
    {
        facts.push(("when", if first == last { date(first) } else { format!("{} to {}", date(first), date(last)) }));
    }
    let seconds: f64 = runs.iter().map(|run| run.seconds).filter(|seconds| seconds.is_finite()).sum();
    let rounds = findings.iter().filter_map(Finding::rounds);
    let rounds = rounds.reduce(|(least, most), (l, m)| (least.min(l), most.max(m)));
    let rounds = match rounds {
        None => String::new(),
        Some((least, most)) if least == most => format!(" in {}", count(most, "round")),
        Some((least, most)) => format!(" in {least} to {most} rounds"),
    };
    facts.push(("runs", format!("{}{rounds}, {} in total", count(runs.len(), "run"), duration(seconds))));
    if !page.command.is_empty() {
        facts.push(("command", page.command.clone()));
    }
    facts
}

/// Sentences made from figures, and nothing else.
fn lessons(papers: &[(Paper, [usize; 4])], findings: &[Finding<'_>], runs: &[&Run]) -> Vec<(String, String)> {
    let of = |paper: Paper| findings.iter().filter(move |finding| finding.experiment.paper == paper);
    let mut lessons: Vec<(String, String)> = papers
        .iter()
        .filter_map(|(paper, _)| Some((paper.name().to_owned(), lesson(&of(*paper).collect::<Vec<_>>())?)))
        .collect();
    lessons.splice(0..0, stores::lesson(findings).map(|said| ("Bifold compared with other stores".to_owned(), said)));
    lessons.extend(spread_of_rounds(findings).map(|said| ("Spread of the figures".to_owned(), said)));
    lessons.extend(balance(runs).map(|said| ("Accuracy of the byte counts".to_owned(), said)));
    lessons
}

/// The outcome of a paper's rules: how many hold, which holds best, which is missed most.
fn lesson<'a>(findings: &[&'a Finding<'a>]) -> Option<String> {
    let held: usize = findings.iter().map(|finding| finding.held()).sum();
    let measured: usize = findings.iter().map(|finding| finding.measured()).sum();
    let rules: usize = findings.iter().map(|finding| finding.outcomes.len()).sum();
    if measured == 0 {
        return None;
    }
    let mut said = match (held, measured) {
        (1, 1) => "The one rule that was measured holds.".to_owned(),
        (0, 1) => "The one rule that was measured does not hold.".to_owned(),
        (held, measured) if held == measured => format!("All {measured} rules that were measured hold."),
        (held, measured) => format!("{held} of {measured} rules that were measured hold."),
    };
    match rules - measured {
        0 => {}
        1 => said += " 1 was not measured.",
        rest => said += &format!(" {rest} were not measured."),
    }
    let margins = |finding: &&'a Finding<'a>| {
        let finding = *finding;
        finding.by_margin().into_iter().map(move |(margin, rule, outcome)| (margin, finding, rule, outcome))
    };
    let mut all: Vec<_> = findings.iter().flat_map(margins).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((margin, finding, rule, outcome)) = all.last().filter(|best| best.0 >= 1.0) {
        let times = number(*margin);
        said += &format!(
            " Clearest: {}; that is {times} times what the rule requires.",
            described(finding, *rule, outcome)
        );
    }
    if let Some((_, finding, missed, outcome)) = all.first().filter(|worst| worst.0 < 1.0) {
        said +=
            &format!(" Furthest off: {}; the rule requires {}.", described(finding, *missed, outcome), rule(*missed));
    }
    Some(said)
}

fn described(finding: &Finding<'_>, rule: Rule, outcome: &CheckOutcome) -> String {
    let (what, said, name) = (&outcome.what, &outcome.paper, finding.experiment.name);
    format!("{what}, {} ({}: {said}; {name})", ours(rule, outcome.ours), source(finding.experiment.paper))
}

/// The label of a note.
pub fn note_of(paper: Paper) -> &'static str {
    if paper == Paper::Bifold { "Note" } else { "Different from the paper" }
}

/// The source of a rule.
pub fn source(paper: Paper) -> &'static str {
    if paper == Paper::Bifold { "expected" } else { "the paper" }
}

/// The spread between the rounds of a run.
fn spread_of_rounds(findings: &[Finding<'_>]) -> Option<String> {
    let mut spreads: Vec<f64> = Vec::new();
    for finding in findings {
        for (arm, runs) in finding.data.measured().filter(|(_, runs)| runs.len() > 1) {
            for step in arm.spec.steps.iter().filter(|step| step.act.has_rate()) {
                let mut rates: Vec<f64> =
                    runs.iter().filter_map(|run| data::of_step(run, &step.name, data::RATE)).collect();
                rates.sort_by(f64::total_cmp);
                if let (Some(least), Some(most), Some(middle)) = (rates.first(), rates.last(), data::middle(&rates)) {
                    spreads.push((most - least) / middle * 100.0);
                }
            }
        }
    }
    spreads.retain(|spread| spread.is_finite());
    spreads.sort_by(f64::total_cmp);
    let (half, most) = (data::middle(&spreads)?, spreads.last()?);
    Some(format!(
        "Rounds of one run differ by {} % of their operations per second in the typical step, and by up to {} %. \
         Smaller differences between stores mean little.",
        number(half),
        number(*most)
    ))
}

/// The stores' own counts of bytes written over the system's.
fn balance(runs: &[&Run]) -> Option<String> {
    let ratios = || runs.iter().flat_map(|run| &run.accounts).filter_map(|account| account.ratio());
    let (least, most) = (ratios().reduce(f64::min)?, ratios().reduce(f64::max)?);
    Some(format!(
        "The bytes that stores count as written are {} to {} times those that the system counts.",
        number(least),
        number(most)
    ))
}
