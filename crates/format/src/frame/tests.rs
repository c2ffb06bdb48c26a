//! A torn tail is truncated, damage is reported, and neither is ever mistaken for the other.

use proptest::prelude::*;

use super::*;

const MAGIC: [u8; 8] = *b"testfile";

/// A file of records with these payloads; `synced[i]` says whether record i was appended after a sync.
fn file_of(payloads: &[Vec<u8>], synced: &[bool]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = file_header(MAGIC, 1, 9).to_vec();
    let mut starts = Vec::new();
    for (number, payload) in payloads.iter().enumerate() {
        let start = begin(&mut bytes);
        starts.push(start);
        bytes.extend_from_slice(payload);
        let before = if synced.get(number) == Some(&true) { Before::Synced } else { Before::Unsynced };
        finish(&mut bytes, start, 9, start as u64, number as u64, before);
    }
    (bytes, starts)
}

/// All payloads and the tail, or the damage found.
fn read(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, Tail), Corruption> {
    let mut frames = Frames::new(bytes, MAGIC, 1, Some(9), "record")?;
    let payloads = frames.by_ref().map(|f| f.map(|f| f.payload.to_vec())).collect::<Result<_, _>>()?;
    Ok((payloads, frames.tail()))
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        proptest::collection::vec(any::<u8>(), 400..1600),
        // Zeros with a few bits set: here lost sectors are hardest to distinguish from payload.
        (0usize..2500, proptest::collection::vec((0usize..2500, 0u8..8), 0..3)).prop_map(|(len, bits)| {
            let mut zeros = vec![0u8; len];
            bits.into_iter().filter(|b| b.0 < len).for_each(|(at, bit)| zeros[at] |= 1 << bit);
            zeros
        }),
    ]
}

#[test]
fn records_come_back() {
    let payloads = vec![vec![], vec![1], vec![0; 2000], b"four".to_vec()];
    let (bytes, _) = file_of(&payloads, &[]);
    assert_eq!(read(&bytes), Ok((payloads, Tail::Clean)));
}

#[test]
fn the_bytes_of_a_record_are_the_documented_ones() {
    let (bytes, _) = file_of(&[b"ab".to_vec()], &[true]);
    let hex: String = bytes[32..].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(&bytes[..8], b"testfile");
    assert_eq!(hex, "5b800200000000000000000000b046e8b1089cce30d76162b1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn every_flipped_bit_is_reported(payloads in proptest::collection::vec(payload(), 1..4)) {
        let (bytes, _) = file_of(&payloads, &[]);
        let mut flipped = bytes.clone();
        for bit in 0..bytes.len() * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(&flipped).is_err(), "bit {bit} of {} bytes", bytes.len());
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_file_cut_anywhere_has_a_torn_tail_behind_its_whole_records(
        payloads in proptest::collection::vec(payload(), 1..4),
    ) {
        let (bytes, starts) = file_of(&payloads, &[]);
        for len in 0..bytes.len() {
            let whole = starts.iter().skip(1).filter(|&&end| end <= len).count();
            let end = if len < 32 { 0 } else { starts.get(whole).copied().unwrap_or(0) };
            let tail = if len == end && len >= 32 { Tail::Clean } else { Tail::Torn { offset: end as u64 } };
            prop_assert_eq!(read(&bytes[..len]), Ok((payloads[..whole].to_vec(), tail)), "truncated to {}", len);
        }
    }

    #[test]
    fn lost_sectors_of_an_unsynced_suffix_are_a_torn_tail(
        payloads in proptest::collection::vec(payload(), 1..6), lost in any::<u64>(), durable in 0usize..6,
    ) {
        let (bytes, starts) = file_of(&payloads, &[]);
        let durable_len = starts.get(durable).copied().unwrap_or(bytes.len());
        let mut left = bytes.clone();
        for sector in durable_len / SECTOR..bytes.len().div_ceil(SECTOR) {
            if lost >> (sector % 64) & 1 == 1 {
                let end = bytes.len().min((sector + 1) * SECTOR);
                left[durable_len.max(sector * SECTOR)..end].fill(0);
            }
        }
        // A record with single-bit sectors may be taken for damaged when as many sectors are lost: see the module's
        // text.
        let is_sparse = |p: &Vec<u8>| p.iter().map(|b| b.count_ones()).sum::<u32>() <= 3 && p.len() > SECTOR;
        let single_bits = payloads.iter().any(is_sparse);
        match read(&left) {
            Ok((found, _)) => {
                prop_assert!(found.len() >= durable.min(payloads.len()));
                prop_assert_eq!(&found[..], &payloads[..found.len()]);
            }
            Err(damage) => prop_assert!(single_bits, "{damage}"),
        }
    }

    #[test]
    fn lost_sectors_before_a_synced_record_are_damage(len in 1000usize..3000) {
        let (bytes, starts) = file_of(&[vec![7; len], vec![8; 10]], &[false, true]);
        let mut left = bytes.clone();
        left[SECTOR..2 * SECTOR].fill(0);
        prop_assert!(starts[1] >= 2 * SECTOR);
        prop_assert!(read(&left).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut bytes: Vec<u8>, keep_header: bool) {
        if keep_header {
            bytes.splice(0..0, file_header(MAGIC, 1, 9));
        }
        let _any_answer = read(&bytes);
    }
}

#[test]
fn zeros_after_the_last_record_are_a_torn_tail() {
    let (bytes, _) = file_of(&[b"kept".to_vec()], &[]);
    for zeros in 1..1100 {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + zeros, 0);
        let tail = Tail::Torn { offset: bytes.len() as u64 };
        assert_eq!(read(&longer), Ok((vec![b"kept".to_vec()], tail)), "{zeros} zeros");
    }
}

#[test]
fn a_file_of_another_kind_version_or_name_is_refused() {
    let frames = |header: [u8; 32]| Frames::new(&header.clone(), MAGIC, 1, Some(9), "record").map(drop);
    assert!(frames(file_header(MAGIC, 1, 9)).is_ok());
    assert!(frames(file_header(*b"anotherk", 1, 9)).is_err());
    assert!(frames(file_header(MAGIC, 1, 8)).is_err());
    let newer = frames(file_header(MAGIC, 2, 9)).unwrap_err();
    assert!(newer.to_string().contains("version 2"), "{newer}");
}

#[test]
fn a_header_is_found_wherever_it_is_and_only_there() {
    let (bytes, starts) = file_of(&[vec![FIRST; 30], b"two".to_vec()], &[]);
    for from in 0..bytes.len() {
        let expected = starts.iter().find(|&&start| start >= from).map(|&start| {
            let payload = if start == starts[0] { 30 } else { 3 };
            (start - from, (HEADER_BYTES + payload + TRAILER_BYTES) as u64)
        });
        assert_eq!(find_header(&bytes[from..], 9, from as u64), expected, "{from}");
        assert_eq!(find_header(&bytes[from..], 10, from as u64), None);
        let here = header_span(&bytes[from..], 9, from as u64);
        assert_eq!(here, expected.filter(|(skip, _)| *skip == 0).map(|(_, span)| span), "{from}");
    }
}
