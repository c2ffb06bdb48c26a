//! Repaired handles on their way into the index.

use std::{cell::Cell, collections::BTreeSet};

use bifold_format::frame::HEADER_BYTES;

use super::*;
use crate::placement::RewrittenTables;

#[test]
fn a_rewrite_reads_only_the_header_of_a_value_whose_pointer_it_repairs() {
    let mut stage = Stage::new();
    let version = stage.put(b"a", 1);
    stage.end_file();
    stage.collect(vec![version.2.file]);
    let place = stage.check(version).unwrap();
    let bytes_read = || {
        let totals = stage.placement.shared.files.context().dir.totals();
        totals.read_bytes[IoSource::Compaction as usize]
    };
    let before = bytes_read();
    assert_eq!(stage.kept(version), placement::Kept::Pointer(place));
    let read = bytes_read() - before;
    assert_eq!(read, HEADER_BYTES as u64, "of a record of {} bytes", version.2.len);
}

/// Rewrites the tables with some versions, and has another one read at the end.
struct TakesOver<'a> {
    stage: &'a Stage,
    versions: &'a [Version],
    read_last: Version,
    repaired: Cell<usize>,
}

impl Scene for TakesOver<'_> {
    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64> {
        assert_eq!(tables, RewrittenTables::Everything);
        let is_repaired = |version: &&Version| matches!(self.stage.kept(**version), placement::Kept::Pointer(_));
        self.repaired.set(self.versions.iter().filter(is_repaired).count());
        self.stage.read(self.read_last);
        Ok(0)
    }
}

#[test]
fn readers_ask_for_a_rewrite_that_takes_their_handles_over_and_keep_those_found_meanwhile() {
    let (mut stage, versions) = filled();
    let files: BTreeSet<FileId> = versions.iter().map(|version| version.2.file).collect();
    stage.collect(files.into_iter().collect());
    // 375 handles are worth as much.
    let pressure = SpacePressure { index_bytes: 60_000, ..pressure(0.0) };
    assert_eq!(stage.placement.choose(&pressure), None);
    let mut read = 0;
    while !stage.placement.readers_ask() {
        stage.read(versions[read]);
        read += 1;
    }
    assert!((370..=380).contains(&read), "{read} reads");
    assert_eq!(stage.placement.choose(&pressure), Some(Choice::TakeOver));
    let read_last = versions[999];
    let gc = TakesOver { stage: &stage, versions: &versions, read_last, repaired: Cell::new(0) };
    assert!(Job::new(&stage.placement.shared, Choice::TakeOver).run(&gc).is_ok());
    // Of so many one or another may have been displaced.
    let repaired = gc.repaired.get();
    assert!((read - 5..=read).contains(&repaired), "{repaired} of {read}");
    assert!(!stage.placement.readers_ask(), "it has been done");
    let is_known = |version: Version| stage.placement.shared.handles.get(version.2, 1).is_some();
    assert!(is_known(read_last) && !is_known(versions[0]));
}
