use proptest::prelude::*;

use super::*;
use crate::compression::Compression;

const PLACE: (FileId, u64) = (7, 1000);

proptest! {
    #[test]
    fn records_come_back(
        seqno in 0..1u64 << 56, key in prop::collection::vec(any::<u8>(), 1..100), value: Vec<u8>,
        repeat in 0usize..200, lz4: bool,
    ) {
        let value = value.repeat(repeat);
        let mut compressor = Compressor::new(if lz4 { Compression::Lz4 } else { Compression::None });
        let mut bytes = Vec::new();
        encode_value(&mut bytes, PLACE, seqno, &key, &value, &mut compressor);
        let read = read_value(Arc::from(&bytes[..]), PLACE.0, PLACE.1, &key).unwrap();
        prop_assert_eq!(&read[..], &value[..]);
        let frame::Step::Record(frame, len) = frame::step(&bytes, PLACE.0, PLACE.1) else { panic!("no record") };
        prop_assert_eq!(len, bytes.len());
        let record = decode(frame).unwrap();
        prop_assert_eq!((record.seqno, record.kind, record.key), (seqno, ValueKind::Value, &key[..]));
        let mut copy = Vec::new();
        encode(&mut copy, (9, 0), ValueKind::Value, seqno, &key, record.stored());
        prop_assert_eq!(&read_value(Arc::from(copy), 9, 0, &key).unwrap()[..], &value[..]);
    }

    #[test]
    fn damage_is_detected(key: Vec<u8>, value: Vec<u8>, at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = Vec::new();
        encode(&mut bytes, PLACE, ValueKind::Value, 5, &key, Stored::plain(&value));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(read_value(Arc::from(bytes), PLACE.0, PLACE.1, &key).is_err());
    }

    #[test]
    fn no_bytes_make_the_decoders_panic(bytes: Vec<u8>) {
        let _any_answer = describe(&bytes);
        let _any_answer = frame::step(&bytes, 0, 0);
        let frame = Frame { offset: 0, number: 0, before: Before::Unsynced, payload: &bytes };
        if let Ok(record) = decode(frame) {
            let _any_answer = (record.value(), record.check());
        }
    }
}

/// GC writes keys of records to memtables, which assert what commits have checked.
#[test]
fn a_value_of_a_key_that_may_not_be_stored_is_damage() {
    let of = |kind, key: &[u8]| {
        let mut bytes = Vec::new();
        encode(&mut bytes, PLACE, kind, 5, key, Stored::NOTHING);
        let frame::Step::Record(frame, _) = frame::step(&bytes, PLACE.0, PLACE.1) else { panic!("no record") };
        decode(frame).map(|_| ())
    };
    let long = vec![7; MAX_KEY_LEN + 1];
    for kind in [ValueKind::Value, ValueKind::Delete, ValueKind::Stub, ValueKind::Tag] {
        assert!(of(kind, b"").is_err() && of(kind, &long).is_err(), "{kind:?}");
        assert_eq!(of(kind, &long[1..]), Ok(()), "{kind:?}");
    }
    for kind in [ValueKind::DeleteRange, ValueKind::DeleteRangeUnbounded, ValueKind::Drops] {
        assert_eq!((of(kind, b""), of(kind, &long)), (Ok(()), Ok(())), "{kind:?}");
    }
}

#[test]
fn a_tag_says_where_the_value_is() {
    let to = Pointer { file: 300, epoch: 0, offset: 1 << 40, len: 1023 };
    let mut bytes = Vec::new();
    encode_tag(&mut bytes, PLACE, 5, b"key", to);
    let frame::Step::Record(frame, _) = frame::step(&bytes, PLACE.0, PLACE.1) else { panic!("no record") };
    let record = decode(frame).unwrap();
    assert_eq!((record.seqno, record.kind, record.key), (5, ValueKind::Tag, &b"key"[..]));
    assert_eq!((record.tagged(), record.check()), (Ok(Some(to)), Ok(())));
    assert!(read_value(Arc::from(bytes), PLACE.0, PLACE.1, b"key").is_err(), "a tag is not a value");
    let mut bytes = Vec::new();
    encode(&mut bytes, PLACE, ValueKind::Tag, 5, b"key", Stored::plain(&[1, 2]));
    let frame::Step::Record(frame, _) = frame::step(&bytes, PLACE.0, PLACE.1) else { panic!("no record") };
    assert!(decode(frame).unwrap().check().is_err());
}

#[test]
fn a_file_describes_itself() {
    let description = Description { class: 2, keyspace: 300, group: u64::MAX };
    let bytes = header(12, description);
    assert!(bytes.len() <= DESCRIPTION_BYTES_MAX);
    assert_eq!(describe(&bytes), Ok((12, description, bytes.len() as u64)));
    (0..bytes.len()).for_each(|len| assert!(describe(&bytes[..len]).is_err(), "{len}"));
}

#[test]
fn a_damaged_header_still_gives_its_number() {
    let bytes = header(12, Description { class: 1, keyspace: 2, group: 0 });
    assert_eq!(identify(&bytes), Ok(Identity::Whole(12)));
    for at in 0..FILE_HEADER_BYTES {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        let found = if at == 16 { 12 ^ 4 } else { 12 };
        let outside = !(17..24).contains(&at);
        assert!(!outside || identify(&damaged) == Ok(Identity::Damaged(found)), "{at}");
        assert!(describe_as(&damaged, 12).is_ok() && describe(&damaged).is_err(), "{at}");
    }
    let log = frame::file_header(*b"bifldlog", 1, 12);
    assert!(identify(&log).unwrap_err().to_string().contains("magic"));
    let newer = frame::file_header(MAGIC, VERSION + 1, 12);
    assert!(identify(&newer).unwrap_err().to_string().contains("upgrade"));
    assert_eq!(identify(b""), Ok(Identity::Damaged(0)));
}

#[test]
fn a_record_of_another_key_is_an_error() {
    let mut bytes = Vec::new();
    encode(&mut bytes, PLACE, ValueKind::Value, 5, b"key", Stored::plain(b"value"));
    let error = read_value(Arc::from(bytes), PLACE.0, PLACE.1, b"kez").unwrap_err();
    assert!(error.to_string().contains("the value of `kez`"), "{error}");
}
