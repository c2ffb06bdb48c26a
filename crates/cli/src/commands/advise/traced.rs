//! A workload from a trace of operations and their keys.
//!
//! A key that first occurs in a `put` is inserted, and later updated. Skew is the θ for which as many calls would
//! touch as many distinct keys.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use bifold_vat::advise::{Operations, ValueSize, Workload, skew_of};

use crate::failure::{Failure, Result};

/// Lengths of values are classed by halves of their binary order of magnitude: 62 classes up to a GiB, the longest
/// value.
const STEPS: u64 = 2;

/// What the trace has seen of a key.
#[derive(Default)]
struct Seen {
    exists: bool,
    updated: u64,
    read: u64,
}

/// A trace, summed up.
#[derive(Default)]
struct Trace {
    keys: HashMap<Vec<u8>, Seen>,
    key_bytes: u64,
    counts: Operations,
    /// Writes and their bytes, by class of length.
    lengths: BTreeMap<u64, (u64, u64)>,
}

/// Reads a trace.
///
/// # Errors
/// Errors of the system; the first line without an operation, as `FILE:LINE`; a trace without operations.
pub fn read(path: &Path) -> Result<Workload> {
    let file = File::open(path).map_err(|e| Failure::file("open", path, &e))?;
    let mut trace = Trace::default();
    for (number, line) in (1_u64..).zip(BufReader::with_capacity(256 << 10, file).split(b'\n')) {
        let line = line.map_err(|e| Failure::file("read", path, &e))?;
        trace.take(&line).map_err(|why| Failure::trouble(format!("{}:{number}: {why}", path.display())))?;
    }
    trace.workload().map_err(|why| Failure::trouble(format!("{}: {why}", path.display())))
}

impl Trace {
    fn take(&mut self, line: &[u8]) -> std::result::Result<(), String> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(operation) = words.next().filter(|word| !word.starts_with(b"#")) else { return Ok(()) };
        let usage = "write `put KEY BYTES`, `get KEY`, `delete KEY` or `scan KEY ENTRIES`";
        let key = words.next().ok_or_else(|| format!("no key: {usage}"))?;
        let number = |word: Option<&[u8]>| {
            let text = std::str::from_utf8(word.unwrap_or_default()).ok();
            text.and_then(|text| text.parse::<u64>().ok()).filter(|&n| n <= 1 << 40)
        };
        match operation {
            b"put" => {
                let bytes = number(words.next()).ok_or_else(|| format!("no length of the value: {usage}"))?;
                self.put(key, bytes);
            }
            b"get" => {
                self.counts.read += 1.0;
                self.key(key).read += 1;
            }
            b"delete" => {
                self.counts.delete += 1.0;
                let seen = self.key(key);
                (seen.exists, seen.updated) = (false, seen.updated + 1);
            }
            b"scan" => {
                let entries = number(words.next()).ok_or_else(|| format!("no number of entries: {usage}"))?;
                self.counts.scan += 1.0;
                self.counts.scan_entries += entries as f64;
            }
            other => return Err(format!("unknown operation `{}`: {usage}", String::from_utf8_lossy(other))),
        }
        match words.next() {
            Some(more) => Err(format!("one word too many, `{}`: {usage}", String::from_utf8_lossy(more))),
            None => Ok(()),
        }
    }

    fn put(&mut self, key: &[u8], bytes: u64) {
        let is_new = self.keys.get(key).is_none_or(|seen| !seen.exists);
        let seen = self.key(key);
        seen.exists = true;
        if is_new {
            self.counts.insert += 1.0;
        } else {
            seen.updated += 1;
            self.counts.update += 1.0;
        }
        let (writes, sum) = self.lengths.entry(class(bytes)).or_default();
        (*writes, *sum) = (*writes + 1, *sum + bytes);
    }

    /// The record of a key. A key whose first operation is not a put existed before.
    fn key(&mut self, key: &[u8]) -> &mut Seen {
        let key_bytes = &mut self.key_bytes;
        self.keys.entry(key.to_vec()).or_insert_with(|| {
            *key_bytes += key.len() as u64;
            Seen { exists: true, ..Seen::default() }
        })
    }

    fn workload(mut self) -> std::result::Result<Workload, String> {
        if self.counts == Operations::default() {
            return Err("it has no operation: an empty trace shows no workload".to_owned());
        }
        if self.lengths.is_empty() {
            return Err(
                "it has no `put`, so the sizes of values are unknown: describe the workload in a .toml file, or give a \
                 database with --db as well"
                    .to_owned(),
            );
        }
        if self.counts.scan > 0.0 {
            self.counts.scan_entries = (self.counts.scan_entries / self.counts.scan).max(1.0);
        }
        let keys = self.keys.len() as f64;
        let skew = |calls: fn(&Seen) -> u64| {
            let called = self.keys.values().filter(|seen| calls(seen) > 0).count();
            skew_of(keys, self.keys.values().map(calls).sum::<u64>() as f64, called as f64)
        };
        let value =
            |&(writes, bytes): &(u64, u64)| ValueSize { bytes: bytes as f64 / writes as f64, share: writes as f64 };
        Ok(Workload {
            keys,
            key_bytes: (self.key_bytes as f64 / keys).max(1.0),
            values: self.lengths.values().map(value).collect(),
            operations: self.counts,
            update_skew: skew(|seen| seen.updated),
            read_skew: skew(|seen| seen.read),
        })
    }
}

/// The class of a length. Lengths of one class differ by less than half.
fn class(bytes: u64) -> u64 {
    let order = u64::from((bytes + 1).ilog2());
    order * STEPS + (((bytes + 1) >> order.saturating_sub(1)) & 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> std::result::Result<Workload, String> {
        let mut trace = Trace::default();
        text.lines().try_for_each(|line| trace.take(line.as_bytes()))?;
        trace.workload()
    }

    #[test]
    fn first_puts_insert_and_later_ones_update() {
        let workload =
            of("# two keys\nput a 100\nput bcd 300\n\nput a 100\nget\tbcd\nscan a 20\ndelete a\nput a 1\n").unwrap();
        let counts = workload.operations;
        assert_eq!((counts.insert, counts.update, counts.delete), (3.0, 1.0, 1.0));
        assert_eq!((counts.read, counts.scan, counts.scan_entries), (1.0, 1.0, 20.0));
        assert_eq!((workload.keys, workload.key_bytes), (2.0, 2.0));
        let sizes: Vec<_> = workload.values.iter().map(|v| (v.bytes, v.share)).collect();
        assert_eq!(sizes, [(1.0, 1.0), (100.0, 2.0), (300.0, 1.0)]);
    }

    #[test]
    fn the_skew_of_a_trace_is_recovered() {
        let mut even = String::new();
        (0..1000).for_each(|key| even += &format!("put {key} 10\n"));
        (0..3000_u64).for_each(|n| even += &format!("put {} 10\n", n * 0x9E37_79B9 % 4_294_967_291 % 1000));
        assert!(of(&even).unwrap().update_skew < 0.5);
        let mut one = String::new();
        (0..1000).for_each(|key| one += &format!("put {key} 10\n"));
        (0..3000).for_each(|_| one += "put 7 10\n");
        assert!(of(&one).unwrap().update_skew > 0.99);
    }

    #[test]
    fn lines_without_an_operation_are_refused_with_the_reason() {
        for (line, says) in [
            ("put a", "no length"),
            ("put a -1", "no length"),
            ("put", "no key"),
            ("get a b", "one word too many"),
            ("scan a many", "no number of entries"),
            ("fetch a", "unknown operation `fetch`"),
            ("", "empty trace"),
            ("get a", "no `put`"),
        ] {
            let error = of(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn lengths_of_a_class_are_alike() {
        let mut last = 0;
        for bytes in 0..100_000_u64 {
            assert!(class(bytes) >= last);
            last = class(bytes);
        }
        assert!(last < 64, "{last}");
        assert_ne!(class(100), class(300));
    }
}
