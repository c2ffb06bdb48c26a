use std::path::{Path, PathBuf};

use super::*;

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bifold-lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn answers_like_a_map(name: &str, open: impl Fn(&Path) -> Box<dyn Store>) {
    let scratch = Scratch::new(name);
    let store = open(&scratch.0);
    let mut pairs = Pairs::default();
    for n in 0..100_u8 {
        pairs.push(&[b'k', n], &[n; 50]);
    }
    store.put_all(&pairs).unwrap();
    store.put(b"k\x05", b"new").unwrap();
    store.delete(b"k\x07").unwrap();
    store.flush().unwrap();
    store.wait_idle().unwrap();
    store.compact().unwrap();

    let get = |key: &[u8]| {
        let mut value = None;
        let there = store.get(key, &mut |v| value = Some(v.to_vec())).unwrap();
        assert_eq!(there, value.is_some());
        value
    };
    assert_eq!(get(b"k\x05").as_deref(), Some(&b"new"[..]));
    assert_eq!(get(b"k\x07"), None);
    assert_eq!(get(b"k\x63").as_deref(), Some(&[99; 50][..]));

    let mut scanned = Vec::new();
    let found = store.scan(b"k\x04", 3, &mut |k, v| scanned.push((k[1], v.len()))).unwrap();
    assert_eq!((found, scanned), (3, vec![(4, 50), (5, 3), (6, 50)]));
    assert_eq!(store.scan(b"k\x62", 10, &mut |_, _| ()).unwrap(), 2);

    let totals = store.totals();
    assert!(totals.written.values().sum::<u64>() >= 5000, "{totals:?}");
    store.close().unwrap();
}

#[test]
fn bifold_answers_like_a_map() {
    answers_like_a_map("bifold", |dir| Box::new(bifold::BifoldStore::open(dir, ::bifold::Options::default()).unwrap()));
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_answers_like_a_map() {
    answers_like_a_map("rocksdb", |dir| Box::new(rocksdb::RocksDbStore::open(dir, Default::default()).unwrap()));
}

#[cfg(feature = "rocksdb")]
#[test]
fn blobdb_answers_like_a_map_and_counts_what_its_blob_files_take() {
    use super::rocksdb::{Blobs, RocksDbOptions, RocksDbStore};
    let with =
        |min_bytes| RocksDbOptions { blobs: Some(Blobs { min_bytes, ..Blobs::default() }), ..Default::default() };
    answers_like_a_map("blobdb", |dir| Box::new(RocksDbStore::open(dir, with(20)).unwrap()));

    let scratch = Scratch::new("blobdb-files");
    let store = RocksDbStore::open(&scratch.0, with(20)).unwrap();
    (0..100_u8).for_each(|n| store.put(&[b'k', n], &[n; 1000]).unwrap());
    store.flush().unwrap();
    let blobs = std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap());
    let blobs = blobs.filter(|entry| entry.path().extension().is_some_and(|e| e == "blob"));
    let bytes: u64 = blobs.map(|entry| entry.metadata().unwrap().len()).sum();
    let written = store.totals().written["flush"];
    assert!(bytes > 100_000 && written > bytes, "{bytes} in blob files, {written} counted");
    assert!(store.get(b"k\x05", &mut |value| assert_eq!(value, [5; 1000])).unwrap());
    assert!(store.totals().read_for_user >= 1000, "{:?}", store.totals());
}

#[test]
fn pairs_come_back_in_order_and_their_buffer_is_used_again() {
    let mut pairs = Pairs::default();
    for round in 0..2_u8 {
        assert!(pairs.is_empty());
        pairs.push(b"a", &[round; 3]);
        pairs.push(b"bb", b"");
        assert_eq!(pairs.len(), 2);
        assert!(pairs.iter().eq([(&b"a"[..], &[round; 3][..]), (b"bb", b"")]));
        pairs.clear();
    }
}
