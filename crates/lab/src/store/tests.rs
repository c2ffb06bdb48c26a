use std::path::{Path, PathBuf};

use ::bifold::{Durability, Options};

use super::{peer::Peer, *};

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

type Open = Box<dyn Fn(&Path, &Options) -> Box<dyn Store>>;

/// Every store built in, by name, with a way to open it.
fn stores() -> Vec<(&'static str, Open)> {
    let bifold: Open =
        Box::new(|dir: &Path, options: &Options| Box::new(bifold::BifoldStore::open(dir, options.clone()).unwrap()));
    let cached: Open =
        Box::new(|dir: &Path, options: &Options| Box::new(cached::CachedStore::open(dir, options.clone()).unwrap()));
    let peers = Peer::ALL.into_iter().filter(|peer| peer.built_in());
    let peers =
        peers.map(|peer| (peer.name(), Box::new(move |dir: &Path, o: &Options| peer.open(dir, o).unwrap()) as Open));
    [("bifold", bifold), (cached::CachedStore::NAME, cached)].into_iter().chain(peers).collect()
}

/// Values from 20 bytes on are separated if a store separates any.
fn options(durability: Durability) -> Options {
    let mut options = Options { durability, ..Options::default() };
    options.keyspace.values.separate_from_bytes = Some(20);
    options
}

fn get(store: &dyn Store, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    let there = store.get(key, &mut |v| value = Some(v.to_vec())).unwrap();
    assert_eq!(there, value.is_some());
    value
}

/// What [`write`] leaves.
fn check(store: &dyn Store) {
    assert_eq!(get(store, b"k\x05").as_deref(), Some(&b"new"[..]));
    assert_eq!(get(store, b"k\x07"), None);
    assert_eq!(get(store, b"k\x08"), None);
    assert_eq!(get(store, b"k\x63").as_deref(), Some(&[99; 50][..]));
    let mut scanned = Vec::new();
    let found = store.scan(b"k\x04", 4, &mut |k, v| scanned.push((k[1], v.len()))).unwrap();
    assert_eq!((found, scanned), (4, vec![(4, 50), (5, 3), (6, 50), (9, 50)]));
    assert_eq!(store.scan(b"k\x62", 10, &mut |_, _| ()).unwrap(), 2);
    assert_eq!(store.scan(b"", 1000, &mut |_, _| ()).unwrap(), 98);
    assert_eq!(store.scan(b"l", 10, &mut |_, _| ()).unwrap(), 0);
    check_backwards(store);
}

fn check_backwards(store: &dyn Store) {
    if store.name().starts_with("over") {
        assert!(matches!(store.scan_back(b"l", 1, &mut |_, _| ()), Err(crate::Failure::Plan(_))));
        return;
    }
    let mut scanned = Vec::new();
    let found = store.scan_back(b"k\x08", 3, &mut |k, v| scanned.push((k[1], v.len()))).unwrap();
    assert_eq!((found, scanned), (3, vec![(6, 50), (5, 3), (4, 50)]));
    assert_eq!(store.scan_back(b"k\x01", 10, &mut |_, _| ()).unwrap(), 2);
    assert_eq!(store.scan_back(b"l", 1000, &mut |_, _| ()).unwrap(), 98);
    assert_eq!(store.scan_back(b"", 10, &mut |_, _| ()).unwrap(), 0);
}

/// Puts, overwrites, deletes, and a batch.
fn write(store: &dyn Store) {
    (0..10_u8).for_each(|n| store.put(&[b'k', n], b"old").unwrap());
    store.delete(b"k\x08").unwrap();
    store.delete(b"not there").unwrap();
    let mut entries = Entries::default();
    (0..100_u8).filter(|&n| n != 8).for_each(|n| entries.push(&[b'k', n], &[n; 50]));
    store.put_all(&entries).unwrap();
    store.put(b"k\x05", b"new").unwrap();
    store.delete(b"k\x07").unwrap();
}

#[test]
fn every_store_answers_like_a_map_and_keeps_its_data() {
    for durability in [Durability::Buffered, Durability::Sync] {
        let options = options(durability);
        for (name, open) in stores() {
            eprintln!("{name}, {durability:?}");
            let scratch = Scratch::new(&format!("{name}-{durability:?}"));
            let store = open(&scratch.0, &options);
            assert_eq!(store.name(), name);
            assert!(!store.version().is_empty() && !store.settings().is_empty());
            let before = store.totals();
            write(&*store);
            check(&*store);
            store.flush().unwrap();
            check(&*store);
            assert!(store.wait_idle(None).unwrap(), "{name}");
            store.compact().unwrap();
            check(&*store);
            let written = |totals: &Totals| totals.written.values().sum::<u64>();
            let (before, after) = (written(&before), written(&store.totals()));
            // Not every system counts them.
            assert!(after >= before + 5000 || measure::called().is_none(), "{before} {after}");
            store.close().unwrap();

            let store = open(&scratch.0, &options);
            check(&*store);
            store.put(b"k\x07", b"again").unwrap();
            assert_eq!(get(&*store, b"k\x07").as_deref(), Some(&b"again"[..]));
            store.close().unwrap();
        }
    }
}

#[test]
fn unusable_keys_are_errors() {
    for peer in Peer::ALL.into_iter().filter(|peer| peer.built_in()) {
        let scratch = Scratch::new(&format!("{peer}-keys"));
        let store = peer.open(&scratch.0, &Options::default()).unwrap();
        let mut entries = Entries::default();
        // LMDB's limit, then fjall's, which is that of all stores over another index.
        let of_fjall = peer.feature() == "fjall" || peer.is_over();
        for (len, refused) in [(511, false), (512, peer == Peer::Lmdb), (65_536, of_fjall)] {
            if peer == Peer::Lmdb && len > 512 {
                continue;
            }
            let key = vec![7_u8; len];
            entries.clear();
            entries.push(&key, b"v");
            assert_eq!(store.put(&key, b"v").is_err(), refused, "{peer}, {len}");
            assert_eq!(store.put_all(&entries).is_err(), refused, "{peer}, {len}");
            assert_eq!(store.delete(&key).is_err(), refused, "{peer}, {len}");
        }
        if peer == Peer::Lmdb {
            let said = store.put(&[7; 512], b"v").unwrap_err().to_string();
            assert_eq!(said, "LMDB: a key of 512 bytes: it has keys of 1 to 511 bytes");
        }
        store.put(b"k", b"v").unwrap();
        assert_eq!(get(&*store, b"k").as_deref(), Some(&b"v"[..]), "{peer}");
        store.close().unwrap();
    }
}

/// The version of a package in Cargo.lock.
#[cfg(any(feature = "fjall", feature = "redb", feature = "rocksdb"))]
fn locked(package: &str) -> String {
    let lock = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock")).unwrap();
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[cfg(any(feature = "fjall", feature = "redb", feature = "rocksdb"))]
#[test]
fn versions_are_those_of_the_lock_file() {
    #[cfg(feature = "fjall")]
    assert_eq!(fjall::VERSION, locked("fjall"));
    #[cfg(feature = "redb")]
    assert_eq!(redb::VERSION, locked("redb"));
    // The library's stands behind the crate's.
    #[cfg(feature = "rocksdb")]
    assert_eq!(Some(rocksdb::VERSION), locked("librocksdb-sys").split('+').nth(1));
}

#[cfg(feature = "rocksdb")]
#[test]
fn blobdb_counts_what_its_blob_files_take() {
    let scratch = Scratch::new("blobdb-files");
    let store = Peer::BlobDb.open(&scratch.0, &options(Durability::Buffered)).unwrap();
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
fn entries_come_back_in_order_and_their_buffer_is_reused() {
    let mut entries = Entries::default();
    for round in 0..2_u8 {
        assert!(entries.is_empty());
        entries.push(b"a", &[round; 3]);
        entries.push(b"bb", b"");
        assert_eq!(entries.len(), 2);
        assert!(entries.iter().eq([(&b"a"[..], &[round; 3][..]), (b"bb", b"")]));
        entries.clear();
    }
}
