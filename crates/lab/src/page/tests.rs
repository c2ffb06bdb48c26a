//! A page of every experiment there is and of some that are harder, with runs that were never made.

mod fixture;

use std::collections::BTreeSet;

use super::*;
use crate::{
    chart::{Text, letters, outside},
    experiment::{
        self,
        check::{Check, Rule},
        performance::Setting,
        rivals::Comparison,
    },
    session::Session,
};

fn experiments() -> Vec<Experiment> {
    experiment::all(Scale::Small, 1).into_iter().chain(fixture::harder()).collect()
}

fn page<'a>(experiments: &'a [Experiment], runs: &'a [Run]) -> Page<'a> {
    let command = "bifold lab report --scale small".to_owned();
    Page { experiments, runs, scale: Scale::Small, subject: &Subject::Papers, command }
}

/// Reads a page as XML: everything is closed, nothing is written twice, no text became an element.
fn parsed(html: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    roxmltree::Document::parse_with_options(html, options).unwrap_or_else(|e| panic!("{e}"))
}

/// `BIFOLD_PAGE=DIR cargo test -p bifold-lab -- a_page_of_everything` leaves the page there, to be looked at.
#[test]
fn a_page_of_everything_is_whole() {
    let experiments = experiments();
    let runs = fixture::runs(&experiments);
    let page = page(&experiments, &runs);
    let html = page.html();
    if let Some(dir) = std::env::var_os("BIFOLD_PAGE") {
        let seemly = &experiments[..experiments.len() - 1];
        let seemly = Page { experiments: seemly, ..page.clone() }.html();
        std::fs::write(std::path::Path::new(&dir).join("report.html"), seemly).unwrap();
    }
    let document = parsed(&html);
    let ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an id comes twice");
    for finding in page.findings() {
        let section = document.descendants().find(|node| node.attribute("id") == Some(&finding.id));
        let text: String = section.unwrap().descendants().filter_map(|node| node.text()).collect();
        assert!(text.contains(finding.experiment.title) && text.contains(finding.experiment.place), "{}", finding.id);
        for outcome in &finding.outcomes {
            // What XML cannot have is not there.
            let what = outcome.what.replace(['\0', '\u{1b}'], "\u{fffd}").replace('\n', " ");
            assert!(text.contains(&what), "{}", finding.id);
        }
    }
    let links = document.descendants().filter_map(|node| node.attribute("href")).filter(|link| link.starts_with('#'));
    for link in links {
        assert!(ids.contains(&&link[1..]), "{link} leads nowhere");
    }
    let (figures, _) = html.split_once("<script>").unwrap();
    for number in ["NaN", "inf\"", "inf ", "Infinity"] {
        assert!(!figures.contains(number), "{number}");
    }
}

#[test]
fn a_store_that_was_not_loaded_in_time_has_a_note_and_no_figures() {
    let is_first = |experiment: &Experiment| experiment.name == "hashkv-e1";
    let experiments: Vec<Experiment> = experiment::all(Scale::Small, 1).into_iter().filter(is_first).collect();
    let slow = &experiments[0].arms[1];
    let mut runs = fixture::runs(&experiments);
    for run in runs.iter_mut().filter(|run| run.key == slow.spec.key()) {
        run.steps.clear();
        run.not_loaded = Some(crate::record::NotLoaded { keys: 250, of: 1000, seconds: 900.0 });
    }
    let page = page(&experiments, &runs);
    let note = format!("{} (25.0 % of the keys after 15 min)", slow.label());
    assert!(page.markdown("pictures").contains(&note));
    let html = page.html();
    let document = parsed(&html);
    assert!(document.descendants().filter_map(|node| node.text()).any(|text| text.contains(&note)));
    let is_in_table = |node: &roxmltree::Node<'_, '_>| {
        node.ancestors().any(|outer| outer.attribute("class") == Some("sortable figures"))
    };
    let mut cells = document.descendants().filter(|node| node.has_tag_name("td")).filter(is_in_table);
    assert!(cells.any(|cell| cell.text() == Some("–")));
}

#[test]
fn a_page_asks_nobody_for_anything() {
    let experiments = experiments();
    let runs = fixture::runs(&experiments);
    let html = page(&experiments, &runs).html();
    for outside in ["http:", "https:", "@import", "url(", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!html.contains(outside), "{outside}");
    }
    for attribute in parsed(&html).descendants().flat_map(|node| node.attributes()) {
        let (name, value) = (attribute.name(), attribute.value());
        assert!(!["src", "srcset", "data", "action", "style"].contains(&name), "{name}={value}");
        assert!(name != "href" || value.starts_with('#') || value == "data:,", "{name}={value}");
    }
    for (name, svg) in page(&experiments, &runs).pictures() {
        assert_eq!(svg.matches("http").count(), 1, "{name}: only the name of SVG itself");
        assert!(svg.contains("xmlns=\"http://www.w3.org/2000/svg\"") && !svg.contains("var("), "{name}");
    }
}

#[test]
fn names_from_elsewhere_stay_text() {
    let experiments = vec![fixture::hostile()];
    let runs = fixture::runs(&experiments);
    let page = page(&experiments, &runs);
    let html = page.html();
    let document = parsed(&html);
    let elements = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
    assert_eq!((elements("script"), elements("img"), elements("iframe")), (1, 0, 0));
    let markdown = page.markdown("pictures");
    // Between backticks everything is text.
    let code = |line: &&str| line.starts_with('`') && line.matches('`').count() == 2;
    for line in markdown.lines().filter(|line| !code(line)) {
        assert!(!line.contains("<script") && !line.contains("<img"), "{line}");
    }
    for (name, svg) in page.pictures() {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)), "{name}");
        let svg = parsed(&svg);
        assert!(svg.descendants().all(|node| !node.has_tag_name("script")));
    }
}

#[test]
fn nothing_leaves_the_pictures() {
    let experiments = experiments();
    let runs = fixture::runs(&experiments);
    let page = page(&experiments, &runs);
    let mut drawn = 0;
    for finding in page.findings() {
        for (number, chart) in finding.charts.iter().enumerate() {
            for titled in [false, true] {
                let Some(picture) = plot::picture(chart, Look { titled, ..finding.look(number) }) else { continue };
                let room = |text: &Text| letters::width(&text.text, picture.font_size);
                let left = outside(&picture, room);
                assert!(left.is_none(), "{}, {}: {left:?}", finding.id, chart.title);
                drawn += 1;
            }
        }
    }
    assert!(drawn > 10, "{drawn}");
}

#[test]
fn markdown_shows_the_pictures_there_are() {
    let experiments = experiments();
    let runs = fixture::runs(&experiments);
    let page = page(&experiments, &runs);
    let markdown = page.markdown("pictures");
    let pictures = page.pictures();
    assert_eq!(markdown.matches("](pictures/").count(), pictures.len());
    for (name, _) in &pictures {
        assert!(markdown.contains(&format!("](pictures/{name})")), "{name}");
    }
    for finding in page.findings() {
        assert!(markdown.contains(&format!("<a id=\"{}\"></a>", finding.id)), "{}", finding.id);
    }
}

#[test]
fn without_runs_everything_is_open() {
    let experiments = experiment::all(Scale::Tiny, 1);
    let page = Page { scale: Scale::Tiny, ..page(&experiments, &[]) };
    let html = page.html();
    parsed(&html);
    assert!(html.contains("shows that the experiments work"));
    assert!(html.contains("0 runs"), "{html}");
    parsed(&Page { experiments: &[], ..page }.html());
}

#[test]
fn charts_of_the_device_are_left_out_where_nothing_was_counted() {
    let is_meant = |experiment: &Experiment| ["hashkv-e1", "novkv-f8"].contains(&experiment.name);
    let experiments: Vec<Experiment> = experiment::all(Scale::Small, 1).into_iter().filter(is_meant).collect();
    let mut runs = fixture::runs(&experiments);
    let drawn = |runs: &[Run]| {
        let page = page(&experiments, runs);
        let words = "What the device reads for an operation";
        (page.html().matches(words).count(), page.markdown("pictures").matches(words).count(), page.pictures().len())
    };
    let with = drawn(&runs);
    assert!(with.0 >= 4 && with.1 == 2, "a chart and a table of each: {with:?}");
    for step in runs.iter_mut().flat_map(|run| &mut run.steps) {
        step["device"] = serde_json::Value::Null;
    }
    // Nor are they called charts that are not measured yet.
    assert_eq!(drawn(&runs), (0, 0, with.2 - 8));
}

#[test]
fn what_is_complete_comes_first_in_the_table_of_all_experiments() {
    let experiments: Vec<Experiment> = experiment::all(Scale::Small, 1).into_iter().take(2).collect();
    let mut runs = fixture::runs(&experiments);
    let places =
        |markdown: &str| ["hashkv-e1", "hashkv-e2"].map(|name| markdown.find(&format!("| [{name}](")).unwrap());
    let [first, second] = places(&page(&experiments, &runs).markdown("pictures"));
    assert!(first < second);
    // Only the first experiment has it.
    let missing = experiments[0].arms[0].spec.key();
    runs.retain(|run| run.key != missing);
    let page = page(&experiments, &runs);
    let [first, second] = places(&page.markdown("pictures"));
    assert!(second < first);
    let said = "The first is complete; some runs of the last have not been made yet.";
    assert!(page.markdown("pictures").contains(said) && page.html().contains(said));
}

#[test]
fn a_result_is_open_until_every_rule_was_measured() {
    let mut experiments: Vec<Experiment> = experiment::all(Scale::Small, 1).into_iter().take(1).collect();
    let runs = fixture::runs(&experiments);
    let rule = |ours: Option<f64>| Check::new("ours", "theirs", Rule::AtLeast(1.0), move |_| ours);
    experiments[0].checks = vec![rule(Some(2.0)), rule(None), rule(None)];
    let said = page(&experiments, &runs).markdown("pictures");
    for words in ["**○ open**", "1 of 3 rules was measured, and holds.", "| ○ open | 1 of 1, 2 not measured |"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(said.contains("1 is open: not every rule was measured"), "{said}");
    assert!(page(&experiments, &runs).html().contains("1 of 1, 2 not measured"));
    experiments[0].checks = vec![rule(Some(2.0)), rule(Some(0.5)), rule(None)];
    let said = page(&experiments, &runs).markdown("pictures");
    assert!(said.contains("**◐ partly**") && said.contains("that were measured holds. 1 was not measured."), "{said}");
    experiments[0].checks.truncate(1);
    let said = page(&experiments, &runs).markdown("pictures");
    assert!(said.contains("**✓ reproduced**") && said.contains("Its one rule holds."), "{said}");
}

#[test]
fn a_report_says_how_its_runs_are_made() {
    let made = |subject: Subject| {
        let session = Session { scale: Scale::Tiny, subject, ..Session::default() };
        let experiments = session.experiments();
        let runs = fixture::runs(&experiments);
        let page = Page { scale: Scale::Tiny, subject: &session.subject, ..page(&experiments, &runs) };
        let (markdown, html) = (page.markdown("pictures"), page.html());
        move |words: &str| markdown.contains(words) && html.contains(words)
    };
    let set = vec!["log_bytes=1MiB".to_owned()];
    let comparison =
        Comparison { placements: vec!["inline".to_owned()], peers: Vec::new(), set, ..Comparison::default() };
    assert!(made(Subject::Compare(comparison))(
        "bifold lab compare --placements inline --peers none --workloads load,update,settle,read,scan,mix \
         --value-size 1000 --threads 1 --set log_bytes=1MiB --scale tiny --seed 1"
    ));
    assert!(made(Subject::Performance(Setting::Cache))("bifold lab run performance --setting cache --scale tiny"));
    assert!(made(Subject::Papers)("bifold lab run hashkv-e1 --scale tiny --seed 1"));
}

#[test]
fn debug_builds_are_warned_of() {
    let experiments = experiment::all(Scale::Small, 1);
    let mut runs = fixture::runs(&experiments);
    assert!(!page(&experiments, &runs).html().contains("class=\"warning\""));
    runs[0].machine.optimised = false;
    let html = page(&experiments, &runs).html();
    assert!(html.contains("built for debugging") && html.contains("2 machines, builds or file systems"));
}

#[test]
fn both_reports_say_in_which_file_system_the_stores_were() {
    let experiments = experiment::all(Scale::Small, 1);
    let mut runs = fixture::runs(&experiments);
    let said = |runs: &[Run]| {
        let page = page(&experiments, runs);
        (page.html(), page.markdown("pictures"))
    };
    let (html, markdown) = said(&runs);
    assert!(html.contains("<dt>file system</dt>\n<dd>ext4</dd>") && markdown.contains("* file system: ext4\n"));
    runs.iter_mut().for_each(|run| run.machine.file_system = None);
    let (html, markdown) = said(&runs);
    assert!(html.contains("<dt>file system</dt>\n<dd>unknown</dd>") && markdown.contains("* file system: unknown\n"));
}

#[test]
fn tables_of_many_series_have_a_row_for_themselves() {
    let experiments = fixture::harder();
    let runs = fixture::runs(&experiments);
    let html = page(&experiments, &runs).html();
    let document = parsed(&html);
    let tables = document.descendants().filter(|node| node.attribute("class") == Some("sortable figures"));
    let (mut wide, mut narrow) = (0, 0);
    for table in tables {
        let heads = table.descendants().filter(|node| node.attribute("scope") == Some("col")).count();
        match table.parent().and_then(|parent| parent.attribute("class")) {
            Some("scroll wide") if heads > 6 => wide += 1,
            Some("scroll") if heads <= 6 => narrow += 1,
            other => panic!("{other:?} with {heads} columns"),
        }
    }
    assert!(wide > 0 && narrow > 0, "{wide} {narrow}");
}
