//! Standard output: figures for people or as JSON, with colours where supported.
//!
//! Nothing uses `println!`, which panics when the reader of a pipe has closed it.

use std::{
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
    path::Path,
};

pub use bifold_lab::report::bytes;
use serde::{Serialize, Serializer};

use crate::failure::{Failure, Result};

/// Standard output, buffered.
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    /// Whether colours may be used.
    color: bool,
}

/// The role of a piece of text, shown as a colour.
#[derive(Clone, Copy)]
pub enum Tone {
    /// A heading.
    Strong,
    /// Success.
    Good,
    /// Failure.
    Bad,
    /// Secondary.
    Dim,
}

impl Output {
    /// Opens it.
    pub fn new() -> Self {
        let stdout = io::stdout();
        let color = stdout.is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { out: BufWriter::with_capacity(64 << 10, stdout.lock()), color }
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|e| Failure::output(&e))
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl AsRef<str>) -> Result<()> {
        self.bytes(line.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a line and flushes it.
    pub fn line_now(&mut self, line: impl AsRef<str>) -> Result<()> {
        self.line(line)?;
        self.flush()
    }

    /// Writes one JSON object on its own line, and flushes it.
    pub fn json(&mut self, figures: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(figures).map_err(|e| Failure::trouble(format!("cannot write JSON: {e}")))?;
        self.line_now(text)
    }

    /// `text` in the colour of `tone`, where colours are supported.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.color {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Strong => "1",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Flushes everything. Every command must end with it: an error on drop would be lost.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|e| Failure::output(&e))
    }
}

/// A path in JSON, for `serialize_with`: what is not UTF-8 is replaced. A path by itself would be an error then, after
/// the work is done.
pub fn path<S: Serializer>(path: &Path, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A count for people: `1 234 567`.
pub fn count(n: u64) -> String {
    if n < 100 { n.to_string() } else { bifold_lab::report::grouped(n as f64) }
}

/// A count with its noun: `1 entry`, `1 234 entries`.
pub fn counted(n: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { several })
}

/// A bar of `width` cells, filled by the fraction `part` of `whole`; never empty unless `part` is 0.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let cells = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * width as f64 };
    let filled = (cells.round() as usize).clamp(usize::from(part > 0), width);
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_agree_with_their_counts() {
        for (n, text) in [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (1234, "1 234 entries")] {
            assert_eq!(counted(n, "entry", "entries"), text);
        }
    }

    #[test]
    fn a_bar_shows_the_smallest_part_and_never_overflows() {
        assert_eq!(bar(0, 10, 4), "░░░░");
        assert_eq!(bar(1, 1000, 4), "█░░░");
        assert_eq!(bar(5, 10, 4), "██░░");
        assert_eq!(bar(20, 10, 4), "████");
        assert_eq!(bar(0, 0, 2), "░░");
    }
}
