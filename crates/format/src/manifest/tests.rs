//! Edits come back unchanged, damage is reported, and unknown fields are skipped only where that is safe.

use proptest::prelude::*;

use super::*;
use bifold_contract::{LargeEdit, LargeRef};

fn table(id: u64) -> Arc<TableMeta> {
    Arc::new(TableMeta {
        id,
        bytes: 4096 * id,
        entries: 10,
        tombstones: 3,
        range_tombstones: 1,
        smallest: b"aa"[..].into(),
        largest: b"zz"[..].into(),
        unbounded: id % 2 == 1,
        min_seqno: 5,
        max_seqno: 1 << 40,
        expiring: bifold_contract::Expiring { entries: id, first: 5, last: 1_764_000_000_000 },
    })
}

fn rich_edit() -> Edit {
    Edit {
        next_file: Some(17),
        last_seqno: Some(1 << 50),
        seen_time: Some(1_764_000_000_000),
        log_floor: Some(LogFloor { log: 3, first: 77 }),
        keyspaces: vec![
            KeyspaceEdit::Created { id: 1, name: "naïve".into(), options: "a = 1\n".into() },
            KeyspaceEdit::Configured { id: 1, options: String::new() },
            KeyspaceEdit::Flushed { id: 1, seqno: 99 },
            KeyspaceEdit::Dropped { id: 2 },
        ],
        levels: vec![
            LevelEdit {
                keyspace: 1,
                removed: vec![TableRemoved { level: 0, run: 9, table: 8 }],
                added: vec![
                    TableAdded { level: 1, run: 4, table: table(7) },
                    TableAdded { level: 6, run: 4, table: table(10) },
                ],
                boundaries: vec![b"m"[..].into()],
            },
            LevelEdit { keyspace: 3, ..LevelEdit::default() },
        ],
        values: ValueEdit {
            removed: vec![4, 5],
            added: vec![ValueFileMeta {
                id: 11,
                class: 2,
                keyspace: 1,
                group: 77,
                level: 3,
                tags: 6,
                bytes: 1 << 33,
                entries: 12,
                deleted: None,
                smallest: b""[..].into(),
                largest: b"m"[..].into(),
            }],
            garbage: vec![(11, 1000, 2)],
            tagged: vec![(11, 2)],
            large: LargeEdit {
                added: vec![LargeFileMeta {
                    keyspace: 1,
                    named: LargeRef { file: 12, len: 1 << 29, sum: u64::MAX },
                    bytes: 1 << 30,
                }],
                removed: vec![13],
                unneeded: Vec::new(),
            },
            ..ValueEdit::default()
        },
    }
}

fn manifest_of(edits: &[Edit]) -> Vec<u8> {
    let mut bytes = header(0xB1F0).to_vec();
    for edit in edits {
        let record = encode_record(edit, 0xB1F0, bytes.len() as u64);
        bytes.extend_from_slice(&record);
    }
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Edit>, Corruption> {
    ManifestReader::new(bytes)?.map(|r| r.map(|r| r.edit)).collect()
}

#[test]
fn edits_come_back() {
    let edits = vec![rich_edit(), Edit::default(), Edit { next_file: Some(0), ..Edit::default() }];
    let bytes = manifest_of(&edits);
    assert_eq!(read(&bytes), Ok(edits));
    assert_eq!(ManifestReader::new(&bytes).map(|r| r.database_id()), Ok(0xB1F0));
}

#[test]
fn every_flipped_bit_is_reported() {
    let mut bytes = manifest_of(&[rich_edit(), rich_edit()]);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_truncated_manifest_keeps_its_whole_records() {
    let (one, two) = (manifest_of(&[rich_edit()]), manifest_of(&[rich_edit(), rich_edit()]));
    for len in one.len()..two.len() {
        assert_eq!(read(&two[..len]), Ok(vec![rich_edit()]), "truncated to {len}");
    }
    assert!(read(&two[..20]).is_err(), "a manifest gets its name only after its header is whole");
}

#[test]
fn unknown_fields_are_skipped_when_even_and_refused_when_odd() {
    let with_field = |tag: u64| {
        let mut payload = Vec::new();
        put_varint(&mut payload, tag);
        put_slice(&mut payload, b"from the future");
        encode(&rich_edit(), &mut payload);
        decode(&payload)
    };
    assert_eq!(with_field(1000), Ok(rich_edit()));
    assert!(with_field(1001).unwrap_err().to_string().contains("upgrade Bifold"));
}

proptest! {
    #[test]
    fn no_payload_makes_the_decoder_panic(payload: Vec<u8>) {
        let _any_answer = decode(&payload);
    }
}
