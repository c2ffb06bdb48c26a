//! The page around the sections: title, summary, table of all experiments, contents, rules.

use std::collections::BTreeSet;

use super::{
    Page,
    finding::{Finding, complete_first},
    markup::{Markup, element, empty, prose, text, words},
    section,
    summary::{Summary, VERDICTS, counts},
    words::{held_of, how_complete, ours, sign},
};
use crate::{
    chart::numbers::number,
    experiment::{CheckOutcome, Paper, Verdict, check::Rule},
};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
pub const TITLE: &str = "What the papers found, measured with Bifold";

/// What a browser may do for the page: nothing but show what is in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// All of it.
pub fn page(page: &Page<'_>, findings: &[Finding<'_>]) -> String {
    let summary = Summary::new(page, findings);
    let head = element(
        "head",
        &[],
        [
            empty("meta", &[("charset", "utf-8")]),
            empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]),
            empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]),
            empty("meta", &[("name", "color-scheme"), ("content", "light dark")]),
            // Without it browsers ask the server for one.
            empty("link", &[("rel", "icon"), ("href", "data:,")]),
            words("title", &[], TITLE),
            element("style", &[], [Markup::ours(STYLE)]),
        ],
    );
    let mut main = vec![top(&summary), overview(findings)];
    main.extend(findings.iter().map(|finding| section::section(finding, page)));
    main.push(foot());
    let body = element(
        "body",
        &[],
        [
            words("a", &[("class", "skip"), ("href", "#page-experiments")], "To the experiments"),
            element("div", &[("class", "page")], [contents(findings), element("main", &[], main)]),
            element("script", &[], [Markup::ours(SCRIPT)]),
        ],
    );
    format!("<!DOCTYPE html>\n{}", element("html", &[("lang", "en")], [head, body]).into_string())
}

/// Links to all experiments, next to the page if there is room.
fn contents(findings: &[Finding<'_>]) -> Markup {
    let mut parts = vec![words("a", &[("class", "home"), ("href", "#page-summary")], "Summary")];
    let mut before = None;
    for finding in findings {
        let paper = finding.experiment.paper;
        if before != Some(paper) {
            parts.push(words("p", &[], paper.name()));
            before = Some(paper);
        }
        let link = [mark(finding.verdict), text(finding.experiment.name)];
        let (href, name) = (format!("#{}", finding.id), paper.name());
        let attributes = [("href", href.as_str()), ("data-paper", name), ("data-verdict", finding.verdict.name())];
        parts.push(element("a", &attributes, link));
    }
    element("nav", &[("class", "contents"), ("aria-label", "Experiments")], parts)
}

/// A verdict as a sign.
fn mark(verdict: Verdict) -> Markup {
    let class = format!("mark {}", verdict.name());
    words(
        "span",
        &[("class", &class), ("title", verdict.name()), ("role", "img"), ("aria-label", verdict.name())],
        sign(verdict),
    )
}

/// A verdict as a sign and a word.
pub fn badge(verdict: Verdict) -> Markup {
    let class = format!("badge {}", verdict.name());
    let sign = words("span", &[("aria-hidden", "true")], sign(verdict));
    element("span", &[("class", &class)], [sign, text(&format!(" {}", verdict.name()))])
}

fn top(summary: &Summary) -> Markup {
    let mut parts = vec![words("h1", &[], TITLE), words("p", &[("class", "lead")], &summary.headline)];
    if !summary.warnings.is_empty() {
        let warnings = summary.warnings.iter().map(|warning| element("p", &[], [prose(warning)]));
        parts.push(element("div", &[("class", "warning"), ("role", "note")], warnings));
    }
    parts.push(element("div", &[("class", "papers")], summary.papers.iter().map(paper)));
    parts.push(legend());
    if !summary.lessons.is_empty() {
        parts.push(words("h2", &[], "What to take from it"));
        let lesson =
            |(about, said): &(String, String)| element("p", &[], [words("strong", &[], about), text(": "), text(said)]);
        parts.push(element("div", &[("class", "lessons")], summary.lessons.iter().map(lesson)));
    }
    parts.push(words("h2", &[], "What it was measured on"));
    let fact = |(what, how): &(&'static str, String)| [words("dt", &[], what), words("dd", &[], how)];
    parts.push(element("dl", &[("class", "facts")], summary.facts.iter().flat_map(fact)));
    element("header", &[("id", "page-summary")], parts)
}

/// A paper's verdicts as a bar and in words.
fn paper((paper, verdicts): &(Paper, [usize; 4])) -> Markup {
    let all: usize = verdicts.iter().sum();
    let mut x = 0.0;
    let mut parts = Vec::new();
    for (verdict, count) in VERDICTS.iter().zip(verdicts).filter(|(_, count)| **count > 0) {
        let width = *count as f64 / all.max(1) as f64 * 100.0;
        let (from, wide) = (format!("{x:.2}"), format!("{width:.2}"));
        let attributes =
            [("class", verdict.name()), ("x", from.as_str()), ("y", "0"), ("width", wide.as_str()), ("height", "10")];
        parts.push(element("rect", &attributes, []));
        x += width;
    }
    let said = counts(verdicts);
    let attributes =
        [("viewBox", "0 0 100 10"), ("preserveAspectRatio", "none"), ("role", "img"), ("aria-label", said.as_str())];
    let bar = element("svg", &attributes, parts);
    let name = words("span", &[("class", "paper")], paper.name());
    element("div", &[], [name, bar, words("span", &[("class", "counts")], &said)])
}

/// What verdicts mean.
fn legend() -> Markup {
    let meaning = |verdict| match verdict {
        Verdict::Reproduced => "every rule was measured, and holds",
        Verdict::Partly => "some of what was measured holds, and some does not",
        Verdict::Not => "every rule was measured, and none holds",
        Verdict::Open => "not every rule was measured, and those that were all hold, or none does",
    };
    let entry = |verdict| element("span", &[], [badge(verdict), text(&format!(" {}", meaning(verdict)))]);
    element("p", &[("class", "legend")], VERDICTS.into_iter().map(entry))
}

/// The table of all experiments.
fn overview(findings: &[Finding<'_>]) -> Markup {
    let heads = ["Experiment", "Verdict", "About", "Paper", "Rules held", "Worst", "Best"];
    let kinds = ["text", "number", "text", "text", "number", "number", "number"];
    let head = heads.iter().zip(kinds).map(|(name, kind)| words("th", &[("scope", "col"), ("data-kind", kind)], name));
    let (ordered, complete) = complete_first(findings);
    let table = element(
        "table",
        &[("class", "sortable overview")],
        [element("thead", &[], [element("tr", &[], head)]), element("tbody", &[], ordered.into_iter().map(row))],
    );
    let note = "Worst and best: of an experiment's rules the one that is missed most, or met most narrowly, and the \
                one that is met most clearly, each as our figure over what the rule requires. It holds from 1 on.";
    element(
        "section",
        &[("id", "page-experiments")],
        [
            words("h2", &[], "All experiments"),
            filter(findings),
            element(
                "div",
                &[("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", "All experiments")],
                [table],
            ),
            words("p", &[("class", "small")], &format!("{}{note}", how_complete(complete, findings.len()))),
        ],
    )
}

/// Which papers and verdicts are shown. It appears where scripts run.
fn filter(findings: &[Finding<'_>]) -> Markup {
    let papers: BTreeSet<Paper> = findings.iter().map(|finding| finding.experiment.paper).collect();
    let papers: Vec<&str> = papers.into_iter().map(Paper::name).collect();
    let option = |value: &str, shown: &str| words("option", &[("value", value)], shown);
    let choice = |label: &str, id: &str, all: &str, values: &[&str]| {
        let options = [option("", all)].into_iter().chain(values.iter().map(|value| option(value, value)));
        element("label", &[], [text(label), element("select", &[("id", id)], options)])
    };
    let verdicts = VERDICTS.map(Verdict::name);
    element(
        "form",
        &[("class", "filter"), ("hidden", "hidden")],
        [
            choice("Paper ", "filter-paper", "all", &papers),
            choice("Verdict ", "filter-verdict", "all", &verdicts),
            words("span", &[("id", "filter-count"), ("aria-live", "polite")], ""),
        ],
    )
}

fn row(finding: &Finding<'_>) -> Markup {
    let experiment = finding.experiment;
    let (href, paper) = (format!("#{}", finding.id), experiment.paper.name());
    let rank = VERDICTS.iter().position(|verdict| *verdict == finding.verdict).unwrap_or(0).to_string();
    let (held, measured) = (finding.held(), finding.measured());
    let share = (held as f64 / measured.max(1) as f64).to_string();
    let margins = finding.by_margin();
    let margin = |found: Option<&(f64, Rule, &CheckOutcome)>| match found {
        Some((margin, rule, outcome)) => {
            let said = format!("{}: {}", outcome.what, ours(*rule, outcome.ours));
            let class = if *margin >= 1.0 { "number" } else { "number missed" };
            words("td", &[("class", class), ("data-v", &margin.to_string()), ("title", &said)], &number(*margin))
        }
        None => words("td", &[("class", "number")], "–"),
    };
    element(
        "tr",
        &[("data-paper", paper), ("data-verdict", finding.verdict.name())],
        [
            element("th", &[("scope", "row")], [words("a", &[("href", &href)], experiment.name)]),
            element("td", &[("data-v", &rank)], [badge(finding.verdict)]),
            words("td", &[("class", "about")], experiment.title),
            element("td", &[], [text(paper), words("small", &[], experiment.place)]),
            words("td", &[("class", "number"), ("data-v", &share)], &held_of(finding)),
            margin(margins.first()),
            margin(margins.last()),
        ],
    )
}

/// How to read rules and rounds.
fn foot() -> Markup {
    let point = |name: &str, said: &str| element("li", &[], [words("strong", &[], name), prose(said)]);
    element(
        "footer",
        &[],
        [
            words("h2", &[], "How to read this"),
            words("p", &[], "The rules were written before the first run, and are the same for every experiment:"),
            element("ul", &[], RULES.map(|(name, said)| point(name, said))),
            element("ul", &[], METHOD.map(|(name, said)| point(name, said))),
        ],
    )
}

/// The rules of [`crate::experiment::check`].
pub const RULES: [(&str, &str); 5] = [
    (
        "A gain",
        " of the paper (A is r times B) holds if ours is at least half as much of a gain: 1 + (r − 1) / 2. If the \
         paper gives a range, r is its lower end.",
    ),
    ("A saving", " (A is a share s less than B) holds if ours is at least half of it: s / 2."),
    ("Alike", " are two figures if one is 0.8 to 1.25 times the other."),
    ("A curve", " rises or falls if no step goes the other way by more than a twentieth and its ends differ that way."),
    ("Other statements", " have their bound in words and in the rule."),
];

/// How runs are made and stored.
pub const METHOD: [(&str, &str); 4] = [
    (
        "Rounds alternate.",
        " All runs of an experiment are made once before any of them is repeated (A B C A B C), because a machine's \
         speed drifts over minutes. Each has its own process and directory. Bars and points are the medians of the \
         rounds; thin lines go from the least to the most.",
    ),
    (
        "Page cache.",
        " If it is warm, it has what earlier steps left. If it is cold, the store's files are synced and dropped from \
         it before each step that only reads. The settings of each experiment say which.",
    ),
    (
        "Ratios.",
        " In tables of figures, ratios are relative to the first column. The figure's name says whether more is \
         better.",
    ),
    (
        "Raw results",
        " are in `runs.jsonl`: one line for each run with all of its options, its settings, its machine and every \
         figure of every step. From that file this page can be made again.",
    ),
];
