//! One writer, several readers: a read sees everything that was published before it started.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use bifold_contract::{Entry, SeqNo};

use super::Memtable;
use crate::cursor::Cursor;

const ENTRIES: u64 = if cfg!(miri) { 150 } else { 60_000 };
const READERS: u64 = if cfg!(miri) { 2 } else { 3 };

/// The key that entry `seqno` writes; a quarter of the entries write an existing key. Ascending, scattered and
/// descending keys without a common prefix, so that every kind of split and rewrite happens.
fn key_of(seqno: SeqNo) -> Vec<u8> {
    let n = if seqno.is_multiple_of(4) { seqno / 2 } else { seqno };
    match n % 3 {
        0 => format!("ascending {n:020}").into_bytes(),
        1 => n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
        _ => format!("descending {:020}", ENTRIES - n).into_bytes(),
    }
}

#[test]
fn readers_see_everything_published_before_they_started() {
    let memtable = Arc::new(Memtable::new());
    let published = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let (memtable, published) = (Arc::clone(&memtable), Arc::clone(&published));
            thread::spawn(move || read_until_complete(&memtable, &published, reader))
        })
        .collect();
    for seqno in 1..=ENTRIES {
        let payload = seqno.to_le_bytes();
        memtable.writer().insert(&Entry::inline(&key_of(seqno), seqno, &payload));
        published.store(seqno, Ordering::Release);
        // On few cores the readers see intermediate states only if the writer yields.
        if seqno % (ENTRIES / 50) == 0 {
            thread::yield_now();
        }
    }
    for reader in readers {
        reader.join().unwrap();
    }
}

fn read_until_complete(memtable: &Arc<Memtable>, published: &AtomicU64, reader: u64) {
    let mut cursor = memtable.cursor();
    let mut random = reader + 1;
    loop {
        let snapshot = published.load(Ordering::Acquire);
        for _ in 0..if cfg!(miri) { 4 } else { 300 } {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A race would most likely lose the newest entries, so these are checked most often.
            let back = (random >> 33) % (1 << (random >> 60)).min(snapshot.max(1));
            check_key(memtable, published, snapshot.saturating_sub(back));
        }
        let (mut seen, mut last) = (0, None);
        let backward = (random >> 40).is_multiple_of(2);
        if backward { cursor.last() } else { cursor.first() }.unwrap();
        while let Some(entry) = cursor.entry() {
            seen += u64::from(entry.seqno <= snapshot);
            assert_eq!(entry.payload, entry.seqno.to_le_bytes(), "a version is complete when it is visible");
            let here = (entry.key.to_vec(), u64::MAX - entry.seqno);
            assert!(last.is_none_or(|last| if backward { here < last } else { here > last }), "out of order");
            last = Some(here);
            if backward { cursor.prev() } else { cursor.next() }.unwrap();
        }
        assert_eq!(seen, snapshot, "an iteration sees each published entry once");
        if snapshot == ENTRIES {
            return;
        }
    }
}

/// Checks that the published entry `seqno` is found, and that the newest version of its key is not older.
fn check_key(memtable: &Memtable, published: &AtomicU64, seqno: SeqNo) {
    if seqno == 0 {
        return;
    }
    let key = key_of(seqno);
    let then = memtable.get(&key, seqno).unwrap_or_else(|| panic!("entry {seqno} is missing"));
    assert_eq!((then.seqno, then.payload), (seqno, &seqno.to_le_bytes()[..]));
    let now = published.load(Ordering::Acquire);
    let newest = memtable.get(&key, now).unwrap_or_else(|| panic!("entry {seqno} is missing at {now}"));
    assert!(newest.seqno >= seqno && newest.key == key);
}

#[test]
fn writers_take_turns() {
    let memtable = Arc::new(Memtable::new());
    let each = if cfg!(miri) { 20 } else { 2000 };
    let write = |memtable: &Memtable| {
        for _ in 0..each {
            let mut writer = memtable.writer();
            let seqno = memtable.max_seqno().unwrap_or(0) + 1;
            writer.insert(&Entry::inline(&seqno.to_be_bytes(), seqno, b""));
        }
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| write(&memtable));
        }
    });
    assert_eq!(memtable.entries(), 3 * each);
    assert!((1..=3 * each).all(|seqno| memtable.get(&seqno.to_be_bytes(), seqno).is_some()));
}
