//! All of it as Markdown, for docs: the summary, a table of all experiments, for each its rules and its pictures.

use std::fmt::Write;

use super::{
    Page, command,
    finding::{Finding, complete_first},
    html::TITLE,
    picture_name, standalone,
    summary::{Summary, VERDICTS, note_of, source},
    words::{held_of, holds, how_complete, not_loaded, ours, rule, rules_held, sign},
};
use crate::chart::numbers::number;

/// All of it.
pub fn document(page: &Page<'_>, findings: &[Finding<'_>], pictures: &str) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = top(&mut out, &Summary::new(page, findings));
    let _ = overview(&mut out, findings);
    for finding in findings {
        let _ = section(&mut out, finding, page, pictures);
    }
    out
}

fn top(out: &mut String, summary: &Summary) -> std::fmt::Result {
    writeln!(out, "# {TITLE}\n\n{}\n", escaped(&summary.headline))?;
    for warning in &summary.warnings {
        writeln!(out, "> **Warning:** {}\n", prose(warning))?;
    }
    writeln!(out, "| paper | {} |\n|---|--:|--:|--:|--:|", VERDICTS.map(|verdict| verdict.name()).join(" | "))?;
    for (paper, counts) in &summary.papers {
        writeln!(out, "| {} | {} |", paper.name(), counts.map(|count| count.to_string()).join(" | "))?;
    }
    writeln!(out)?;
    for (about, said) in &summary.lessons {
        writeln!(out, "* **{}**: {}", escaped(about), escaped(said))?;
    }
    writeln!(out)?;
    for (what, how) in &summary.facts {
        writeln!(out, "* {what}: {}", escaped(how))?;
    }
    writeln!(out)
}

fn overview(out: &mut String, findings: &[Finding<'_>]) -> std::fmt::Result {
    writeln!(out, "## All experiments\n")?;
    writeln!(
        out,
        "| experiment | paper | about | verdict | rules held | worst | best |\n|---|---|---|---|--:|--:|--:|"
    )?;
    let (ordered, complete) = complete_first(findings);
    for finding in ordered {
        let experiment = finding.experiment;
        let margins = finding.by_margin();
        let margin = |found: Option<f64>| found.map_or_else(|| "–".to_owned(), number);
        writeln!(
            out,
            "| [{}](#{}) | {}, {} | {} | {} {} | {} | {} | {} |",
            escaped(experiment.name),
            finding.id,
            experiment.paper.name(),
            escaped(experiment.place),
            escaped(experiment.title),
            sign(finding.verdict),
            finding.verdict.name(),
            held_of(finding),
            margin(margins.first().map(|margin| margin.0)),
            margin(margins.last().map(|margin| margin.0)),
        )?;
    }
    let said = how_complete(complete, findings.len());
    writeln!(out, "\n{said}Worst and best: our figure over what the rule requires. The rule holds from 1 on.\n")
}

fn section(out: &mut String, finding: &Finding<'_>, page: &Page<'_>, pictures: &str) -> std::fmt::Result {
    let experiment = finding.experiment;
    // The place that links go to: what a viewer makes of a heading differs from one to the next.
    writeln!(out, "<a id=\"{}\"></a>\n", finding.id)?;
    writeln!(out, "## {}: {}\n", escaped(experiment.name), escaped(experiment.title))?;
    let (paper, place) = (experiment.paper.name(), escaped(experiment.place));
    let (verdict, held) = (finding.verdict.name(), escaped(&rules_held(finding)));
    writeln!(out, "**{} {verdict}** · {paper}, {place}. {held}\n", sign(finding.verdict))?;
    if !experiment.note.is_empty() {
        writeln!(out, "{}: {}\n", note_of(experiment.paper), prose(experiment.note))?;
    }
    if !finding.outcomes.is_empty() {
        writeln!(
            out,
            "| what | {} | holds where ours is | ours | holds |\n|---|---|---|--:|---|",
            source(experiment.paper)
        )?;
        for (rule_of, outcome) in finding.ruled() {
            let cells = [
                outcome.what.clone(),
                outcome.paper.clone(),
                rule(rule_of),
                ours(rule_of, outcome.ours),
                holds(outcome.holds).to_owned(),
            ];
            writeln!(out, "| {} |", cells.map(|cell| escaped(&cell)).join(" | "))?;
        }
        writeln!(out)?;
    }
    for (number, chart) in finding.charts.iter().enumerate() {
        if standalone(finding, number).is_some() {
            let title = format!("{}: {}", experiment.name, chart.title);
            writeln!(out, "![{}]({pictures}/{})", escaped(&title), picture_name(finding, number))?;
        }
    }
    if let Some(said) = not_loaded(finding) {
        writeln!(out, "\n{}", escaped(&said))?;
    }
    writeln!(out, "\n`{}`\n", command(finding, page).replace(['`', '\n'], " "))
}

/// Sentences, in which what stands between backticks is code.
fn prose(said: &str) -> String {
    if !said.matches('`').count().is_multiple_of(2) {
        return escaped(said);
    }
    let part = |(at, part): (usize, &str)| match at % 2 {
        0 => escaped(part),
        _ => format!("`{}`", part.replace(char::is_control, " ")),
    };
    said.split('`').enumerate().map(part).collect()
}

/// Text in which nothing is markup, in one line.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => escaped.extend(['\\', letter]),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
