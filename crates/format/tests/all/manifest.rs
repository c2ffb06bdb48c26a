//! Manifests after crashes and after damage.

use std::sync::Arc;

use bifold_contract::{
    Corruption, Edit, Expiring, KeyspaceEdit, LargeEdit, LargeFileMeta, LargeRef, LevelEdit, LogFloor, MAX_VALUE_LEN,
    TableMeta, ValueEdit, ValueFileMeta,
    edit::{TableAdded, TableRemoved},
    expiry::INSTANT_MAX,
    key::MAX_SEQNO,
};
use bifold_format::{
    manifest::{self, ManifestReader, Tail},
    names::NUMBER_MAX,
};
use proptest::{collection::vec, option, prelude::*};

const DATABASE: u64 = 0xB1F0_1DB1;
const SECTOR: usize = 512;

/// A manifest of these edits, and where each record starts. One more offset is where the last one ends.
fn manifest_of(edits: &[Edit]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = manifest::header(DATABASE).to_vec();
    let mut offsets = vec![bytes.len()];
    for edit in edits {
        let record = manifest::encode_record(edit, DATABASE, bytes.len() as u64);
        bytes.extend_from_slice(&record);
        offsets.push(bytes.len());
    }
    (bytes, offsets)
}

fn read(bytes: &[u8]) -> Result<(Vec<Edit>, Tail), Corruption> {
    let mut reader = ManifestReader::new(bytes)?;
    let edits = reader.by_ref().map(|record| record.map(|record| record.edit)).collect::<Result<_, _>>()?;
    Ok((edits, reader.tail()))
}

/// Three edits in about four sectors.
fn three() -> Vec<Edit> {
    let keyspace =
        |id, len| KeyspaceEdit::Created { id, name: format!("keyspace {id}"), options: "x = 1\n".repeat(len) };
    vec![
        Edit { next_file: Some(9), keyspaces: vec![keyspace(1, 60)], ..Edit::default() },
        Edit { last_seqno: Some(1 << 40), ..Edit::default() },
        Edit {
            log_floor: Some(LogFloor { log: 4, first: 9 }),
            keyspaces: vec![keyspace(2, 200), KeyspaceEdit::Dropped { id: 1 }],
            ..Edit::default()
        },
    ]
}

proptest! {
    #[test]
    fn edits_come_back(edits in vec(edit(), 1..4)) {
        let (bytes, _) = manifest_of(&edits);
        prop_assert_eq!(read(&bytes), Ok((edits, Tail::Clean)));
        prop_assert_eq!(ManifestReader::new(&bytes).unwrap().database_id(), DATABASE);
    }
}

#[test]
fn every_flipped_bit_of_a_manifest_is_an_error() {
    let (mut bytes, _) = manifest_of(&three());
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bytes).is_err(), "bit {bit} of {} bytes", bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_manifest_truncated_in_a_later_record_ends_before_it() {
    let (bytes, offsets) = manifest_of(&three());
    for len in offsets[1]..=bytes.len() {
        let whole = offsets.iter().filter(|&&end| end <= len).count() - 1;
        let end = offsets[whole];
        let tail = if end == len { Tail::Clean } else { Tail::Torn { offset: end as u64 } };
        assert_eq!(read(&bytes[..len]), Ok((three()[..whole].to_vec(), tail)), "truncated to {len}");
    }
}

#[test]
fn sectors_lost_from_only_the_last_record_are_a_torn_tail_and_others_an_error() {
    let (bytes, offsets) = manifest_of(&three());
    for sector in 0..bytes.len().div_ceil(SECTOR) {
        let end = bytes.len().min((sector + 1) * SECTOR);
        let mut last = bytes.clone();
        last[offsets[2].max(sector * SECTOR)..end.max(offsets[2])].fill(0);
        if last != bytes {
            let tail = Tail::Torn { offset: offsets[2] as u64 };
            assert_eq!(read(&last), Ok((three()[..2].to_vec(), tail)), "sector {sector}");
        }
        let mut any = bytes.clone();
        any[sector * SECTOR..end].fill(0);
        assert_eq!(read(&any).is_ok(), sector * SECTOR >= offsets[2], "sector {sector}");
    }
}

/// Read as a manifest without records, it would look like an empty database, and all files would be deleted as
/// leftovers.
#[test]
fn a_manifest_without_a_whole_first_record_is_an_error() {
    let (bytes, offsets) = manifest_of(&three());
    for len in 0..offsets[1] {
        assert!(read(&bytes[..len]).is_err(), "truncated to {len}");
    }
    assert!(read(&[0; 4096]).is_err());
    let (mut alone, offsets) = manifest_of(&three()[..1]);
    alone[offsets[0]..].fill(0);
    let mut reader = ManifestReader::new(&alone).unwrap();
    assert!(reader.next().is_some_and(|record| record.is_err()), "the only record lost");
    assert!(reader.next().is_none(), "damage is reported once");
}

#[test]
fn numbers_that_leave_none_for_the_future_are_damage() {
    let valid = Edit { next_file: Some(NUMBER_MAX / 2), last_seqno: Some(MAX_SEQNO - 1), ..Edit::default() };
    let floor = |log, first| Edit { log_floor: Some(LogFloor { log, first }), ..Edit::default() };
    let read = |edit: &Edit| {
        let mut bytes = manifest::header(DATABASE).to_vec();
        bytes.extend(manifest::encode_record(edit, DATABASE, bytes.len() as u64));
        ManifestReader::new(&bytes).unwrap().next().unwrap().map(|record| record.edit)
    };
    for edit in [&valid, &floor(NUMBER_MAX, MAX_SEQNO)] {
        assert_eq!(read(edit).as_ref(), Ok(edit));
    }
    let damaged = [
        Edit { next_file: Some(NUMBER_MAX / 2 + 1), ..Edit::default() },
        Edit { next_file: Some(u64::MAX), ..Edit::default() },
        Edit { last_seqno: Some(MAX_SEQNO), ..Edit::default() },
        Edit { keyspaces: vec![KeyspaceEdit::Flushed { id: 2, seqno: MAX_SEQNO }], ..Edit::default() },
        Edit { seen_time: Some(INSTANT_MAX + 1), ..Edit::default() },
        floor(NUMBER_MAX + 1, 1),
        floor(1, 0),
        floor(1, MAX_SEQNO + 1),
        floor(1, u64::MAX),
    ];
    damaged.iter().for_each(|edit| assert!(read(edit).is_err(), "{edit:?}"));
}

fn edit() -> impl Strategy<Value = Edit> {
    let numbers = (
        option::of(0..=NUMBER_MAX / 2),
        option::of(0..MAX_SEQNO),
        option::of((0..=NUMBER_MAX, 1..=MAX_SEQNO)),
        option::of(0..=INSTANT_MAX),
    );
    let values = (
        vec(0..=NUMBER_MAX, 0..3),
        vec(value_file(), 0..2),
        vec(any::<(u64, u64, u64)>(), 0..3),
        vec(any::<(u64, u32)>(), 0..3),
        large(),
    );
    (numbers, vec(keyspace(), 0..4), vec(level(), 0..3), values).prop_map(|(numbers, keyspaces, levels, values)| Edit {
        next_file: numbers.0,
        last_seqno: numbers.1,
        seen_time: numbers.3,
        log_floor: numbers.2.map(|(log, first)| LogFloor { log, first }),
        keyspaces,
        levels,
        values: ValueEdit {
            removed: values.0,
            added: values.1,
            garbage: values.2,
            tagged: values.3,
            large: values.4,
            ..ValueEdit::default()
        },
    })
}

fn keyspace() -> impl Strategy<Value = KeyspaceEdit> {
    let text = || "\\PC{0,20}";
    prop_oneof![
        (any::<u32>(), text(), text()).prop_map(|(id, name, options)| KeyspaceEdit::Created { id, name, options }),
        (any::<u32>(), text()).prop_map(|(id, options)| KeyspaceEdit::Configured { id, options }),
        any::<u32>().prop_map(|id| KeyspaceEdit::Dropped { id }),
        any::<u32>().prop_map(|id| KeyspaceEdit::Expires { id }),
        (any::<u32>(), 0..MAX_SEQNO).prop_map(|(id, seqno)| KeyspaceEdit::Flushed { id, seqno }),
    ]
}

fn level() -> impl Strategy<Value = LevelEdit> {
    let removed =
        (any::<u8>(), any::<u64>(), 0..=NUMBER_MAX).prop_map(|(level, run, table)| TableRemoved { level, run, table });
    let added = (any::<u8>(), any::<u64>(), table()).prop_map(|(level, run, table)| TableAdded {
        level,
        run,
        table: Arc::new(table),
    });
    let boundaries = vec(vec(any::<u8>(), 0..9).prop_map(Vec::into_boxed_slice), 0..3);
    (any::<u32>(), vec(removed, 0..3), vec(added, 0..3), boundaries)
        .prop_map(|(keyspace, removed, added, boundaries)| LevelEdit { keyspace, removed, added, boundaries })
}

/// Of some tables, entries that expire.
fn expiring(seed: u64) -> Expiring {
    match seed % 3 {
        0 => Expiring::default(),
        _ => Expiring { entries: 1 + (seed >> 3), first: (seed >> 20).min(INSTANT_MAX), last: INSTANT_MAX },
    }
}

fn table() -> impl Strategy<Value = TableMeta> {
    (any::<[u64; 7]>(), any::<bool>(), any::<Vec<u8>>(), any::<Vec<u8>>()).prop_map(
        |(n, unbounded, smallest, largest)| TableMeta {
            id: n[0] >> 2,
            bytes: n[1],
            entries: n[2],
            tombstones: n[3],
            range_tombstones: n[4],
            min_seqno: n[5],
            max_seqno: n[6],
            unbounded,
            smallest: smallest.into(),
            largest: largest.into(),
            expiring: expiring(n[6]),
        },
    )
}

fn large() -> impl Strategy<Value = LargeEdit> {
    let file = (any::<u32>(), 0..=NUMBER_MAX, 1..=MAX_VALUE_LEN as u64, any::<[u64; 2]>()).prop_map(
        |(keyspace, file, len, [sum, bytes])| LargeFileMeta { keyspace, named: LargeRef { file, len, sum }, bytes },
    );
    let edit = (vec(file, 0..3), vec(0..=NUMBER_MAX, 0..3));
    edit.prop_map(|(added, removed)| LargeEdit { added, removed, ..LargeEdit::default() })
}

fn value_file() -> impl Strategy<Value = ValueFileMeta> {
    let keys = (any::<Vec<u8>>(), any::<Vec<u8>>());
    (any::<[u64; 4]>(), any::<[u32; 2]>(), any::<[u8; 2]>(), keys).prop_map(
        |(long, short, bytes, (smallest, largest))| ValueFileMeta {
            id: long[0] >> 2,
            group: long[1],
            bytes: long[2],
            entries: if bytes[0] % 2 == 0 { long[3] } else { 0 },
            deleted: (bytes[0] % 2 == 1).then_some(long[3]),
            keyspace: short[0],
            tags: short[1] & !1,
            class: bytes[0],
            level: bytes[1],
            smallest: smallest.into(),
            largest: largest.into(),
        },
    )
}
