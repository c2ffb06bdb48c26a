//! `verify`: reads every byte of every file offline and lists all damage.

use std::{path::Path, time::Instant};

use bifold::{Corruption, Env, Error};
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    global::Global,
    output::{self, Output, Tone},
    progress::Progress,
};

/// What was read, and the damage.
#[derive(Serialize)]
struct VerifyReport {
    ok: bool,
    files: u64,
    bytes: u64,
    seconds: f64,
    problems: Vec<Problem>,
}

/// One piece of damage.
#[derive(Serialize)]
struct Problem {
    /// The file.
    file: Option<String>,
    /// Its offset in the file, in bytes.
    offset: Option<u64>,
    /// The problem, in words.
    problem: String,
}

/// `bifold verify`
pub fn run(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let begin = Instant::now();
    let report = {
        let progress = Progress::bytes("verifying", 0);
        bifold::verify_in(&Env::system(), path, |at| progress.reach_of(at.done_bytes, at.total_bytes))?
    };
    let advice = "restore from a backup (`bifold backup restore`; a checkpoint shares its files with the database), or \
                  save what is intact with `bifold salvage`";
    show(path, &report, (begin, advice), global, out)
}

/// Prints what a verification found that began at some time, with advice for damage.
pub fn show(
    path: &Path,
    report: &bifold::VerifyReport,
    (begin, advice): (Instant, &str),
    global: &Global,
    out: &mut Output,
) -> Result<()> {
    let problems: Vec<Problem> = report.problems.iter().map(describe).collect();
    let report = VerifyReport {
        ok: problems.is_empty(),
        files: report.files,
        bytes: report.bytes,
        seconds: begin.elapsed().as_secs_f64(),
        problems,
    };
    let printed = if global.json { out.json(&report) } else { print(path, &report, advice, out) };
    if report.ok { printed } else { Failure::No(None).after(printed) }
}

fn print(path: &Path, report: &VerifyReport, advice: &str, out: &mut Output) -> Result<()> {
    let files = output::counted(report.files, "file", "files");
    let read = format!("{} in {files}", output::bytes(report.bytes));
    if report.ok {
        let sound = out.paint(Tone::Good, "sound");
        return out.line_now(format!("{}: {sound}, read {read} in {:.1} s", path.display(), report.seconds));
    }
    for problem in &report.problems {
        let file = problem.file.as_deref().unwrap_or("");
        let offset = problem.offset.map(|offset| format!(" at offset {offset}")).unwrap_or_default();
        out.line(format!("{}{file}{offset}: {}", out.paint(Tone::Bad, "damage: "), problem.problem))?;
    }
    let found = out.paint(Tone::Bad, &output::counted(report.problems.len() as u64, "problem", "problems"));
    out.line_now(format!("{}: {found}, read {read}; {advice}", path.display()))
}

fn describe(error: &Error) -> Problem {
    match error {
        Error::Corruption { path, detail: Corruption { offset, what, expected, found, .. } } => Problem {
            file: Some(path.display().to_string()),
            offset: Some(*offset),
            problem: format!("damaged {what}: expected {expected}, found {found}"),
        },
        Error::Io { path, .. } | Error::NewerFormat { path, .. } | Error::NotFound { path } => {
            Problem { file: Some(path.display().to_string()), offset: None, problem: error.to_string() }
        }
        _ => Problem { file: None, offset: None, problem: error.to_string() },
    }
}
