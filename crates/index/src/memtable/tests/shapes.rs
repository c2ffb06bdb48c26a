//! Keys of one difficult shape at a time, and enough of them for a tree of several levels.

use std::sync::Arc;

use bifold_contract::{Entry, SeqNo};

use super::{Memtable, check, filled};
use crate::cursor::Cursor;

/// Enough for four levels; two under Miri.
const KEYS: u64 = if cfg!(miri) { 60 } else { 3000 };

/// A pseudo-random number.
fn scattered(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn check_keys(keys: impl IntoIterator<Item = Vec<u8>>) -> Arc<Memtable> {
    let (memtable, model) = filled(&keys.into_iter().collect::<Vec<_>>());
    check(&memtable, &model);
    memtable
}

#[test]
fn ascending_decimals() {
    check_keys((0..KEYS).map(|n| format!("{n:024}").into_bytes()));
}

#[test]
fn descending_decimals() {
    check_keys((0..KEYS).rev().map(|n| format!("{n:024}").into_bytes()));
}

#[test]
fn hashed_decimals_after_a_common_prefix() {
    check_keys((0..KEYS).map(|n| format!("user{:020}", scattered(n)).into_bytes()));
}

#[test]
fn random_bytes() {
    check_keys((0..KEYS).map(|n| scattered(n).to_be_bytes().repeat(3)));
}

#[test]
fn ascending_in_several_places_alternately() {
    check_keys((0..KEYS).map(|n| format!("place {} entry {:09}", scattered(n) % 5, n).into_bytes()));
}

#[test]
fn the_same_few_keys_again_and_again() {
    check_keys((0..KEYS / 8).map(|n| format!("{}", scattered(n) % 20).into_bytes()));
}

#[test]
fn no_insertion_order_takes_much_more_memory_than_another() {
    type InsertionOrder = fn(u64, u64) -> u64;
    let count = if cfg!(miri) { 60 } else { 2000 };
    let orders: [(&str, InsertionOrder); 6] = [
        ("ascending", |n, _| n),
        ("descending", |n, count| count - n),
        ("scattered", |n, _| scattered(n)),
        ("descending towards a full leaf", |n, count| if n < 14 { n } else { 14 + count - n }),
        ("from both ends", |n, count| if n % 2 == 0 { n } else { 2 * count - n }),
        ("from the middle", |n, count| if n % 2 == 0 { count + n } else { count - n }),
    ];
    for (name, order) in orders {
        let memtable = check_keys((0..count).map(|n| order(n, count).to_be_bytes().to_vec()));
        // 48 B of heads and key, 3 B of payload on average, and twice 256 B of leaves per seven keys.
        let bytes = memtable.data_bytes() / count as usize;
        assert!(bytes < 160, "{name}: {bytes} bytes per entry");
    }
}

#[test]
fn each_key_is_a_prefix_of_the_next() {
    check_keys((1..KEYS as usize / 10).map(|len| vec![b'a'; len]));
    check_keys((1..KEYS as usize / 10).rev().map(|len| vec![0; len]));
}

#[test]
fn all_keys_of_one_and_two_bytes() {
    let bytes = if cfg!(miri) { 8 } else { 40 };
    let two = (0..bytes).flat_map(|a| (0..bytes).map(move |b| vec![a, b]));
    check_keys(two.chain((0..bytes).map(|a| vec![a])));
}

#[test]
fn clusters_that_share_much_more_than_their_fences() {
    // The fences of most nodes differ early, while the keys between them share 40 bytes.
    let cluster = |n: u64| format!("{}{:040}{:05}", scattered(n) % 3, 0, scattered(n) % 50_000).into_bytes();
    check_keys((0..KEYS / 2).map(cluster));
}

#[test]
fn every_key_breaks_the_prefix_of_the_previous_ones() {
    check_keys((1..KEYS as usize / 20).rev().map(|shared| [vec![b'm'; 4 * shared], vec![b'z']].concat()));
    check_keys((1..KEYS as usize / 20).rev().map(|shared| [vec![b'm'; 4 * shared], vec![b'a']].concat()));
}

#[test]
fn the_longest_keys() {
    let count = if cfg!(miri) { 3 } else { 40 };
    let long = |n: u64| {
        let mut key = vec![b'k'; 64 << 10];
        let end = key.len();
        key[end - 8..].copy_from_slice(&scattered(n).to_be_bytes());
        key
    };
    let keys: Vec<_> = (0..count).map(long).collect();
    let (memtable, model) = filled(&keys);
    let mut cursor = memtable.cursor();
    cursor.first().unwrap();
    assert!(super::walk(&mut cursor, Cursor::next) == model.all());
    assert!(keys.iter().all(|key| memtable.get(key, SeqNo::MAX).is_some()));
    assert!(memtable.get(&long(count), SeqNo::MAX).is_none());
}

#[test]
fn large_payloads_get_their_own_chunk_and_waste_no_memory() {
    let memtable = Memtable::new();
    let payload = vec![7; 3 << 20];
    memtable.writer().insert(&Entry::inline(b"small", 1, b"x"));
    memtable.writer().insert(&Entry::inline(b"large", 2, &payload));
    memtable.writer().insert(&Entry::inline(b"small", 3, b"y"));
    assert_eq!(memtable.get(b"large", 3).unwrap().payload, payload);
    assert_eq!(memtable.get(b"small", 2).unwrap().payload, b"x");
    assert!(memtable.bytes() < payload.len() + (16 << 10), "{} bytes", memtable.bytes());
}

#[test]
fn a_cursor_inside_a_leaf_that_is_split_continues() {
    let keys: Vec<_> = (0..if cfg!(miri) { 20 } else { 40 }).map(|n| vec![n * 4]).collect();
    let (memtable, _) = filled(&keys);
    let placed = |key: &[u8]| {
        let mut cursor = memtable.cursor();
        cursor.seek(key, SeqNo::MAX).unwrap();
        cursor
    };
    let mut cursors: Vec<_> = keys.iter().map(|key| (placed(key), placed(key))).collect();
    // All leaves are split several times, below, above and around the cursors.
    for n in 0..KEYS {
        memtable.writer().insert(&Entry::inline(&scattered(n).to_be_bytes(), 100 + n, b""));
    }
    for (at, (forward, backward)) in cursors.iter_mut().enumerate() {
        let old = |entries: Vec<super::Owned>| {
            entries.into_iter().filter(|entry| entry.1 <= 40).map(|entry| entry.0).collect::<Vec<_>>()
        };
        assert_eq!(old(super::walk(forward, Cursor::next)), keys[at..], "forward from {at}");
        let reversed: Vec<_> = keys[..=at].iter().rev().cloned().collect();
        assert_eq!(old(super::walk(backward, Cursor::prev)), reversed, "backward from {at}");
    }
}
