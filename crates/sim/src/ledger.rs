//! The ledger of soaks: one line of JSON per run (wrapped here). It is appended to `reliability/ledger.jsonl` and never
//! changed.
//!
//! ```json
//! {"date":"2030-01-31","test":"power","seeds":[100,164],"counts":{"power-loss images":51234},
//!  "failures":0,"seconds":612}
//! ```
//!
//! `bifold-sim table` prints its sums, which make the table in `docs/reliability.md`.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    ops::Range,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::report::Report;

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The day it ended, UTC.
    pub date: String,
    /// Which test.
    pub test: String,
    /// The seeds that were run; the last one is exclusive.
    pub seeds: [u64; 2],
    /// What was done, and how often.
    pub counts: BTreeMap<String, u64>,
    /// How many failures there were.
    pub failures: usize,
    /// How long it took.
    pub seconds: u64,
}

impl Line {
    /// The line of a run that ended now.
    #[must_use]
    pub fn of(test: &str, seeds: Range<u64>, report: &Report, seconds: u64) -> Self {
        let counts = report.counts.iter().map(|(what, times)| ((*what).to_owned(), *times)).collect();
        Self {
            date: today(),
            test: test.to_owned(),
            seeds: [seeds.start, seeds.end],
            counts,
            failures: report.failures.len(),
            seconds,
        }
    }

    /// Appends it to the ledger.
    ///
    /// # Errors
    /// The system's.
    pub fn append_to(&self, ledger: &Path) -> io::Result<()> {
        writeln!(OpenOptions::new().create(true).append(true).open(ledger)?, "{}", serde_json::to_string(self)?)
    }
}

/// Sums of one test: counts, failures, seconds.
type Sum = (BTreeMap<String, u64>, usize, u64);

/// Totals over tests, and the counts that make them up. An empty count stands for seconds.
const TOTALS: &[(&str, &[(&str, &str)])] = &[
    (
        "power-loss images",
        &[
            ("power", "power-loss images"),
            ("nested", "power-loss images"),
            ("exhaustive", "power-loss images"),
            ("splits", "power-loss images"),
        ],
    ),
    (
        "crashes in recovery",
        &[("nested", "crashes in recovery"), ("nested", "crashes in recovery from a crash in recovery")],
    ),
    ("failing calls, simulated", &[("errno", "faults injected")]),
    (
        "failing system calls, from outside",
        &[
            ("syscalls", "system calls of writers made to fail"),
            ("syscalls", "system calls of recoveries made to fail"),
            ("program", "system calls of the program made to fail"),
        ],
    ),
    (
        "processes killed",
        &[
            ("kill", "kills"),
            ("syscalls", "processes killed at a system call"),
            ("syscalls", "recoveries killed at a system call"),
            ("syscalls", "recoveries from those killed too"),
            ("beside", "readers killed"),
            ("beside", "writers killed"),
        ],
    ),
    ("bit flips and truncations", &[("bitflip", "bit flips"), ("bitflip", "truncations")]),
    (
        "damaged databases under a memory limit",
        &[
            ("damage", "closed databases damaged"),
            ("damage", "killed databases damaged"),
            ("damage", "killed databases with an append region damaged"),
        ],
    ),
    (
        "damaged databases seen by the program under limits on memory and time",
        &[
            ("damaged_program", "closed databases damaged"),
            ("damaged_program", "killed databases damaged"),
            ("damaged_program", "killed databases with an append region damaged"),
        ],
    ),
    ("metamorphic operations", &[("metamorphic", "operations")]),
    ("seconds of real threads", &[("concurrent", ""), ("lost_sync", "")]),
];

/// Names of counts that the table shows in other words than the ledger, whose lines never change.
const SHOWN_AS: &[(&str, &str)] = &[
    ("collections", "GC runs"),
    ("commands that ended well all the same", "commands that succeeded despite a failing call"),
    ("commands that said why not", "commands that failed and reported why"),
    ("commits acknowledged before", "commits acknowledged before the failure"),
    ("commits behind damage lost without a word", "commits behind damage lost without a report"),
    ("damage that verify tells", "damage reported by `verify`"),
    ("damaged databases that answer", "damaged databases that answered"),
    ("deletes there", "deletes on full disks"),
    ("disks that others have filled", "disks filled by others"),
    ("images passed over when time was up", "images skipped when time was up"),
    ("killed databases with an append region damaged", "killed databases with an append region, damaged"),
    ("looks at damaged databases", "inspections of damaged databases"),
    ("of them thoroughly judged", "images checked in full"),
    ("of them with a whole copy", "whole copies despite a failing call"),
    ("puts before they were full", "puts before the disks were full"),
    ("raises", "increments of counters"),
    ("recoveries from those killed too", "recoveries of killed recoveries, killed as well"),
    ("recoveries that were killed with a file under its other name", "recoveries killed while a file was renamed"),
    ("runs with flushes at once", "runs with concurrent flushes"),
];

/// The words in which the table shows a count of the ledger.
fn shown_as(count: &str) -> &str {
    SHOWN_AS.iter().find(|(stored, _)| *stored == count).map_or(count, |(_, shown)| shown)
}

/// Two tables in Markdown: for each test the sums over all lines of a ledger, and totals over tests.
///
/// # Errors
/// The system's, or a line that cannot be parsed.
pub fn table(ledger: &Path) -> io::Result<String> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for text in fs::read_to_string(ledger)?.lines() {
        let line: Line = serde_json::from_str(text)?;
        let sum = sums.entry(line.test).or_default();
        for (what, times) in line.counts {
            *sum.0.entry(what).or_default() += times;
        }
        sum.1 += line.failures;
        sum.2 += line.seconds;
    }
    let mut totals = "| in total | |\n|---|---|\n".to_owned();
    for (what, parts) in TOTALS {
        let part = |(test, count): &(&str, &str)| {
            let sum = sums.get(*test)?;
            if count.is_empty() { Some(sum.2) } else { sum.0.get(*count).copied() }
        };
        totals += &format!("| {what} | {} |\n", grouped(parts.iter().filter_map(part).sum()));
    }
    Ok(by_test(sums) + "\n" + &totals)
}

fn by_test(sums: BTreeMap<String, Sum>) -> String {
    let mut table = "| test | done | failures | hours |\n|---|---|---|---|\n".to_owned();
    for (test, (counts, failures, seconds)) in sums {
        let counts: Vec<String> =
            counts.iter().map(|(what, times)| format!("{} {}", grouped(*times), shown_as(what))).collect();
        let hours = seconds as f64 / 3600.0;
        table += &format!("| `{test}` | {} | {failures} | {hours:.2} |\n", counts.join(", "));
    }
    table
}

/// A number with its digits in groups of three: `1 234 567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(" ")
}

fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of(seconds / 86_400)
}

/// The date of a day counted from 1970-01-01, by walking years and months.
fn date_of(mut day: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(date_of(0), "1970-01-01");
        assert_eq!(date_of(11_016), "2000-02-29");
        assert_eq!(date_of(19_723), "2024-01-01");
        assert_eq!(date_of(20_088), "2024-12-31");
    }

    #[test]
    fn a_line_is_json_and_a_ledger_makes_a_table() {
        let mut report = Report::default();
        report.count("images", 1_234);
        let line = Line { date: "2030-01-31".into(), ..Line::of("power", 1..5, &report, 1800) };
        let text = concat!(
            r#"{"date":"2030-01-31","test":"power","seeds":[1,5],"#,
            r#""counts":{"images":1234},"failures":0,"seconds":1800}"#
        );
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
        let ledger = std::env::temp_dir().join(format!("bifold-ledger-{}", std::process::id()));
        line.append_to(&ledger).unwrap();
        line.append_to(&ledger).unwrap();
        let counts = BTreeMap::from([("power-loss images".to_owned(), 700)]);
        Line { counts, seconds: 0, ..line.clone() }.append_to(&ledger).unwrap();
        let text = table(&ledger).unwrap();
        assert!(text.contains("| `power` | 2 468 images, 700 power-loss images | 0 | 1.00 |\n"), "{text}");
        assert!(text.contains("| power-loss images | 700 |\n| crashes in recovery | 0 |\n"), "{text}");
        fs::remove_file(ledger).unwrap();
    }
}
