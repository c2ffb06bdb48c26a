//! An experiment: its verdict, its rules, its charts, and what made them.

use super::{
    Page, command, figures,
    finding::Finding,
    html::badge,
    markup::{Markup, element, prose, text, words},
    settings,
    summary::{note_of, source},
    words::{holds, not_loaded, ours, rule, rules_held},
};
use crate::{
    chart::{
        plot,
        svg::{self, Colors},
    },
    experiment::{CheckOutcome, check::Rule},
};

/// Pictures wider than this have a row of the page for themselves.
const HALF_A_ROW: f64 = 500.0;

/// The section of an experiment.
pub fn section(finding: &Finding<'_>, page: &Page<'_>) -> Markup {
    let experiment = finding.experiment;
    let paper = experiment.paper.name();
    let mut parts = vec![
        words("p", &[("class", "eyebrow")], &format!("{} · {paper}, {}", experiment.name, experiment.place)),
        element("h2", &[], [text(experiment.title), text(" "), badge(finding.verdict)]),
        words("p", &[], &rules_held(finding)),
    ];
    if !experiment.note.is_empty() {
        let label = words("strong", &[], &format!("{}: ", note_of(experiment.paper)));
        parts.push(element("p", &[("class", "note")], [label, prose(experiment.note)]));
    }
    if !finding.outcomes.is_empty() {
        parts.push(rules(finding));
    }
    parts.push(charts(finding));
    parts.extend(figures::all(finding));
    parts.extend(not_loaded(finding).map(|said| words("p", &[("class", "small")], &said)));
    parts.extend(settings::all(finding));
    parts.push(element(
        "p",
        &[("class", "small made")],
        [
            text("Made by "),
            words("code", &[], &command(finding, page)),
            text(" "),
            words("a", &[("class", "up"), ("href", "#page-experiments")], "↑ All experiments"),
        ],
    ));
    let attributes = [
        ("class", "experiment"),
        ("id", finding.id.as_str()),
        ("data-paper", paper),
        ("data-verdict", finding.verdict.name()),
    ];
    element("section", &attributes, parts)
}

fn rules(finding: &Finding<'_>) -> Markup {
    let says = match source(finding.experiment.paper) {
        "expected" => "We expect",
        _ => "The paper says",
    };
    let heads = ["What", says, "It holds where ours is", "Ours", "Holds"];
    let head = heads.map(|name| words("th", &[("scope", "col")], name));
    let row = |(rule_of, outcome): (Rule, &CheckOutcome)| {
        let class = match outcome.holds {
            Some(true) => "holds yes",
            Some(false) => "holds no",
            None => "holds",
        };
        let cells = [
            words("th", &[("scope", "row")], &outcome.what),
            words("td", &[], &outcome.paper),
            words("td", &[], &rule(rule_of)),
            words("td", &[("class", "number")], &ours(rule_of, outcome.ours)),
            words("td", &[("class", class)], holds(outcome.holds)),
        ];
        element("tr", &[], cells)
    };
    let table = element(
        "table",
        &[("class", "rules")],
        [element("thead", &[], [element("tr", &[], head)]), element("tbody", &[], finding.ruled().map(row))],
    );
    scroll("Rules", table)
}

/// A box in which what is too wide is moved to and fro, by keys too.
pub fn scroll(label: &str, inside: Markup) -> Markup {
    scroll_as("scroll", label, inside)
}

/// The same with classes of its own.
pub fn scroll_as(class: &str, label: &str, inside: Markup) -> Markup {
    element("div", &[("class", class), ("tabindex", "0"), ("role", "region"), ("aria-label", label)], [inside])
}

fn charts(finding: &Finding<'_>) -> Markup {
    let mut nothing = Vec::new();
    let mut drawn = Vec::new();
    for (number, chart) in finding.charts.iter().enumerate() {
        let Some(picture) = plot::picture(chart, finding.look(number)) else {
            if finding.is_expected(number) {
                nothing.push(chart.title.clone());
            }
            continue;
        };
        let class = if picture.width > HALF_A_ROW { "wide" } else { "half" };
        let svg = element("div", &[], [Markup::ours(&svg::draw(&picture, Colors::Themed))]);
        drawn.push(element("figure", &[("class", class)], [words("figcaption", &[], &chart.title), svg]));
    }
    if !nothing.is_empty() {
        let said = format!("Not measured yet: {}.", super::words::list(&nothing));
        drawn.push(words("p", &[("class", "small")], &said));
    }
    element("div", &[("class", "charts")], drawn)
}
