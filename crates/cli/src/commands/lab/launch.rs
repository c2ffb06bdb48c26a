//! One process per run, so that memory, processor time and system calls belong to the store alone.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bifold_lab::{
    Failure, Result, Spec,
    driver::Launch,
    execute::{Part, Seen},
    quiet,
};
use serde_json::Value;

use super::{confine::Confined, part::Message};

/// How long a run waits for a machine that is busy.
const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// Runs this program again for each run.
#[derive(Clone, Copy, Debug, Default)]
pub enum Processes {
    /// Whatever else the machine does.
    #[default]
    Anytime,
    /// When nothing else takes the machine's processors.
    WhenQuiet,
}

impl Launch for Processes {
    fn launch(&self, spec: &Spec, part: usize, dir: &Path, seen: &mut dyn FnMut(Seen)) -> Result<Part<Value>> {
        if matches!(self, Self::WhenQuiet) && part == 0 {
            quiet::wait(QUIET_WITHIN)?;
        }
        let trouble = |verb: &str, e: &dyn std::fmt::Display| Failure::Store(format!("cannot {verb} a process: {e}"));
        let program = std::env::current_exe().map_err(|e| trouble("find the program for", &e))?;
        let mut command = Command::new(program);
        command.arg("lab-part").arg(dir).arg(part.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // Declared before the process, so that it is dropped after it: only an empty group can be removed.
        let _confined;
        let mut child = Ended(command.spawn().map_err(|e| trouble("start", &e))?);
        // The process waits for its spec, so it has done nothing yet.
        _confined = spec.process_memory.map(|bytes| Confined::new(child.0.id(), bytes)).transpose()?;
        let text = serde_json::to_string(spec).map_err(|e| trouble("send the spec to", &e))?;
        let mut stdin = child.0.stdin.take().ok_or_else(|| trouble("write to", &"no standard input"))?;
        stdin.write_all(text.as_bytes()).map_err(|e| trouble("write to", &e))?;
        drop(stdin);
        let stdout = child.0.stdout.take().ok_or_else(|| trouble("read from", &"no standard output"))?;
        let mut done = None;
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|e| trouble("read from", &e))?;
            match serde_json::from_str(&line).map_err(|e| trouble("understand", &e))? {
                Message::Seen(far) => seen(far),
                Message::Done(part) => done = Some(part),
                Message::Failed(why) => return Err(Failure::Store(why)),
            }
        }
        let status = child.0.wait().map_err(|e| trouble("wait for", &e))?;
        let out_of_memory = if spec.process_memory.is_some() { " (did it exceed --memory?)" } else { "" };
        done.ok_or_else(|| Failure::Store(format!("its process ended with {status}{out_of_memory}")))
    }
}

/// A process that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has already ended unless something went wrong on our side.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
