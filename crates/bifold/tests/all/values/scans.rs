//! How far scans read ahead.

use std::{
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold::{Db, Env, Keyspace, PlacementKind};
use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use super::{SEPARATED, key, separated, update_all, value};
use crate::support::{TempDir, entries};

const KEYS: u32 = 2000;

/// A database whose values seem to be on the device. Its value files have the values in the order of the keys.
fn cold(placement: PlacementKind) -> (Db, FaultyFs) {
    let faulty = FaultyFs::over_memory(MemoryFs::default());
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let db = Db::open_in(env, Path::new("/db"), separated(placement)).unwrap();
    (0..KEYS).for_each(|n| db.put(key(n), value(n, 1)).unwrap());
    db.flush().unwrap();
    db.wait_idle().unwrap();
    faulty.seem_cold();
    (db, faulty)
}

/// The bytes of value files that were announced.
fn announced(faulty: &FaultyFs) -> u64 {
    announced_of("val", faulty)
}

/// The bytes of files of this kind that were announced.
fn announced_of(kind: &str, faulty: &FaultyFs) -> u64 {
    let all = faulty.take_announced();
    all.iter().filter(|(path, ..)| path.extension().is_some_and(|of| of == kind)).map(|(.., len)| len).sum()
}

/// At most so many bytes of a record are not value.
const FRAME_BYTES: u64 = 40;

/// Bytes of the values of these entries.
fn bytes(from: u32, entries: u32) -> u64 {
    (from..from + entries).map(|n| value(n, 1).len() as u64).sum()
}

#[test]
fn a_limit_is_kept_from_both_ends() {
    for placement in SEPARATED {
        let (db, _) = cold(placement);
        for limit in [0, 1, 2, 17, 300] {
            let found = |range: &mut dyn Iterator<Item = bifold::Result<bifold::Pair>>| -> Vec<_> {
                range.map(|pair| pair.unwrap().into_parts().unwrap()).collect()
            };
            let mut expected: Vec<_> = (50..50 + limit).map(|n| (key(n).into_bytes().into(), value(n, 1))).collect();
            let as_found = |all: &[(Box<[u8]>, Vec<u8>)]| -> Vec<_> {
                all.iter().map(|(key, value)| (key.clone(), bifold::Value::from(&value[..]))).collect()
            };
            assert_eq!(found(&mut db.range(key(50)..).limit(limit as usize)), as_found(&expected));
            assert_eq!(
                found(&mut db.range(key(50)..).limit(limit as usize + 1).limit(limit as usize).take(400)).len(),
                limit as usize
            );
            expected.reverse();
            assert_eq!(found(&mut db.range(..key(50 + limit)).rev().take(limit as usize)), as_found(&expected));
            assert_eq!(found(&mut db.range(..key(50 + limit)).limit(limit as usize).rev()), as_found(&expected));
        }
        let (mut both, mut keys) = (db.range(key(10)..key(20)).limit(5), Vec::new());
        while let Some(pair) = if keys.len() % 2 == 0 { both.next() } else { both.next_back() } {
            keys.push(pair.unwrap().key().to_vec());
        }
        assert_eq!(keys, [10, 19, 11, 18, 12].map(|n| key(n).into_bytes()), "{placement:?}");
    }
}

#[test]
fn nothing_is_announced_beyond_a_limit() {
    for placement in SEPARATED {
        let (db, faulty) = cold(placement);
        for from in [0, 100, 700, 701] {
            let range = db.range(key(from)..).limit(50);
            assert_eq!(range.map(|pair| pair.unwrap().value().unwrap().len() as u64).sum::<u64>(), bytes(from, 50));
            let announced = announced(&faulty);
            let asked = bytes(from, 50);
            assert!(
                (asked / 2..asked + 50 * FRAME_BYTES).contains(&announced),
                "{placement:?}: {announced} of {asked}"
            );
        }
    }
}

#[test]
fn scans_of_one_length_announce_what_they_use() {
    for placement in SEPARATED {
        let (db, faulty) = cold(placement);
        let scan = |from: u32, entries: u32| {
            let _earlier = faulty.take_announced();
            let range = db.range(key(from)..).take(entries as usize);
            assert_eq!(
                range.map(|pair| pair.unwrap().value().unwrap().len() as u64).sum::<u64>(),
                bytes(from, entries)
            );
            (announced(&faulty), bytes(from, entries))
        };
        (0..30).for_each(|n| _ = scan(n * 17, 50));
        let (announced, asked) = scan(600, 50);
        assert!((asked..asked + 50 * FRAME_BYTES).contains(&announced), "{placement:?}: {announced} of {asked}");
        // A longer one goes on, and announces at most half as much again as it uses.
        let (announced, asked) = scan(300, 600);
        assert!((asked * 9 / 10..asked * 2).contains(&announced), "{placement:?}: {announced} of {asked}");
    }
}

#[test]
fn values_of_a_multi_get_are_announced() {
    for placement in SEPARATED {
        let (db, faulty) = cold(placement);
        let keys = || (0..300).map(|n| n * 13 % (KEYS + 500));
        let found = db.multi_get(keys().map(key)).unwrap();
        for (n, found) in keys().zip(found) {
            assert_eq!(found.as_deref(), (n < KEYS).then(|| value(n, 1)).as_deref(), "{placement:?}: key {n}");
        }
        let asked: u64 = keys().filter(|&n| n < KEYS).map(|n| bytes(n, 1)).sum();
        assert!(announced(&faulty) >= asked, "{placement:?}");
    }
}

#[test]
fn a_multi_get_reads_values_that_are_next_to_each_other_by_one_call() {
    for placement in [PlacementKind::WiscKey, PlacementKind::NovKv, PlacementKind::Streams] {
        let (db, _) = cold(placement);
        let reads = || db.stats().io.iter().find(|source| source.source == "get").unwrap().reads;
        let reads_of = |read: &dyn Fn()| {
            let before = reads();
            read();
            reads() - before
        };
        let keys = || (700..764).map(key);
        let one_by_one = || keys().for_each(|key| assert!(db.get(key).unwrap().is_some()));
        let together = || {
            let found = db.multi_get(keys()).unwrap();
            assert!(found.iter().zip(700..).all(|(found, n)| found.as_deref() == Some(&value(n, 1))));
        };
        // Blocks of tables are in the cache then.
        together();
        assert_eq!(reads_of(&one_by_one), 64, "{placement:?}");
        // They are in a few files.
        let reads = reads_of(&together);
        assert!((1..8).contains(&reads), "{placement:?}: {reads} reads");
    }
}

/// The first value that is asked for reads its neighbours, too.
#[test]
fn a_visit_passes_over_no_value_because_its_neighbours_could_not_be_read() {
    for placement in [PlacementKind::WiscKey, PlacementKind::NovKv, PlacementKind::Streams] {
        let (db, faulty) = cold(placement);
        // The second one knows that values come from the device.
        for visit in ["first", "second"] {
            let fails = AtomicBool::new(true);
            faulty.decide_by(Box::new(move |call| {
                let is_of_values = call.op == "read" && call.path.extension().is_some_and(|of| of == "val");
                (is_of_values && fails.swap(false, Relaxed)).then_some(FaultKind::EIO)
            }));
            let (mut range, mut seen, mut errors) = (db.iter().limit(KEYS as usize), Vec::new(), 0);
            let mut visit_on = || {
                range.visit(|key, value| {
                    seen.push((key.to_vec(), value.to_vec()));
                    ControlFlow::Continue(())
                })
            };
            while visit_on().is_err() {
                errors += 1;
            }
            assert_eq!((errors, seen.len()), (1, KEYS as usize), "{placement:?}, {visit}");
            let all = (0..KEYS).map(|n| (key(n).into_bytes(), value(n, 1)));
            assert!(seen.into_iter().eq(all), "{placement:?}, {visit}");
        }
    }
}

#[test]
fn blocks_of_a_multi_get_are_announced() {
    let (db, faulty) = cold(PlacementKind::Inline);
    let keys = || (0..300).map(|n| n * 13 % KEYS);
    assert!(db.multi_get(keys().map(key)).unwrap().iter().zip(keys()).all(|(v, n)| v.as_deref() == Some(&value(n, 1))));
    let asked: u64 = keys().map(|n| bytes(n, 1)).sum();
    assert!(announced_of("tbl", &faulty) >= asked / 2, "some blocks were cached by earlier keys");
}

#[test]
fn keys_alone_announce_no_values() {
    for placement in SEPARATED {
        let (db, faulty) = cold(placement);
        update_all(&db, KEYS, 1);
        let _earlier = faulty.take_announced();
        assert_eq!(db.range(key(0)..).filter(|pair| pair.as_ref().unwrap().key() >= &b""[..]).count(), KEYS as usize);
        assert_eq!(announced(&faulty), 0, "{placement:?}");
    }
}

/// Several runs, each with a share of the entries; a block of each is read in part.
#[test]
fn blocks_of_tables_are_announced_once_scans_come_from_the_device() {
    let faulty = FaultyFs::over_memory(MemoryFs::default());
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let mut options = separated(PlacementKind::Inline);
    options.memtable_bytes = 1 << 20;
    options.keyspace.table_bytes = 1 << 20;
    let block_bytes = options.keyspace.block_bytes as u64;
    let db = Db::open_in(env, Path::new("/db"), options).unwrap();
    let filled = |part: u32| (0..KEYS).filter(|n| n % 3 == part).for_each(|n| db.put(key(n), value(n, 1)).unwrap());
    (0..3).for_each(|part| {
        filled(part);
        db.flush().unwrap();
    });
    db.wait_idle().unwrap();
    let total = |range: &mut dyn Iterator<Item = bifold::Result<bifold::Pair>>| -> u64 {
        range.map(|pair| pair.unwrap().value().unwrap().len() as u64).sum()
    };
    let forwards = |from: u32, limit: usize| {
        assert_eq!(total(&mut db.range(key(from)..).limit(limit)), bytes(from, limit as u32));
    };
    let backwards = |from: u32, limit: usize| {
        let range = db.range(..key(from + limit as u32)).limit(limit);
        assert_eq!(total(&mut range.rev()), bytes(from, limit as u32));
    };
    let ways: [&dyn Fn(u32, usize); 2] = [&forwards, &backwards];
    ways.iter().for_each(|scan| (0..32).for_each(|n| scan(n * 13, 40)));
    assert_eq!(announced_of("tbl", &faulty), 0, "in memory");
    faulty.seem_cold();
    for scan in ways {
        // One scan in 17 looks.
        (0..100).for_each(|n| scan(600 + n * 7, 40));
        assert!(announced_of("tbl", &faulty) > 0);
        scan(1500, 100);
        let (announced, asked) = (announced_of("tbl", &faulty), bytes(1500, 100));
        let most = asked + 100 * FRAME_BYTES + 8 * block_bytes;
        assert!((asked / 2..most).contains(&announced), "{announced} of {asked}");
    }
}

#[test]
fn scans_that_follow_rows_have_addresses_renewed() {
    has_addresses_renewed(|keyspace| assert_eq!(entries(keyspace.range::<&str>(..)).len(), KEYS as usize));
}

#[test]
fn gets_that_follow_rows_have_addresses_renewed() {
    has_addresses_renewed(|keyspace| (0..KEYS).for_each(|n| assert!(keyspace.get(key(n)).unwrap().is_some())));
}

#[test]
fn multi_gets_that_follow_rows_have_addresses_renewed() {
    let all = || (0..KEYS).map(key);
    has_addresses_renewed(|keyspace| assert!(keyspace.multi_get(all()).unwrap().iter().all(Option::is_some)));
}

/// GC also moves values whose entries are in memtables still.
#[test]
fn gets_of_entries_in_memtables_have_addresses_renewed_once() {
    let get_all = |keyspace: &Keyspace| (0..KEYS).for_each(|n| assert!(keyspace.get(key(n)).unwrap().is_some()));
    has_addresses_renewed_with(KEYS / 2, get_all);
}

/// Until tables are rewritten, readers of values that GC has moved follow rows. If each of them is read often enough,
/// all addresses are renewed, though nothing is written, and then it is over.
fn has_addresses_renewed(read_all: impl Fn(&Keyspace)) {
    has_addresses_renewed_with(0, read_all);
}

/// The same while so many entries are in memtables.
fn has_addresses_renewed_with(unflushed: u32, read_all: impl Fn(&Keyspace)) {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), separated(PlacementKind::Streams)).unwrap();
    (0..2).for_each(|round| update_all(&db, KEYS, round));
    db.flush().unwrap();
    db.wait_idle().unwrap();
    update_all(&db, unflushed, 2);
    db.collect_garbage().unwrap();
    let tables = || -> Vec<String> {
        let names = std::fs::read_dir(dir.join("db")).unwrap();
        let mut names: Vec<_> = names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.ends_with(".tbl"));
        names.sort_unstable();
        names
    };
    let read = |times: usize| {
        (0..times).for_each(|_| read_all(db.default_keyspace()));
        db.wait_idle().unwrap();
        tables()
    };
    let before = tables();
    let after = read(40);
    assert!(before.iter().all(|name| !after.contains(name)), "all tables are new: {before:?}, {after:?}");
    assert_eq!(read(80), after, "no row is left to follow");
}
