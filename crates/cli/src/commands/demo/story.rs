//! The demo's output: one line per step, then commands to try. Or one JSON object.

use std::{path::Path, time::Instant};

use super::{Figures, program, quoted, quoted_path, source::Source};
use crate::{
    failure::Result,
    formats::escape::escaped,
    global::Global,
    output::{Output, Tone, bytes, count},
};

/// Prints the steps.
pub struct Story<'a> {
    out: &'a mut Output,
    json: bool,
}

impl<'a> Story<'a> {
    pub fn new(out: &'a mut Output, global: &Global) -> Self {
        Self { out, json: global.json }
    }

    /// The heading.
    pub fn begin(&mut self, source: &Source, db: &Path) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let title = self.out.paint(Tone::Strong, "Bifold, an embedded key-value store");
        self.out.line(format!("{title}\n"))?;
        self.out.line(format!("  data      {}", source.describe()))?;
        self.out.line_now(format!("  database  {}\n", db.display()))
    }

    /// A step that ran since `begin` and took in `entries` (0: no rate).
    pub fn step(&mut self, what: &str, begin: Instant, entries: u64) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let seconds = begin.elapsed().as_secs_f64();
        let rate = if entries == 0 { String::new() } else { format!("{}/s", count((entries as f64 / seconds) as u64)) };
        let (mark, rate) = (self.out.paint(Tone::Good, "✓"), self.out.paint(Tone::Dim, &format!("{rate:>11}")));
        self.out.line_now(format!("{mark} {seconds:>6.2} s {rate}  {what}"))
    }

    /// The summary, and commands to try.
    pub fn end<'k>(
        &mut self,
        figures: &Figures,
        prefix: &[u8],
        mut keys: impl Iterator<Item = &'k Vec<u8>>,
    ) -> Result<()> {
        if self.json {
            return self.out.json(figures);
        }
        self.out.line(format!(
            "\nAll is well, after {:.1} s. Before the kill, {} of keys and values became {} of logs and tables: {:.2} \
            times as much.\n",
            figures.seconds,
            bytes(figures.user_bytes_written),
            bytes(figures.bytes_written),
            figures.write_amp,
        ))?;
        self.out.line(self.out.paint(Tone::Strong, "What to type next"))?;
        let (program, db) = (program(), quoted_path(&figures.db));
        // A key under the scanned prefix, so that the commands match.
        let key = keys.find(|key| key.starts_with(prefix)).map(|key| escaped(key)).unwrap_or_default();
        let (prefix, key) = (quoted(&escaped(prefix)), quoted(&key));
        for (command, what) in [
            (format!("scan {db} --prefix {prefix} --keys-only --limit 10"), "keys in order"),
            (format!("get {db} {key} --raw"), "one value"),
            (format!("put {db} hello world"), "a value of your own"),
            (format!("stats {db}"), "where the bytes are"),
            (format!("export {db} --format jsonl | head -3"), "everything, as JSON Lines"),
            (format!("verify {db}"), "check every byte"),
            ("bench --num 200000".to_owned(), "how fast it is here"),
        ] {
            let what = self.out.paint(Tone::Dim, &format!("# {what}"));
            self.out.line(format!("  {program} {command}  {what}"))?;
        }
        self.out.line_now(format!("\nThe database stays in {}; remove it with rm -r.", figures.db.display()))
    }
}
