//! Logs after crashes and after damage.

use bifold_contract::SeqNo;
use bifold_format::log::{self, Before, LogEncoder, LogReader, Operation, Tail};
use proptest::prelude::*;

const FILE: u64 = 5;
const SECTOR: usize = 512;

/// A commit that can be compared: its first sequence number and its operations as text.
type Commit = (SeqNo, Vec<String>);

#[derive(Clone, Debug)]
enum Op {
    Put(u32, Vec<u8>, Vec<u8>),
    Pointer(u32, Vec<u8>, Vec<u8>),
    Delete(u32, Vec<u8>),
    DeleteRange(u32, Vec<u8>, Option<Vec<u8>>),
}

impl Op {
    fn text(&self) -> String {
        format!(
            "{:?}",
            match self {
                Self::Put(keyspace, key, value) => Operation::Put { keyspace: *keyspace, key, value },
                Self::Pointer(keyspace, key, pointer) =>
                    Operation::Pointer { keyspace: *keyspace, key, pointer, value: None },
                Self::Delete(keyspace, key) => Operation::Delete { keyspace: *keyspace, key },
                Self::DeleteRange(keyspace, start, end) =>
                    Operation::DeleteRange { keyspace: *keyspace, start, end: end.as_deref() },
            }
        )
    }
}

/// A log of these commits, and where each starts. One more offset is where the last one ends.
fn log_of(commits: &[(Vec<Op>, Before)]) -> (Vec<u8>, Vec<usize>, Vec<Commit>) {
    let mut bytes = log::header(FILE).to_vec();
    let (mut offsets, mut expected, mut seqno) = (vec![bytes.len()], Vec::new(), 1);
    for (ops, before) in commits {
        let offset = bytes.len() as u64;
        let mut encoder = LogEncoder::begin(&mut bytes, FILE, offset, seqno);
        for op in ops {
            match op {
                Op::Put(keyspace, key, value) => encoder.put(*keyspace, key, value),
                Op::Pointer(keyspace, key, pointer) => encoder.pointer(*keyspace, key, pointer),
                Op::Delete(keyspace, key) => encoder.delete(*keyspace, key),
                Op::DeleteRange(keyspace, start, end) => encoder.delete_range(*keyspace, start, end.as_deref()),
            }
        }
        encoder.finish(*before);
        offsets.push(bytes.len());
        expected.push((seqno, ops.iter().map(Op::text).collect()));
        seqno += ops.len() as u64;
    }
    (bytes, offsets, expected)
}

fn read(bytes: &[u8]) -> Result<(Vec<Commit>, Tail), String> {
    let mut reader = LogReader::new(bytes, FILE).map_err(|damage| damage.to_string())?;
    let mut commits = Vec::new();
    for record in reader.by_ref() {
        let record = record.map_err(|damage| damage.to_string())?;
        let text = record.operations().map(|op| op.map(|op| format!("{op:?}")).map_err(|damage| damage.to_string()));
        commits.push((record.first_seqno, text.collect::<Result<_, _>>()?));
    }
    Ok((commits, reader.tail()))
}

/// Pseudo-random bytes, so that no sector is near-zero.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Commits of every kind in six sectors: headers across two sectors, records within one, values with two whole
/// sectors of zeros.
fn mixed() -> Vec<(Vec<Op>, Before)> {
    let put = |value: Vec<u8>| Op::Put(1, b"key".to_vec(), value);
    let commits = vec![
        vec![put(b"first".to_vec()), Op::Delete(2, b"lost".to_vec())],
        vec![put(noise(392, 1))],
        vec![Op::DeleteRange(300, b"a".to_vec(), Some(b"m".to_vec())), Op::DeleteRange(1, b"z".to_vec(), None)],
        vec![put([noise(120, 2), vec![0; 1300], noise(200, 3)].concat())],
        vec![],
        vec![Op::Pointer(7, b"aside".to_vec(), vec![14, 0, 200, 1, 30])],
        vec![put(Vec::new()), put(noise(600, 4))],
        vec![put(b"last".to_vec())],
    ];
    commits.into_iter().map(|ops| (ops, Before::Unsynced)).collect()
}

proptest! {
    #[test]
    fn commits_come_back(commits in proptest::collection::vec(proptest::collection::vec(op(), 0..4), 0..6)) {
        let commits: Vec<_> = commits.into_iter().map(|ops| (ops, Before::Unsynced)).collect();
        let (bytes, _, expected) = log_of(&commits);
        prop_assert_eq!(read(&bytes), Ok((expected, Tail::Clean)));
    }
}

fn op() -> impl Strategy<Value = Op> {
    let key = || proptest::collection::vec(any::<u8>(), 1..20);
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        (0usize..3000, 0u8..3).prop_map(|(len, byte)| vec![byte; len])
    ];
    prop_oneof![
        (any::<u32>(), key(), value).prop_map(|(keyspace, key, value)| Op::Put(keyspace, key, value)),
        (any::<u32>(), key(), key()).prop_map(|(keyspace, key, pointer)| Op::Pointer(keyspace, key, pointer)),
        (any::<u32>(), key()).prop_map(|(keyspace, key)| Op::Delete(keyspace, key)),
        (any::<u32>(), key(), proptest::option::of(key())).prop_map(|(keyspace, a, b)| Op::DeleteRange(keyspace, a, b)),
    ]
}

#[test]
fn every_flipped_bit_of_a_log_is_an_error() {
    let (mut bytes, offsets, _) = log_of(&mixed());
    assert!(offsets.iter().any(|at| at % SECTOR > SECTOR - 20), "no header across two sectors: {offsets:?}");
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bytes).is_err(), "bit {bit} of {} bytes", bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_log_truncated_at_any_byte_ends_before_the_truncated_commit() {
    let (bytes, offsets, expected) = log_of(&mixed());
    for len in 0..=bytes.len() {
        let whole = offsets.iter().filter(|&&end| end <= len).count();
        let end = whole.checked_sub(1).map_or(0, |last| offsets[last]);
        let tail = if whole > 0 && end == len { Tail::Clean } else { Tail::Torn { offset: end as u64 } };
        assert_eq!(read(&bytes[..len]), Ok((expected[..whole.saturating_sub(1)].to_vec(), tail)), "truncated to {len}");
    }
}

/// Every durable length, and every subset of lost later sectors: up to 2⁶ subsets after each of the offsets.
#[test]
fn lost_sectors_after_the_durable_prefix_end_the_log_before_the_first_commit_they_damage() {
    let (bytes, offsets, expected) = log_of(&mixed());
    for durable in [0].iter().chain(&offsets) {
        let sectors: Vec<_> = (durable / SECTOR..bytes.len().div_ceil(SECTOR))
            .map(|sector| (sector * SECTOR).max(*durable)..((sector + 1) * SECTOR).min(bytes.len()))
            .collect();
        for lost in 0..1u32 << sectors.len() {
            let mut left = bytes.clone();
            let lost_sectors = sectors.iter().enumerate().filter(|(at, _)| lost >> at & 1 == 1);
            lost_sectors.for_each(|(_, sector)| left[sector.clone()].fill(0));
            let kept = if left[..offsets[0]] == bytes[..offsets[0]] {
                offsets.windows(2).take_while(|ends| left[ends[0]..ends[1]] == bytes[ends[0]..ends[1]]).count()
            } else {
                0
            };
            let end = if left[..offsets[0]] == bytes[..offsets[0]] { offsets[kept] as u64 } else { 0 };
            let tail = if kept == expected.len() { Tail::Clean } else { Tail::Torn { offset: end } };
            assert_eq!(read(&left), Ok((expected[..kept].to_vec(), tail)), "durable {durable}, lost {lost:b}");
        }
    }
}

#[test]
fn zeros_of_any_length_after_the_last_commit_are_a_torn_tail() {
    let (bytes, _, expected) = log_of(&mixed());
    for zeros in 1..1200 {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + zeros, 0);
        let tail = Tail::Torn { offset: bytes.len() as u64 };
        assert_eq!(read(&longer), Ok((expected.clone(), tail)), "{zeros} zeros");
    }
}

#[test]
fn garbage_after_the_last_commit_is_an_error() {
    let (bytes, ..) = log_of(&mixed());
    for len in [32, 100, 512, 5000] {
        let longer = [&bytes[..], &noise(len, 9)].concat();
        assert!(read(&longer).is_err(), "{len} bytes");
    }
}

#[test]
fn a_sector_lost_before_a_commit_that_was_appended_after_a_sync_is_an_error() {
    let mut commits = mixed();
    let (_, offsets, expected) = log_of(&commits);
    let synced = 6;
    commits[synced].1 = Before::Synced;
    let (bytes, ..) = log_of(&commits);
    for sector in 1..offsets[synced] / SECTOR {
        let mut left = bytes.clone();
        left[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
        if left != bytes {
            assert!(read(&left).is_err(), "sector {sector}");
        }
    }
    // After that commit a lost sector is a torn tail as usual.
    let mut left = bytes.clone();
    left[offsets[synced + 1]..].fill(0);
    let tail = Tail::Torn { offset: offsets[synced + 1] as u64 };
    assert_eq!(read(&left), Ok((expected[..=synced].to_vec(), tail)));
}

#[test]
fn commits_of_another_log_or_another_place_are_errors() {
    let (bytes, offsets, _) = log_of(&mixed());
    assert!(LogReader::new(&bytes, FILE + 1).is_err());
    let mut other = log::header(FILE + 1).to_vec();
    other.extend_from_slice(&bytes[offsets[0]..]);
    assert!(LogReader::new(&other, FILE + 1).unwrap().any(|record| record.is_err()));
    let moved = [&bytes[..offsets[0]], &bytes[offsets[1]..]].concat();
    assert!(read(&moved).is_err(), "a commit removed from the middle");
}
