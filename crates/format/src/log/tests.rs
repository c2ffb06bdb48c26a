use bifold_contract::MAX_KEY_LEN;
use proptest::prelude::*;

use super::*;

fn encode(commits: &[(SeqNo, Vec<Operation<'_>>)]) -> Vec<u8> {
    let mut bytes = header(5).to_vec();
    for (first, operations) in commits {
        let offset = bytes.len() as u64;
        let mut encoder = LogEncoder::begin(&mut bytes, 5, offset, *first);
        for operation in operations {
            match *operation {
                Operation::Put { keyspace, key, value } => encoder.put(keyspace, key, value),
                Operation::Pointer { keyspace, key, pointer, value: None } => encoder.pointer(keyspace, key, pointer),
                Operation::Pointer { keyspace, key, pointer, value: Some(value) } => {
                    encoder.pointer_and_value(keyspace, key, pointer, value)
                }
                Operation::PointerUntil { keyspace, key, payload, value: Some(value), .. } => {
                    encoder.pointer_and_value_until(keyspace, key, payload, value)
                }
                Operation::PutUntil { keyspace, key, instant, value } => {
                    encoder.put_until(keyspace, key, instant, value);
                }
                Operation::PointerUntil { keyspace, key, payload, .. } => {
                    encoder.pointer_until(keyspace, key, payload);
                }
                Operation::Merge { keyspace, key, operand } => encoder.merge(keyspace, key, operand),
                Operation::Large { keyspace, key, named } => encoder.large(keyspace, key, named),
                Operation::Delete { keyspace, key } => encoder.delete(keyspace, key),
                Operation::DeleteRange { keyspace, start, end } => encoder.delete_range(keyspace, start, end),
            }
        }
        encoder.finish(Before::Unsynced);
    }
    bytes
}

#[test]
fn commits_come_back() {
    let commits = vec![
        (1, vec![Operation::Put { keyspace: 0, key: b"k", value: b"v" }]),
        (
            2,
            vec![
                Operation::Delete { keyspace: 300, key: b"k" },
                Operation::Merge { keyspace: 300, key: b"k", operand: b"more" },
                Operation::Large { keyspace: 300, key: b"k", named: b"a file" },
                Operation::DeleteRange { keyspace: 1, start: b"", end: Some(b"m") },
                Operation::DeleteRange { keyspace: 1, start: b"z", end: None },
                Operation::Pointer { keyspace: 2, key: b"p", pointer: b"here", value: None },
                Operation::Pointer { keyspace: 2, key: b"p", pointer: b"here", value: Some(b"and the value") },
                Operation::Pointer { keyspace: 2, key: b"p", pointer: b"here", value: Some(b"") },
            ],
        ),
        (6, vec![Operation::Put { keyspace: 0, key: b"empty", value: b"" }]),
        (
            7,
            vec![
                Operation::PutUntil { keyspace: 0, key: b"soon", instant: 1_764_000_000_000, value: b"v" },
                Operation::PutUntil { keyspace: 0, key: b"empty", instant: 0, value: b"" },
                Operation::PointerUntil {
                    keyspace: 2,
                    key: b"p",
                    payload: b"instanthere",
                    pointer: b"there",
                    value: None,
                },
                Operation::PointerUntil {
                    keyspace: 2,
                    key: b"p",
                    payload: b"instanthere",
                    pointer: b"there",
                    value: Some(b"value"),
                },
            ],
        ),
    ];
    let bytes = encode(&commits);
    let mut reader = LogReader::new(&bytes, 5).unwrap();
    for (first, operations) in &commits {
        let record = reader.next().unwrap().unwrap();
        assert_eq!(record.first_seqno, *first);
        assert_eq!(record.operations().collect::<Result<Vec<_>, _>>().unwrap(), *operations);
    }
    assert!(reader.next().is_none());
    assert_eq!(reader.tail(), Tail::Clean);
}

/// Memtables assert what commits have checked. So a log that says otherwise must be an error before it gets there.
#[test]
fn a_key_that_may_not_be_stored_is_damage() {
    let long = vec![7; MAX_KEY_LEN + 1];
    let of = |key: &[u8], operation: fn(&[u8]) -> Operation<'_>| {
        let bytes = encode(&[(1, vec![operation(key)])]);
        let record = LogReader::new(&bytes, 5).unwrap().next().unwrap().unwrap();
        record.operations().next().unwrap().map(|_| ())
    };
    let operations: [fn(&[u8]) -> Operation<'_>; 4] = [
        |key| Operation::Put { keyspace: 1, key, value: b"v" },
        |key| Operation::Delete { keyspace: 1, key },
        |key| Operation::Merge { keyspace: 1, key, operand: b"more" },
        |key| Operation::Pointer { keyspace: 1, key, pointer: b"here", value: None },
    ];
    for operation in operations {
        assert!(of(b"", operation).unwrap_err().found.contains("a key of 0 bytes"));
        assert!(of(&long, operation).is_err());
        assert!(of(&long[1..], operation).is_ok(), "the longest key");
    }
    for bound in [&b""[..], &long[..]] {
        assert!(of(bound, |start| Operation::DeleteRange { keyspace: 1, start, end: None }).is_ok());
    }
}

#[test]
fn a_marker_beyond_all_numbers_is_damage() {
    let of = |last: SeqNo| {
        let mut bytes = header(5).to_vec();
        let mut encoder = LogEncoder::begin(&mut bytes, 5, FILE_HEADER_BYTES as u64, 9);
        encoder.durable(last);
        encoder.finish(Before::Unsynced);
        let record = LogReader::new(&bytes, 5).unwrap().next().unwrap().unwrap();
        record.durable()
    };
    assert_eq!(of(MAX_SEQNO), Ok(MAX_SEQNO));
    assert!(of(MAX_SEQNO + 1).is_err() && of(SeqNo::MAX).is_err());
}

#[test]
fn a_value_too_short_for_its_instant_is_damage() {
    for kind in [PUT_UNTIL, PUT_POINTER_UNTIL] {
        let payload = [kind, 1, 1, 5, b'k', 1, 2, 3, 4, 5];
        let record = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload: &payload };
        assert!(record.operations().next().is_some_and(|operation| operation.is_err()));
    }
}

#[test]
fn a_marker_is_not_a_commit_and_says_what_is_durable() {
    let mut bytes = header(5).to_vec();
    for (number, before, marks) in
        [(8, Before::Unsynced, Some(7)), (8, Before::Synced, Some(3)), (8, Before::Synced, None)]
    {
        let offset = bytes.len() as u64;
        let mut encoder = LogEncoder::begin(&mut bytes, 5, offset, number);
        match marks {
            Some(last) => encoder.durable(last),
            None => encoder.delete(1, b"k"),
        }
        encoder.finish(before);
    }
    let records: Vec<_> = LogReader::new(&bytes, 5).unwrap().map(Result::unwrap).collect();
    let answers: Vec<_> =
        records.iter().map(|record| (record.durable().unwrap(), record.operations().count())).collect();
    assert_eq!(answers, [(7, 0), (7, 0), (7, 1)]);
    let bad = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload: &[DURABLE, 0x80] };
    assert!(bad.durable().is_err());
}

#[test]
fn a_list_of_large_values_is_not_a_commit() {
    let mut bytes = header(5).to_vec();
    let files = [vec![(7, 70_000), (u64::MAX, 1)], Vec::new()];
    for listed in &files {
        let offset = bytes.len() as u64;
        let mut encoder = LogEncoder::begin(&mut bytes, 5, offset, 8);
        encoder.large_before(listed.iter().copied());
        encoder.finish(Before::Unsynced);
    }
    let offset = bytes.len() as u64;
    let mut encoder = LogEncoder::begin(&mut bytes, 5, offset, 8);
    encoder.delete(1, b"k");
    encoder.finish(Before::Unsynced);
    let records: Vec<_> = LogReader::new(&bytes, 5).unwrap().map(Result::unwrap).collect();
    let listed: Vec<_> = records.iter().map(|record| record.large_before().unwrap()).collect();
    assert_eq!(listed, [Some(files[0].clone()), Some(Vec::new()), None]);
    assert_eq!(records.iter().map(|record| record.operations().count()).collect::<Vec<_>>(), [0, 0, 1]);
    for payload in [&[LARGE_BEFORE, 0x80][..], &[LARGE_BEFORE, 1]] {
        let bad = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload };
        assert!(bad.large_before().is_err(), "{payload:?}");
    }
}

#[test]
fn the_bytes_of_a_commit_are_the_documented_ones() {
    let bytes = encode(&[(7, vec![Operation::Put { keyspace: 1, key: b"key", value: b"value" }])]);
    let hex: Vec<String> = bytes[32..].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex[..13].concat(), "5b000c00000007000000000000".to_string());
    assert_eq!(hex[21..].concat(), "d7010103056b657976616c7565b1");
}

proptest! {
    #[test]
    fn no_payload_makes_the_decoder_panic(payload: Vec<u8>) {
        let record = LogRecord { offset: 0, first_seqno: 1, before: Before::Unsynced, payload: &payload };
        let _any_answer: Vec<_> = record.operations().collect();
    }
}
