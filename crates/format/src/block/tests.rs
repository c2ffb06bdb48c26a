use bifold_contract::{Entry, Kind, MAX_KEY_LEN};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    key: Vec<u8>,
    seqno: SeqNo,
    kind: Kind,
    payload: Vec<u8>,
}

impl Owned {
    fn entry(&self) -> Entry<'_> {
        Entry { key: &self.key, seqno: self.seqno, kind: self.kind, payload: &self.payload }
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 1..12);
    let head = prop_oneof![Just("user:0000"), Just("us"), Just("")];
    (head, tail).prop_map(|(head, tail)| [head.as_bytes(), &tail].concat())
}

fn entries() -> impl Strategy<Value = Vec<Owned>> {
    let payload = prop_oneof![20 => 0usize..20, 2 => 127usize..129, 1 => Just(17_000)];
    let entry = (key(), 1u64..6, 0u8..3, payload);
    prop::collection::vec(entry, 1..50).prop_map(|entries| {
        let mut entries: Vec<Owned> = entries
            .into_iter()
            .map(|(key, seqno, kind, len)| Owned {
                key,
                seqno,
                kind: Kind::from_byte(kind).unwrap(),
                payload: vec![seqno as u8; len],
            })
            .collect();
        entries.sort_by(|a, b| a.key.cmp(&b.key).then(b.seqno.cmp(&a.seqno)));
        entries.dedup_by(|a, b| a.key == b.key && a.seqno == b.seqno);
        entries
    })
}

fn block_of(entries: &[Owned], interval: usize) -> Value {
    let mut out = b"whatever comes before".to_vec();
    let mut builder = BlockBuilder::new(interval);
    builder.begin(&out);
    entries.iter().for_each(|entry| builder.add(&entry.entry(), &mut out));
    let expected = builder.bytes(&out);
    let start = builder.finish(&mut out);
    assert_eq!(out.len() - start, expected);
    assert_eq!(builder.last_key(), entries[entries.len() - 1].key);
    Value::copy_of(&out[start..])
}

fn here(cursor: &BlockCursor) -> Option<Owned> {
    let entry = cursor.entry()?;
    assert_eq!(cursor.payload().unwrap(), entry.payload);
    Some(Owned { key: entry.key.into(), seqno: entry.seqno, kind: entry.kind, payload: entry.payload.into() })
}

fn cursor_of(block: &Value) -> BlockCursor {
    let mut cursor = BlockCursor::default();
    cursor.set_block(block.clone()).unwrap();
    cursor
}

proptest! {
    #[test]
    fn walks_in_both_directions_find_every_entry(entries in entries(), interval in 1usize..20, turns: Vec<bool>) {
        let block = block_of(&entries, interval);
        let mut cursor = cursor_of(&block);
        prop_assert_eq!(here(&cursor), None);
        cursor.first().unwrap();
        for entry in &entries {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            cursor.next().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
        cursor.last().unwrap();
        for entry in entries.iter().rev() {
            prop_assert_eq!(here(&cursor), Some(entry.clone()));
            cursor.prev().unwrap();
        }
        prop_assert_eq!(here(&cursor), None);
        cursor.first().unwrap();
        let mut at = 0usize;
        for forward in turns {
            if forward { cursor.next().unwrap() } else { cursor.prev().unwrap() }
            at = if forward { at + 1 } else { at.wrapping_sub(1) };
            prop_assert_eq!(here(&cursor), entries.get(at).cloned());
            if at >= entries.len() {
                break;
            }
        }
    }

    #[test]
    fn seeks_find_what_counting_finds(entries in entries(), interval in 1usize..20, key in key(), seqno in 0u64..7) {
        let block = block_of(&entries, interval);
        let mut cursor = cursor_of(&block);
        let keys: Vec<_> = entries.iter().map(|e| e.key.clone()).chain([key]).collect();
        for key in &keys {
            let is_before = |e: &&Owned| e.key.cmp(key).then(seqno.cmp(&e.seqno)).is_lt();
            let at = entries.iter().take_while(is_before).count();
            cursor.seek(key, seqno).unwrap();
            prop_assert_eq!(here(&cursor), entries.get(at).cloned());
            cursor.prev().unwrap();
            if at < entries.len() {
                prop_assert_eq!(here(&cursor), at.checked_sub(1).map(|at| entries[at].clone()));
            }
            let last_before = entries.iter().rfind(|e| e.key < *key);
            cursor.seek_before(key).unwrap();
            prop_assert_eq!(here(&cursor), last_before.cloned());

            match get(&block, key, seqno).unwrap() {
                Answer::Found(found) => {
                    let entry = &entries[at];
                    prop_assert_eq!(&entry.key, key);
                    prop_assert!(entry.seqno == found.seqno && entry.kind == found.kind);
                    prop_assert!(block[found.payload] == entry.payload[..]);
                }
                Answer::Absent => prop_assert!(entries[..].get(at).is_none_or(|e| e.key != *key)),
                Answer::EndsInKey => prop_assert!(at == entries.len() && entries[at - 1].key == *key),
            }
        }
    }

    #[test]
    fn blocks_are_in_order_as_they_were_written_and_not_otherwise(
        entries in entries(), interval in 1usize..20, cut: prop::sample::Index,
    ) {
        prop_assume!(entries.len() > 1);
        let cut = 1 + cut.index(entries.len() - 1);
        let [before, after] = [&entries[..cut], &entries[cut..]].map(|entries| block_of(entries, interval));
        let mut order = StreamOrder::default();
        prop_assert_eq!(order.check(&before), Ok(&entries[0].key[..]));
        prop_assert_eq!(order.last_key(), &entries[cut - 1].key[..]);
        prop_assert_eq!(order.check(&after), Ok(&entries[cut].key[..]));
        prop_assert!(order.check(&before).is_err(), "it begins before the last entry");
        prop_assert!(order.check(&before).is_ok(), "after an error a block may begin anywhere");
        order.forget();
        prop_assert!(order.check(&before).is_ok());
        // With one restart, since a head is what follows the prefix that all keys in order have.
        let mut swapped = entries;
        swapped.swap(cut - 1, cut);
        prop_assert!(StreamOrder::default().check(&block_of(&swapped, usize::MAX)).is_err());
    }

    #[test]
    fn a_damaged_block_answers_or_errs_and_never_panics(
        entries in entries(), interval in 1usize..20, key in key(), at: prop::sample::Index, byte: u8,
        lost in 0usize..40,
    ) {
        let mut bytes = block_of(&entries, interval).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(bytes.len() - lost.saturating_sub(20).min(bytes.len()));
        exercise(Value::from(bytes), &key);
    }

    #[test]
    fn bytes_that_are_not_a_block_never_panic(mut bytes: Vec<u8>, restarts in 0u8..5, prefix in 0u8..9, key in key()) {
        bytes.extend_from_slice(&[prefix, 0, 0, 0, restarts, 0, 0, 0]);
        exercise(Value::from(bytes), &key);
    }
}

/// A walk through the operands of a key asks for the number below that of the last one, and there is none below 0.
#[test]
fn an_entry_without_a_number_is_damage() {
    let entry = |seqno| Owned { key: b"key".to_vec(), seqno, kind: Kind::Operand, payload: Vec::new() };
    let block = block_of(&[entry(1), entry(0)], 16);
    assert!(matches!(get(&block, b"key", 1), Ok(Answer::Found(_))));
    assert!(get(&block, b"key", 0).is_err() && StreamOrder::default().check(&block).is_err());
    assert!(cursor_of(&block).last().is_err());
}

/// Else a small block would take any memory, if all its keys share what only the first one has.
#[test]
fn a_step_backward_puts_no_more_keys_together_than_an_interval_can_have() {
    let sharing = |count: u32| {
        let (mut out, mut builder, mut key) = (Vec::new(), BlockBuilder::new(usize::MAX), vec![7; MAX_KEY_LEN]);
        builder.begin(&out);
        for number in 0..count {
            key[MAX_KEY_LEN - 4..].copy_from_slice(&number.to_be_bytes());
            builder.add(&Entry::inline(&key, 1, b""), &mut out);
        }
        builder.finish(&mut out);
        Value::copy_of(&out)
    };
    cursor_of(&sharing(1024)).last().unwrap();
    let block = sharing(1025);
    let mut cursor = cursor_of(&block);
    assert!(cursor.last().is_err() && !cursor.is_placed());
    search::check_entries(&block).unwrap();
}

fn exercise(block: Value, key: &[u8]) {
    let _any_answer = (get(&block, key, 3), StreamOrder::default().check(&block).is_ok());
    let mut cursor = BlockCursor::default();
    if cursor.set_block(block).is_err() {
        return;
    }
    type Move<'a> = &'a dyn Fn(&mut BlockCursor) -> Result<(), Corruption>;
    let moves: [Move<'_>; 6] =
        [&|c| c.seek(key, 3), &|c| c.seek_before(key), &|c| c.last(), &|c| c.prev(), &|c| c.first(), &|c| c.next()];
    for first in moves {
        for second in moves {
            // Damaged restart offsets can point backward. A walk may never end, so it is not followed to its end.
            let _either = first(&mut cursor).and_then(|()| second(&mut cursor)).map(|()| here(&cursor));
        }
    }
}
