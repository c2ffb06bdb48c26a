//! Edits as text: `1.30: 3[a-e]` is table 3 from a to e in run 30 of level 1.

use std::sync::Arc;

use bifold_contract::{
    Entry, Error, IoSource, LevelEdit, RangeTombstone, SeqNo, TableMeta,
    edit::{TableAdded, TableRemoved},
};
use proptest::prelude::*;

use super::*;
use crate::{
    cursor::Cursor,
    table::{
        TableOptions, TableWriter,
        tests::samples::{Disk, OwnedEntry, options, sample},
    },
};

/// A table with these two keys. With `)` instead of `]` the upper key is the end of a range tombstone.
fn table(disk: &Disk, id: u64, range: &str) -> Arc<TableMeta> {
    let (low, high) = range[1..range.len() - 1].split_once('-').unwrap();
    let mut writer = TableWriter::create(&disk.dir, id, IoSource::Flush, &options()).unwrap();
    writer.add(&Entry::inline(low.as_bytes(), id, b"")).unwrap();
    if range.ends_with(')') {
        let end = (!high.is_empty()).then(|| high.as_bytes().into());
        writer.add_range_tombstone(&RangeTombstone { start: low.as_bytes().into(), end, seqno: id }).unwrap();
    } else if low < high {
        writer.add(&Entry::inline(high.as_bytes(), id, b"")).unwrap();
    }
    Arc::new(writer.finish().unwrap())
}

/// `-0.41.7` removes table 7 from run 41 of level 0, `+1.30.7[a-e]` adds it to run 30 of level 1.
fn edit(disk: &Disk, text: &str) -> LevelEdit {
    let mut edit = LevelEdit::default();
    for word in text.split_whitespace() {
        let mut parts = word[1..].splitn(3, '.');
        let (level, run) = (parts.next().unwrap().parse().unwrap(), parts.next().unwrap().parse().unwrap());
        let rest = parts.next().unwrap();
        if word.starts_with('-') {
            edit.removed.push(TableRemoved { level, run, table: rest.parse().unwrap() });
        } else {
            let (id, range) = rest.split_at(rest.find('[').unwrap());
            let id = id.parse().unwrap();
            let exists = disk.dir.len(&bifold_format::names::table(id)).unwrap().is_some();
            let table =
                if exists { Arc::new(Table::read_meta(&disk.dir, id).unwrap()) } else { table(disk, id, range) };
            edit.added.push(TableAdded { level, run, table });
        }
    }
    edit
}

fn apply(disk: &Disk, version: &Version, text: &str) -> Result<Version> {
    version.apply(&edit(disk, text), &mut |meta| Ok(disk.open(meta)))
}

fn text(version: &Version) -> String {
    let mut lines = Vec::new();
    for (depth, level) in version.shape().levels.iter().enumerate() {
        for run in &level.runs {
            let table =
                |t: &Arc<TableMeta>| format!("{}[{}-{}]", t.id, t.smallest.escape_ascii(), t.largest.escape_ascii());
            let tables: Vec<_> = run.tables.iter().map(table).collect();
            lines.push(format!("{depth}.{}: {}", run.id, tables.join(" ")));
        }
    }
    lines.join("\n")
}

#[test]
fn each_edit_produces_the_next_version() {
    let disk = Disk::new();
    let steps = [
        ("+0.5.1[a-m]", "0.5: 1[a-m]"),
        ("+0.6.2[c-z]", "0.6: 2[c-z]\n0.5: 1[a-m]"),
        ("+1.3.4[n-z] +1.3.3[a-e]", "0.6: 2[c-z]\n0.5: 1[a-m]\n1.3: 3[a-e] 4[n-z]"),
        ("-0.5.1 +1.3.7[f-m]", "0.6: 2[c-z]\n1.3: 3[a-e] 7[f-m] 4[n-z]"),
        ("-1.3.7 +2.2.7[f-m]", "0.6: 2[c-z]\n1.3: 3[a-e] 4[n-z]\n2.2: 7[f-m]"),
        ("-0.6.2 -1.3.3 -1.3.4 +2.2.8[a-e]", "2.2: 8[a-e] 7[f-m]"),
        ("-2.2.8 -2.2.7", ""),
        ("+255.9.9[a-b]", "255.9: 9[a-b]"),
        ("+0.10.10[c-d]", "0.10: 10[c-d]\n255.9: 9[a-b]"),
    ];
    let mut version = Version::default();
    for (change, expected) in steps {
        let next = apply(&disk, &version, change).unwrap();
        assert_eq!(text(&next), expected, "after {change}");
        version = next;
    }
}

#[test]
fn edits_that_do_not_fit_are_refused_and_change_nothing() {
    let disk = Disk::new();
    let version = apply(&disk, &Version::default(), "+0.5.1[a-m] +1.3.3[a-e] +1.3.4[g-k)").unwrap();
    let before = text(&version);
    for (change, reason) in [
        ("-0.5.9", "table 9 is removed from level 0, run 5, but is not there"),
        ("-1.5.1", "table 1 is removed from level 1, run 5, but is not there"),
        ("+0.6.1[a-m]", "table 1 is added but already exists"),
        ("+1.3.11[d-f]", "level 1, run 3: tables 3 and 11 overlap"),
        ("+1.3.12[e-f]", "level 1, run 3: tables 3 and 12 overlap"),
        ("+1.3.13[f-g]", "level 1, run 3: tables 13 and 4 overlap"),
        ("+1.3.14[f-)", "level 1, run 3: tables 14 and 4 overlap"),
        ("+1.3.15[h-i]", "level 1, run 3: tables 4 and 15 overlap"),
        ("+1.3.16[z-z] +1.3.16[z-z]", "table 16 is added but already exists"),
    ] {
        let error = apply(&disk, &version, change).unwrap_err();
        assert!(error.to_string().contains(reason), "{change}: {error}");
        assert_eq!(text(&version), before);
    }
    // A range tombstone's end is not in its range, so the next table may start there.
    let touching = apply(&disk, &version, "+1.3.17[k-z]").unwrap();
    let run = touching.levels()[1].iter().find(|run| run.id() == 3).unwrap();
    assert_eq!(run.find(b"k").unwrap().meta().id, 17);
}

#[test]
fn a_table_that_does_not_open_is_not_applied() {
    let disk = Disk::new();
    let failed = Version::default().apply(&edit(&disk, "+0.5.1[a-m]"), &mut |_| Err(Error::ReadOnly));
    assert!(matches!(failed, Err(Error::ReadOnly)));
}

#[test]
fn a_moved_table_and_untouched_runs_stay_open() {
    let disk = Disk::new();
    let before = apply(&disk, &Version::default(), "+0.5.1[a-m] +1.3.3[p-z]").unwrap();
    let moved = before.apply(&edit(&disk, "-0.5.1 +1.3.1[a-m]"), &mut |_| Err(Error::ReadOnly)).unwrap();
    for id in [1, 3] {
        let of = |version: &Version| version.tables().find(|t| t.meta().id == id).map(Arc::as_ptr);
        assert_eq!(of(&before), of(&moved));
    }
    let grown = apply(&disk, &moved, "+0.6.9[a-b]").unwrap();
    assert!(Arc::ptr_eq(&moved.levels()[1][0], &grown.levels()[1][0]));
}

#[test]
fn a_version_finds_the_tables_that_overlap_a_range() {
    let disk = Disk::new();
    let version = apply(&disk, &Version::default(), "+0.6.2[c-h) +0.5.1[x-) +1.3.3[a-e] +1.3.4[n-q]").unwrap();
    assert!(version.has_range_tombstones());
    let tables = |start: &str, end: &str| {
        let bounds = [start, end].map(|key| (!key.is_empty()).then_some(key.as_bytes()));
        let ids: Vec<_> = version.overlapping(bounds[0], bounds[1]).map(|t| t.meta().id).collect();
        let streams = version.streams_overlapping(bounds[0], bounds[1]).flat_map(|stream| stream.tables());
        let in_streams: BTreeSet<_> = streams.map(|t| t.meta().id).collect();
        assert!(ids.iter().all(|id| in_streams.contains(id)), "{start}..={end}: {in_streams:?}");
        ids
    };
    assert_eq!(tables("", ""), [2, 1, 3, 4]);
    assert_eq!(tables("f", "g"), [2]);
    assert_eq!(tables("i", "m"), []);
    assert_eq!(tables("i", "n"), [4]);
    assert_eq!(tables("zz", ""), [1]);
    assert_eq!(tables("", "a"), [3]);
    let plain = apply(&disk, &version, "-0.6.2 -0.5.1").unwrap();
    assert!(!plain.has_range_tombstones());
}

/// The streams of a version, as table ids.
fn streams(text: &str) -> Vec<Vec<u64>> {
    let disk = Disk::new();
    let version = apply(&disk, &Version::default(), text).unwrap();
    let ids = |stream: &Arc<TableRun>| stream.tables().iter().map(|table| table.meta().id).collect();
    version.streams_overlapping(None, None).map(ids).collect()
}

#[test]
fn streams_combine_disjoint_tables_of_several_runs() {
    assert_eq!(streams("+0.9.1[a-c] +0.8.2[d-f] +0.7.3[g-i] +0.6.4[j-)"), [vec![1, 2, 3, 4]]);
    assert_eq!(
        streams("+0.9.1[a-c] +0.9.2[m-o] +0.8.3[b-e] +0.7.4[f-l] +0.6.5[c-d]"),
        [vec![1, 4], vec![3], vec![5, 2]]
    );
    assert_eq!(streams("+0.9.1[a-z] +0.8.2[b-c] +0.7.3[c-d] +0.6.4[d-e]"), [vec![1], vec![2, 4], vec![3]]);
    assert_eq!(
        streams("+0.9.1[a-) +0.8.2[b-c] +0.7.3[d-e] +1.5.7[a-c] +1.5.8[d-e]"),
        [vec![1], vec![2, 3], vec![7, 8]]
    );
    assert_eq!(streams(""), Vec::<Vec<u64>>::new());
}

fn entries() -> impl Strategy<Value = Vec<OwnedEntry>> {
    prop::collection::btree_map(prop::collection::vec(0u8..4, 1..5), 1u64..4, 1..40).prop_map(|keys| {
        let entry = |(key, versions): (Vec<u8>, u64)| {
            (1..=versions).rev().map(move |seqno| OwnedEntry::of(Entry::inline(&key, seqno * 2, &[seqno as u8])))
        };
        keys.into_iter().flat_map(entry).collect()
    })
}

/// A run of these entries, cut into tables between keys as `cuts` says. Table ids are positions.
fn run_of(disk: &Disk, entries: &[OwnedEntry], cuts: &[bool]) -> Arc<TableRun> {
    let mut tables = Vec::new();
    let mut start = 0;
    for at in 1..=entries.len() {
        let between = at == entries.len() || entries[at].key != entries[at - 1].key;
        if between && (at == entries.len() || cuts[at % cuts.len()]) {
            let options = TableOptions { block_bytes: 40, restart_interval: 3, ..options() };
            let meta = disk.write(at as u64, &entries[start..at], &options);
            tables.push(disk.open(&meta));
            start = at;
        }
    }
    Arc::new(TableRun::new(1, tables).unwrap())
}

#[test]
fn cursors_over_some_tables_are_one_for_each_run_and_read_one_table_at_a_time() {
    let disk = Disk::new();
    let entries = sample(1000);
    let mut tables: Vec<_> =
        (1_u64..).zip(entries.chunks(100)).map(|(id, of)| disk.open(&disk.write(id, of, &options()))).collect();
    let lower = tables.split_off(4);
    let run = |id, tables| vec![Arc::new(TableRun::new(id, tables).unwrap())];
    let version = Version { levels: vec![run(2, tables), run(1, lower)], ..Version::default() };

    let chosen = HashSet::from([2, 3, 7, 8, 10]);
    let mut cursors = version.cursors(&chosen, ReadMode::Compaction);
    assert_eq!(cursors.len(), 2);
    let reads = || disk.dir.totals().reads[IoSource::Compaction as usize];
    for (cursor, tables) in cursors.iter_mut().zip([&[2_usize, 3][..], &[7, 8, 10]]) {
        let before = reads();
        cursor.first().unwrap();
        assert_eq!(reads() - before, 1, "a window of the first table");
        for entry in tables.iter().flat_map(|table| &entries[(table - 1) * 100..][..100]) {
            assert_eq!(cursor.entry().map(OwnedEntry::of).as_ref(), Some(entry));
            cursor.next().unwrap();
        }
        assert!(cursor.entry().is_none());
    }
    assert!(version.cursors(&HashSet::new(), ReadMode::Compaction).is_empty());
    let all: HashSet<_> = (1..=10).collect();
    assert!(version.cursors(&all, ReadMode::Compaction).len() == 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_run_is_read_as_one_stream(
        entries in entries(),
        cuts in prop::collection::vec(any::<bool>(), 1..7),
        probe in prop::collection::vec(0u8..4, 1..5),
        turns in prop::collection::vec(any::<bool>(), 0..40),
    ) {
        let disk = Disk::new();
        let run = run_of(&disk, &entries, &cuts);
        let here = |cursor: &RunCursor| {
            let entry = cursor.entry().map(OwnedEntry::of);
            assert_eq!(cursor.payload(), entry.as_ref().map_or(&[][..], |e| &e.payload));
            entry
        };
        let mut cursor = run.cursor(ReadMode::Scan);
        cursor.first().unwrap();
        for entry in &entries {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            prop_assert!(run.find(&entry.key).is_some());
            cursor.next().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
        cursor.last().unwrap();
        for entry in entries.iter().rev() {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            cursor.prev().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
        for seqno in [0, 2, 3, SeqNo::MAX] {
            let at = entries.iter().position(|e| (&e.key, seqno) >= (&probe, e.seqno)).unwrap_or(entries.len());
            cursor.seek(&probe, seqno).unwrap();
            prop_assert_eq!(here(&cursor), entries.get(at).cloned());
        }
        cursor.seek_before(&probe).unwrap();
        let mut at = entries.iter().rposition(|e| e.key < probe).unwrap_or(usize::MAX);
        for forward in turns {
            prop_assert_eq!(here(&cursor), entries.get(at).cloned());
            if at >= entries.len() {
                break;
            }
            if forward { cursor.next().unwrap() } else { cursor.prev().unwrap() }
            at = if forward { at + 1 } else { at.wrapping_sub(1) };
        }
    }
}

/// A run knows a part of a long prefix only, and heads are eight bytes: what they leave open is compared as a whole.
#[test]
fn tables_are_found_however_long_the_common_prefix_of_their_keys_is() {
    for length in [0, 1, 8, 31, 32, 33, 40, 100] {
        let disk = Disk::new();
        let key = |rest: &str| "p".repeat(length) + rest;
        let ranges = [("b", "d"), ("e", "e"), ("ea", "g"), ("m-long-after-eight", "m-long-after-nine"), ("x", "z")];
        let text = |(at, (low, high)): (usize, &(&str, &str))| {
            let (low, high) = (key(low).replace('-', "_"), key(high).replace('-', "_"));
            format!("+1.3.{}[{low}-{high}] ", at + 1)
        };
        let version =
            apply(&disk, &Version::default(), &ranges.iter().enumerate().map(text).collect::<String>()).unwrap();
        let run = &version.levels()[1][0];
        for rest in
            ["", "a", "b", "c", "d", "da", "e", "ea", "eb", "g", "m", "m_long_after_f", "m_long_after_z", "y", "{"]
        {
            for probe in [key(rest), "o".to_owned() + rest, "q".to_owned() + rest, "p".repeat(length / 2) + rest] {
                let holds = |table: &&Arc<Table>| {
                    let meta = table.meta();
                    (&*meta.smallest..=&*meta.largest).contains(&probe.as_bytes())
                };
                let expected = run.tables().iter().find(holds).map(|table| table.meta().id);
                let found = run.find(probe.as_bytes()).map(|table| table.meta().id);
                assert_eq!(found, expected, "{probe}, prefix of {length}");
            }
        }
    }
}

#[test]
fn a_run_cursor_repeats_its_error() {
    let disk = Disk::new();
    let version = apply(&disk, &Version::default(), "+1.3.3[a-e] +1.3.4[n-q]").unwrap();
    disk.fs.flip_bit(&disk.dir.file("000004.tbl"), 3);
    let mut cursor = version.levels()[1][0].cursor(ReadMode::Scan);
    cursor.first().unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.entry().unwrap().key, b"e");
    let error = cursor.next().unwrap_err();
    assert!(error.is_corruption());
    for outcome in [cursor.next(), cursor.prev(), cursor.first(), cursor.seek(b"a", 1), cursor.last()] {
        assert_eq!(outcome.unwrap_err().to_string(), error.to_string());
        assert!(cursor.entry().is_none());
    }
}
