//! `lab-part`: the process of one run. It reads the spec from standard input, so that the parent can confine it
//! before it begins, and writes one JSON object per line: its progress, and in the end the result.

use std::{
    io::Read,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bifold_lab::{
    Spec,
    execute::{Part, Progress, Seen, execute},
};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::given;
use crate::{
    failure::{Failure, Result},
    output::Output,
};

/// The interval between reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
pub struct PartArgs {
    /// The directory of the store.
    pub dir: PathBuf,

    /// Which part of the run.
    pub part: usize,
}

/// A line of its output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Progress.
    Seen(Seen),
    /// The result.
    Done(Part<Value>),
    /// An error.
    Failed(String),
}

/// `bifold lab-part`
pub fn run(args: &PartArgs, out: &mut Output) -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| Failure::trouble(format!("cannot read the spec: {e}")))?;
    let spec: Spec = serde_json::from_str(&text).map_err(|e| Failure::trouble(format!("not a spec: {e}")))?;
    let given = spec.input.as_ref().map(given::of).transpose()?;
    let progress = Arc::new(Progress::default());
    let ended = Arc::new(AtomicBool::new(false));
    let worker = thread::spawn({
        let (progress, ended, reporter) = (Arc::clone(&progress), Arc::clone(&ended), thread::current());
        let (part, dir) = (args.part, args.dir.clone());
        move || {
            let result = execute(&spec, part, &dir, given.as_ref(), &progress).and_then(Part::erased);
            ended.store(true, Relaxed);
            reporter.unpark();
            result
        }
    });
    while !ended.load(Relaxed) && !worker.is_finished() {
        thread::park_timeout(REPORT_EVERY);
        out.json(&Message::Seen(progress.look()))?;
    }
    let message = match worker.join() {
        Ok(Ok(part)) => Message::Done(part),
        Ok(Err(failure)) => Message::Failed(failure.to_string()),
        Err(_) => Message::Failed("the run panicked".to_owned()),
    };
    out.json(&message)?;
    // A run that another process continues has left its store open. The process ends like a killed one: it closes
    // nothing and runs no destructor.
    std::process::exit(0)
}
