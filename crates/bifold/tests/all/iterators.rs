//! Seeks, keys alone, first and last entries, estimates of size, durability of single calls: with every placement.

use std::{ops::ControlFlow, os::unix::fs::FileExt};

use bifold::{Db, Durability, KeyspaceOptions, Options, PlacementKind, Range, options::Values};
use bifold_io::random::Random;

use crate::support::{TempDir, entries, tiny};

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn options(placement: PlacementKind) -> Options {
    let values = Values { separate_from_bytes: Some(64), file_bytes: 16 << 10, ..Values::default() };
    Options { keyspace: KeyspaceOptions { values, ..tiny().keyspace }.with_placement(placement), ..tiny() }
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:04}").into_bytes()
}

/// Every other key, old versions and deleted keys in between, values of both sizes, in memtables and tables.
fn mixed(placement: PlacementKind) -> (TempDir, Db, Entries) {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), options(placement)).unwrap();
    for round in 0..3u64 {
        for n in 0..400 {
            let len = if n % 3 == 0 { 20 } else { 300 };
            db.put(key(n), vec![(n + round) as u8; len]).unwrap();
        }
        match round {
            0 => db.flush().unwrap(),
            1 => db.compact().unwrap(),
            _ => (0..400).filter(|n| n % 2 == 1).for_each(|n| db.delete(key(n)).unwrap()),
        }
    }
    let all = entries(db.iter());
    assert_eq!(all.len(), 200, "{placement:?}");
    (dir, db, all)
}

/// Moves the ends of `range` at random and compares what they yield with `right`.
fn walk(range: &mut Range, right: &Entries, random: &mut Random, what: &str) {
    let (mut first, mut end) = (0, right.len());
    let near = |at: usize, random: &mut Random| match random.below(3) {
        0 => right.get((at + random.below(6) as usize).saturating_sub(3)).map_or_else(|| key(400), |e| e.0.clone()),
        1 => key(random.below(410)),
        _ => [key(random.below(400)), vec![0]].concat(),
    };
    let one = |entry: Option<bifold::Result<bifold::Pair>>| entries(entry.into_iter()).pop();
    for step in 0..200 {
        let is_left = first < end;
        let what = format!("{what}, {first}..{end}");
        match random.below(9) {
            0..3 => {
                assert_eq!(one(range.next()).as_ref(), right.get(first).filter(|_| is_left), "{what}, {step}: next");
                first = if is_left { first + 1 } else { first.max(end) };
            }
            3..6 => {
                end = if is_left { end - 1 } else { end.min(first) };
                assert_eq!(one(range.next_back()).as_ref(), right.get(end).filter(|_| is_left), "{what}, {step}: back");
            }
            6 => {
                let key = near(first, random);
                first = right.partition_point(|(other, _)| *other < key);
                range.seek(&key);
            }
            7 => {
                let key = near(end, random);
                end = right.partition_point(|(other, _)| *other <= key);
                range.seek_for_prev(&key);
            }
            _ => {
                let mut seen = Vec::new();
                let most = random.below(5) as usize + 1;
                range
                    .visit(|key, value| {
                        seen.push((key.to_vec(), value.to_vec()));
                        if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .unwrap();
                let last = if is_left { (first + most).min(end) } else { first };
                assert_eq!(seen, right[first.min(right.len())..last.min(right.len())], "{what}, {step}: visit");
                first = if last - first < most { last.max(end) } else { last };
            }
        }
    }
}

#[test]
fn each_end_yields_what_comes_after_the_key_it_was_sought_at() {
    for placement in PlacementKind::ALL {
        let (_dir, db, all) = mixed(placement);
        let snapshot = db.snapshot();
        for seed in 0..12 {
            let mut random = Random::new(seed);
            let what = format!("{placement:?}, seed {seed}");
            let (from, to) = (random.below(200), 200 + random.below(220));
            let right: Entries = all.iter().filter(|(k, _)| (&key(from)..&key(to)).contains(&k)).cloned().collect();
            // Half of them have values asked for, and read ahead, from the beginning.
            walk(&mut db.range(key(from)..key(to)), &right, &mut random, &what);
            walk(&mut snapshot.range(db.default_keyspace(), key(from)..key(to)), &right, &mut random, &what);
        }
    }
}

#[test]
fn a_seek_keeps_to_the_bounds_and_to_the_limit() {
    for placement in PlacementKind::ALL {
        let (_dir, db, all) = mixed(placement);
        let mut range = db.range(key(100)..key(200)).limit(3);
        range.seek(key(0));
        assert_eq!(range.next().unwrap().unwrap().key(), key(100));
        range.seek_for_prev(key(399));
        assert_eq!(range.next_back().unwrap().unwrap().key(), key(198));
        range.seek(key(50));
        assert_eq!(range.next().unwrap().unwrap().key(), key(100), "again");
        assert!(range.next().is_none() && range.next_back().is_none(), "three were yielded");
        let mut empty = db.range(key(200)..key(100));
        empty.seek(key(150));
        assert!(empty.next().is_none() && empty.next_back().is_none());
        let mut range = db.iter();
        assert_eq!(range.by_ref().count(), all.len());
        range.seek(key(396));
        assert_eq!(entries(range.by_ref()), all[198..], "after the end");
    }
}

/// What the back has read ahead and the front has taken when they met stays yielded.
#[test]
fn entries_that_one_end_has_taken_from_the_other_are_not_yielded_again() {
    for placement in PlacementKind::ALL {
        let (_dir, db, all) = mixed(placement);
        for front in [100, 187, 190, 192, 194, 196, 200] {
            let mut range = db.iter();
            // Asked for values, the back reads ahead.
            let back: Vec<_> = entries((0..4).map_while(|_| range.next_back()));
            assert_eq!(back.len(), 4);
            let taken = entries(range.by_ref().take(front));
            assert!(taken == all[..front.min(196)], "{placement:?} {front}");
            range.seek_for_prev(key(399));
            let rest = entries(std::iter::from_fn(|| range.next_back()));
            assert!(rest.iter().eq(all[front.min(196)..].iter().rev()), "{placement:?} {front}");
        }
    }
}

#[test]
fn keys_are_those_of_the_entries_from_either_end() {
    for placement in PlacementKind::ALL {
        let (_dir, db, all) = mixed(placement);
        let right: Vec<&[u8]> = all.iter().map(|(key, _)| &key[..]).collect();
        let found: Vec<Box<[u8]>> = db.iter().keys().map(Result::unwrap).collect();
        assert!(found.iter().map(|key| &key[..]).eq(right.iter().copied()), "{placement:?}");
        let found: Vec<Box<[u8]>> = db.iter().keys().rev().map(Result::unwrap).collect();
        assert!(found.iter().map(|key| &key[..]).eq(right.iter().rev().copied()), "{placement:?}");
        // Of an iterator that has begun, with values read ahead.
        let mut range = db.iter();
        entries(range.by_ref().take(10));
        let mut keys = range.keys().limit(20);
        keys.seek(key(100));
        keys.seek_for_prev(key(301));
        assert_eq!(*keys.next().unwrap().unwrap(), *key(100));
        assert_eq!(*keys.next_back().unwrap().unwrap(), *key(300));
        assert_eq!(keys.count(), 18);
    }
}

#[test]
fn keys_alone_do_not_notice_damaged_values() {
    for placement in PlacementKind::ALL.into_iter().filter(|&placement| placement != PlacementKind::Inline) {
        let (dir, db, all) = mixed(placement);
        db.compact().unwrap();
        let mut damaged = 0;
        for entry in std::fs::read_dir(dir.join("db")).unwrap() {
            let path = entry.unwrap().path();
            let len = std::fs::metadata(&path).unwrap().len();
            if path.extension().is_some_and(|ext| ext == "val") && len > 1000 {
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(&[0x55; 200], len / 2).unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 0, "{placement:?}");
        assert_eq!(db.iter().keys().filter(|key| key.is_ok()).count(), all.len(), "{placement:?}");
        assert!(db.iter().any(|pair| pair.unwrap().value().is_err()), "{placement:?}: a value was damaged");
    }
}

#[test]
fn first_and_last_entries_are_those_of_an_iterator() {
    for placement in PlacementKind::ALL {
        let (_dir, db, all) = mixed(placement);
        let snapshot = db.snapshot();
        db.put("a", "first").unwrap();
        db.put("z", "last").unwrap();
        let parts = |pair: Option<bifold::Pair>| pair.map(|pair| entries(std::iter::once(Ok(pair))).remove(0));
        let of = |key: &str, value: &str| Some((key.as_bytes().to_vec(), value.as_bytes().to_vec()));
        assert_eq!(parts(db.first_key_value().unwrap()), of("a", "first"));
        assert_eq!(parts(db.last_key_value().unwrap()), of("z", "last"));
        let keyspace = db.default_keyspace();
        assert_eq!(parts(snapshot.first_key_value(keyspace).unwrap()).as_ref(), all.first());
        assert_eq!(parts(snapshot.last_key_value(keyspace).unwrap()).as_ref(), all.last());
        db.delete_range::<&str>(..).unwrap();
        assert!(db.first_key_value().unwrap().is_none() && db.last_key_value().unwrap().is_none());
    }
}

#[test]
fn sizes_of_ranges_are_near_and_add_up() {
    for placement in PlacementKind::ALL {
        let dir = TempDir::new();
        let db = Db::open_with(dir.join("db"), options(placement)).unwrap();
        let mut order: Vec<u64> = (0..4000).collect();
        let mut random = Random::new(7);
        (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
        order.iter().for_each(|&n| db.put(key(n), [n as u8; 200]).unwrap());
        let keyspace = db.default_keyspace();
        for step in ["memtables", "flushed", "compacted"] {
            match step {
                "memtables" => {}
                "flushed" => db.flush().unwrap(),
                _ => db.compact().unwrap(),
            }
            let whole = keyspace.size_of_range::<&[u8]>(..).unwrap();
            assert!((4000 * 200..4000 * 300).contains(&whole.bytes()), "{placement:?}, {step}: {whole:?}");
            // GC of these placements writes the addresses of what it has moved.
            let moves = matches!(placement, PlacementKind::WiscKey | PlacementKind::HashKv | PlacementKind::DiffKv);
            let most = if moves && step == "compacted" { 8000 } else { 4000 };
            assert!((4000..=most).contains(&keyspace.approximate_len().unwrap()), "{placement:?}, {step}");
            let tables: u64 = db.stats().keyspaces[0].levels.iter().map(|level| level.tables).sum();
            let (share, mut sum) = (whole.bytes() / 8, 0);
            for from in (0..4000).step_by(500) {
                let part = keyspace.size_of_range(key(from)..key(from + 500)).unwrap();
                // Half a block of at most 1 KiB for each bound and table, the rest of a memtable, and what differs.
                let error = tables * 1024 + share / 3;
                assert!(part.bytes().abs_diff(share) < error, "{placement:?}, {step}, {from}: {part:?} of {whole:?}");
                sum += part.bytes();
            }
            let apart = sum.abs_diff(whole.bytes()) * 20;
            assert!(apart < whole.bytes(), "{placement:?}, {step}: parts have {sum}, all has {}", whole.bytes());
        }
        assert_eq!(keyspace.size_of_range(key(20)..key(10)).unwrap().bytes(), 0);
        assert_eq!(keyspace.size_of_range(b"z".to_vec()..).unwrap().entries, 0);
        let before = keyspace.approximate_len().unwrap();
        let deletions = 20;
        (0..deletions).for_each(|n| db.delete(key(n)).unwrap());
        if placement == PlacementKind::Inline {
            assert_eq!(keyspace.approximate_len().unwrap(), before - deletions);
        }
    }
}

/// The nodes of a memtable are as full as they can be where keys come in order, and half full at random.
#[test]
fn ranges_of_large_memtables_are_estimated() {
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), Options::default()).unwrap();
    for (name, factor) in [("in order", 1), ("at random", 7919)] {
        let keyspace = db.keyspace(name, KeyspaceOptions::default()).unwrap();
        (0..50_000u64).for_each(|n| keyspace.put((n * factor % 50_000).to_be_bytes(), [1; 20]).unwrap());
        for (from, to) in [(0, 25_000), (10_000, 12_000), (40_000, 50_000), (5_000, 45_000)] {
            let size = keyspace.size_of_range(u64::to_be_bytes(from)..u64::to_be_bytes(to)).unwrap();
            let right = to - from;
            assert!((right / 2..right * 3 / 2).contains(&size.entries), "{name}: {size:?} of {right}");
        }
    }
}

#[test]
fn single_calls_take_a_durability() {
    for placement in PlacementKind::ALL {
        let (_dir, db, _) = mixed(placement);
        // Nothing is due that would sync.
        db.compact().unwrap();
        db.flush().unwrap();
        let keyspace = db.default_keyspace();
        let syncs = |call: &dyn Fn()| {
            let before = db.stats().syncs;
            call();
            db.stats().syncs - before
        };
        for (durability, is_synced) in
            [(Durability::Buffered, false), (Durability::Sync, true), (Durability::Memory, false)]
        {
            assert_eq!(syncs(&|| db.put_with("a", "b", durability).unwrap()) > 0, is_synced);
            let swap = || keyspace.compare_and_swap_with("a", Some(b"b"), Some(b"c"), durability).unwrap();
            assert_eq!(syncs(&|| assert_eq!(swap(), bifold::Swap::Done)) > 0, is_synced);
            assert_eq!(syncs(&|| db.delete_with("a", durability).unwrap()) > 0, is_synced);
            assert_eq!(syncs(&|| db.delete_range_with("a".."b", durability).unwrap()) > 0, is_synced);
            assert_eq!(syncs(&|| db.delete_range_with("b".."a", durability).unwrap()), 0, "nothing to write");
        }
    }
}
