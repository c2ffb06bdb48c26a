//! The report of experiments: one self-contained page of HTML, and the same as Markdown with pictures.
//!
//! ```text
//! experiments, runs ──▶ findings ──▶ summary, overview, a section for each ──▶ HTML
//!                                                                          ──▶ Markdown, SVG files
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | `finding` | the findings of each experiment |
//! | `summary` | the summary |
//! | `stores` | its comparison of Bifold with other stores |
//! | `html` | the page around the sections |
//! | `section` | an experiment: verdict, rules, charts |
//! | `figures` | all figures behind the charts, as tables |
//! | `settings` | the runs, with every option |
//! | `markdown` | all of it as Markdown, for docs |
//! | `markup` | HTML that is XML too |
//! | `words` | counts, sizes, times and verdicts in words |
//!
//! It reads no clock and no file, and the same runs make the same page. Names of experiments and series, settings and
//! machines come from elsewhere, so they are always escaped.

mod figures;
mod finding;
mod html;
mod markdown;
mod markup;
mod section;
mod settings;
mod stores;
mod summary;
#[cfg(test)]
mod tests;
mod words;

use self::finding::Finding;
use crate::{
    chart::{
        plot::{self, Look},
        svg::{self, Colors},
    },
    experiment::Experiment,
    record::Run,
    scale::Scale,
    session::Subject,
    spec::{PageCache, Spec},
};

/// Experiments and their runs.
#[derive(Clone)]
pub struct Page<'a> {
    /// The experiments to show, in this order.
    pub experiments: &'a [Experiment],
    /// All runs. Those that belong to none of the experiments are left out.
    pub runs: &'a [Run],
    /// The size of the experiments.
    pub scale: Scale,
    /// What was measured.
    pub subject: &'a Subject,
    /// The command that made the page; may be empty.
    pub command: String,
}

impl Page<'_> {
    /// The page: HTML that is well-formed XML, with its style, its script and its charts. It needs no network.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self, &self.findings())
    }

    /// The same as Markdown, with links to the files of [`Page::pictures`] in the folder `pictures`, as seen from the
    /// document.
    #[must_use]
    pub fn markdown(&self, pictures: &str) -> String {
        markdown::document(self, &self.findings(), pictures)
    }

    /// The charts as SVG on white: file names, such as `hashkv-e1-1.svg`, and contents. Charts without measurements are
    /// left out.
    #[must_use]
    pub fn pictures(&self) -> Vec<(String, String)> {
        let findings = self.findings();
        let all = findings.iter().flat_map(|finding| (0..finding.charts.len()).map(move |chart| (finding, chart)));
        all.filter_map(|(finding, chart)| Some((picture_name(finding, chart), standalone(finding, chart)?))).collect()
    }

    fn findings(&self) -> Vec<Finding<'_>> {
        finding::all(self.experiments, self.runs)
    }
}

fn picture_name(finding: &Finding<'_>, chart: usize) -> String {
    format!("{}-{}.svg", finding.id, chart + 1)
}

/// A chart as a file of its own, with its title; nothing where nothing was measured.
fn standalone(finding: &Finding<'_>, chart: usize) -> Option<String> {
    let picture = plot::picture(finding.charts.get(chart)?, Look { titled: true, ..finding.look(chart) })?;
    Some(svg::draw(&picture, Colors::Fixed))
}

/// The command that makes the runs of an experiment, with the settings that hold for all of them.
fn command(finding: &Finding<'_>, page: &Page<'_>) -> String {
    let scale = page.scale;
    let mut command = page.subject.command(finding.experiment.name);
    command += &format!(" --scale {scale}");
    if let Some(arm) = finding.experiment.arms.first() {
        let Spec { plan, page_cache, process_memory, .. } = &arm.spec;
        command += &format!(" --seed {}", plan.seed);
        if *page_cache == PageCache::Cold {
            command += " --cold";
        }
        if let Some(bytes) = process_memory.filter(|_| *process_memory != scale.process_memory()) {
            command += &format!(" --memory {bytes}");
        }
    }
    command
}
