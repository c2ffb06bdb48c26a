//! The writer that gets killed: it commits without end, and acknowledges each commit.
//!
//! The parent reads the acknowledgements from a pipe. Every acknowledged commit must be found after the kill.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bifold::Access;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    failure::{Failure, Result},
    global::Global,
    open,
    output::Output,
};

/// The prefix of the writer's keys.
const PREFIX: &str = "killed-writer/";

/// The writer is killed after this many acknowledgements or this time, whichever comes first.
const ACKNOWLEDGED_MAX: u64 = 20_000;
const TIME_MAX: Duration = Duration::from_secs(2);

/// `bifold demo-writer`: writes until it is killed or nobody reads its output.
pub fn run(db: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let (_db, keyspace) = open::existing_keyspace(db, global, Access::ReadWrite)?;
    for number in 1.. {
        keyspace.put(format!("{PREFIX}{number:010}"), value(number))?;
        out.line_now(number.to_string())?;
    }
    Ok(())
}

/// The number in a key of the writer; `None` for other keys.
pub fn number(key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// The value for a number: 100 to 355 bytes derived from it.
pub fn value(number: u64) -> Vec<u8> {
    let word = xxh3_64_with_seed(b"demo", number).to_le_bytes();
    let len = 100 + usize::from(word[0]);
    word.iter().copied().cycle().take(len).collect()
}

/// Starts a writer, kills it midway, and returns the last number that it acknowledged.
pub fn run_and_kill(db: &Path, global: &Global) -> Result<u64> {
    let trouble = |what: &str, e: &std::io::Error| Failure::trouble(format!("cannot {what} this program: {e}"));
    let program = std::env::current_exe().map_err(|e| trouble("find", &e))?;
    let mut child = Command::new(program)
        .arg("demo-writer")
        .arg(db)
        .args(["--keyspace", &global.keyspace])
        .args(global.set.iter().flat_map(|set| ["--set", set]))
        .args(global.options.iter().flat_map(|file| [Path::new("--options"), file]))
        .args(
            global.durability.iter().flat_map(|level| ["--durability".to_owned(), format!("{level:?}").to_lowercase()]),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| trouble("run", &e))?;
    let acknowledged = listen_and_kill(&mut child);
    child.wait().map_err(|e| trouble("wait for", &e))?;
    if acknowledged == 0 {
        let mut why = String::new();
        child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut why));
        return Err(Failure::trouble(format!("the writer ended by itself: {}", why.trim())));
    }
    Ok(acknowledged)
}

fn listen_and_kill(child: &mut Child) -> u64 {
    let Some(pipe) = child.stdout.take() else { return 0 };
    let (mut last, mut begin, mut alive) = (0, None, true);
    // What is left in the pipe after the kill was acknowledged, too: read it to its end.
    for line in BufReader::new(pipe).lines().map_while(std::result::Result::ok) {
        last = line.parse().unwrap_or(last);
        let begin = *begin.get_or_insert_with(Instant::now);
        if alive && (last >= ACKNOWLEDGED_MAX || begin.elapsed() >= TIME_MAX) {
            alive = child.kill().is_err();
        }
    }
    last
}
