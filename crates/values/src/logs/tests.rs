//! Logs that end too early, in each way: whether that is taken for a crash or for damage.

use std::sync::Arc;

use bifold_contract::Pointer;
use bifold_format::log::{Before, LogEncoder};
use bifold_io::memory::MemoryFs;

use super::*;
use crate::{parts::value_files::scratch::value_files, placements::inline::Inline, store::ValueStore};

/// No value file has this number.
const NO_FILE: FileId = 9;

/// Logs whose pointers lead into one store.
struct OfOneStore<'a>(&'a ValueStore);

impl<'a> LogOwner<'a> for OfOneStore<'a> {
    fn lead(&mut self, operation: &Operation<'_>, seqno: SeqNo, at: &RecordAt<'_>) -> Result<Option<Lead<'a>>> {
        Lead::of(self.0, None, (operation, seqno), at)
    }
}

/// What is appended to a log.
enum Append {
    Put(SeqNo),
    /// A put whose last byte is missing.
    Torn(SeqNo),
    /// A put whose value is not there.
    LeadsNowhere(SeqNo),
    /// The number of the next commit, and up to which one everything is durable.
    Marker(SeqNo, SeqNo),
}

use self::Append::{LeadsNowhere, Marker, Put, Torn};

/// A directory for logs, and the values that they lead to.
struct Bed {
    dir: Dir,
    values: ValueStore,
}

impl Bed {
    fn new() -> Self {
        let files = value_files(&MemoryFs::new(), 8);
        let dir = files.context().dir.clone();
        Self { dir, values: ValueStore::new(Arc::new(files), Inline) }
    }

    /// Writes a log. Answers where its records end.
    fn write(&self, id: FileId, appends: &[Append]) -> Vec<u64> {
        let file = self.dir.create(&names::log(id), IoSource::Log).unwrap();
        file.append(&[&log::header(id)]).unwrap();
        let append = |append: &Append| {
            let (Put(first) | Torn(first) | LeadsNowhere(first) | Marker(first, _)) = *append;
            let mut bytes = Vec::new();
            let mut encoder = LogEncoder::begin(&mut bytes, id, file.len(), first);
            match *append {
                Put(_) | Torn(_) => encoder.put(1, b"key", b"value"),
                LeadsNowhere(_) => {
                    let mut address = Vec::new();
                    pointer::encode(Pointer { file: NO_FILE, epoch: 0, offset: 64, len: 64 }, &mut address);
                    encoder.pointer(1, b"key", &address);
                }
                Marker(_, last) => encoder.durable(last),
            }
            encoder.finish(Before::Unsynced);
            let kept = bytes.len() - usize::from(matches!(append, Torn(_)));
            file.append(&[&bytes[..kept]]).unwrap();
            file.len()
        };
        appends.iter().map(append).collect()
    }

    /// Walks these logs from commit 1 on. The index has commits up to `in_index`.
    fn find(&self, logs: &[FileId], in_index: SeqNo) -> Result<FoundLogs> {
        let spans: Vec<LogSpan> = logs.iter().map(|&id| LogSpan::whole(id)).collect();
        walk_logs(&self.dir, (&spans, 1), NO_FILE, &mut OfOneStore(&self.values))?.finish(in_index)
    }

    fn assert_damaged(&self, logs: &[FileId], in_index: SeqNo, expected: &str) {
        let error = self.find(logs, in_index).unwrap_err();
        assert!(error.is_corruption() && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_torn_end_ends_all_logs() {
    let bed = Bed::new();
    let ends = bed.write(1, &[Put(1), Put(2), Torn(3)]);
    bed.write(2, &[Put(4)]);
    let found = bed.find(&[1, 2], 0).unwrap();
    assert_eq!((found.next, found.durable, found.logs.len()), (3, 0, 1));
    let log = found.logs[0];
    assert_eq!((log.first, log.bytes, log.file_bytes, log.durable_bytes), (1, ends[1], ends[2], 0));
    let mut seen = Vec::new();
    each_record(&bed.dir, &log, |record| {
        seen.push(record.first_seqno);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [1, 2]);
}

#[test]
fn what_was_durable_may_not_be_torn() {
    let torn = "expected commit 3, which was synced, found a torn one";
    for (durable, is_damage) in [(2, false), (3, true)] {
        let bed = Bed::new();
        let ends = bed.write(1, &[Put(1), Put(2), Torn(3)]);
        // By the index, or by a marker of a later log.
        if is_damage {
            bed.assert_damaged(&[1], durable, torn);
        } else {
            assert_eq!(bed.find(&[1], durable).unwrap().next, 3);
        }
        bed.write(2, &[Marker(4, durable)]);
        if is_damage {
            bed.assert_damaged(&[1, 2], 0, torn);
        } else {
            let found = bed.find(&[1, 2], 0).unwrap();
            assert_eq!((found.durable, found.logs[0].durable_bytes), (durable, ends[1]));
        }
    }
}

#[test]
fn a_gap_between_logs_ends_them_and_one_within_a_log_is_damage() {
    let bed = Bed::new();
    bed.write(1, &[Put(1)]);
    bed.write(2, &[Put(3)]);
    bed.write(3, &[Put(1), Put(3)]);
    let missing = "found commit 3: records or a log before it are missing";
    assert_eq!(bed.find(&[1, 2], 0).unwrap().next, 2);
    bed.assert_damaged(&[1, 2], 2, missing);
    bed.assert_damaged(&[3], 0, missing);
}

#[test]
fn a_commit_whose_value_is_missing_ends_the_logs_unless_it_was_durable() {
    let bed = Bed::new();
    bed.write(1, &[Put(1), LeadsNowhere(2), Put(3)]);
    let found = bed.find(&[1], 0).unwrap();
    assert_eq!((found.next, found.last_file), (2, NO_FILE));
    bed.write(2, &[Marker(4, 2)]);
    bed.assert_damaged(&[1, 2], 0, "expected the value of commit 2, found no whole record");
}

/// Checksums say nothing about who wrote it.
#[test]
fn a_commit_beyond_all_numbers_is_damage() {
    let bed = Bed::new();
    bed.write(1, &[Put(MAX_SEQNO - 1)]);
    bed.write(2, &[Put(MAX_SEQNO)]);
    let walk = |id, next| walk_logs(&bed.dir, (&[LogSpan::whole(id)], next), NO_FILE, &mut OfOneStore(&bed.values));
    assert_eq!(walk(1, MAX_SEQNO - 1).unwrap().finish(0).unwrap().next, MAX_SEQNO);
    let error = walk(2, MAX_SEQNO).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("expected numbers below"), "{error}");
}

#[test]
fn a_torn_header_makes_an_empty_log() {
    let bed = Bed::new();
    let file = bed.dir.create(&names::log(1), IoSource::Log).unwrap();
    file.append(&[&log::header(1)[..FILE_HEADER_BYTES - 1]]).unwrap();
    let found = bed.find(&[1], 0).unwrap();
    assert_eq!((found.next, found.logs.len()), (1, 0));
    bed.assert_damaged(&[1], 1, "damaged log header at offset 0: expected commit 1, which was synced");
}

#[test]
fn logs_reach_what_value_files_need_or_are_damaged() {
    let bed = Bed::new();
    bed.write(1, &[Put(1), Put(2), Marker(3, 2)]);
    let found = bed.find(&[1], 0).unwrap();
    found.must_reach(2, &bed.dir, 1).unwrap();
    let error = found.must_reach(3, &bed.dir, 1).unwrap_err().to_string();
    assert!(error.contains("expected commits up to 3, which were synced, found commits up to 2"), "{error}");
}
