//! Entries that are more than a put: with an instant, operands, ingested, large. Each is read back whatever merges and
//! GC do to it and to its neighbours, and after a crash.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use bifold::{Db, Keyspace};
use bifold_io::memory::MemoryFs;
use bifold_sim::{
    env,
    history::{End, KeyNo, Op, Write, key_bytes},
    judge::no_orphans,
    model::Change,
    value,
};

use crate::{
    Case, MIN_BYTES,
    crashes::survives,
    support::{Bed, spec},
};

/// Values about the threshold, and longer ones.
fn len(key: KeyNo) -> u32 {
    MIN_BYTES - 2 + u32::from(key) * 37 % 240
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn compare(keyspace: &Keyspace, right: &Entries, what: &str) {
    let found: Entries = keyspace
        .iter()
        .map(|entry| entry.and_then(bifold::Pair::into_parts).unwrap())
        .map(|(key, value)| (key.into_vec(), value.to_vec()))
        .collect();
    assert!(found == *right, "{what}: {} entries, {} are right", found.len(), right.len());
    for key in (0..60).map(key_bytes) {
        assert_eq!(keyspace.get(&key).unwrap().as_deref(), right.get(&*key).map(Vec::as_slice), "{what}: {key:?}");
    }
}

/// A third of the entries never expire, a third expire soon, a third late. Their values move before and after that.
pub fn e01_what_expires_goes_with_its_moment_whatever_moves(case: &Case) {
    let env = env::simulated(&MemoryFs::default());
    let open = || Db::open_in(env.clone(), env::DIR, case.options()).unwrap();
    let after = |seconds| Some(UNIX_EPOCH + env.clock.unix_now() + std::time::Duration::from_secs(seconds));
    let moments = [None, after(1_000_000), after(1_000_000_000)];
    let mut db = open();
    let mut right = Entries::new();
    for round in 0..3 {
        for key in 0..45 {
            let (bytes, value) = (key_bytes(key), spec(round * 100 + u32::from(key), len(key)).bytes());
            db.default_keyspace().put_until(&bytes, &value, moments[key as usize % 3]).unwrap();
            right.insert(bytes.into_vec(), value);
        }
        db.collect_garbage().unwrap();
        compare(db.default_keyspace(), &right, "nothing has expired");
    }
    let snapshot = db.snapshot();
    env.clock.sleep(std::time::Duration::from_secs(2_000_000));
    let seen = snapshot.iter(db.default_keyspace()).count();
    assert_eq!(seen, right.len(), "a snapshot keeps what had not expired");
    (1..45).step_by(3).for_each(|key| drop(right.remove(&*key_bytes(key))));
    db.collect_garbage().unwrap();
    compare(db.default_keyspace(), &right, "expired, under a snapshot");
    drop(snapshot);
    db.compact().unwrap();
    db.collect_garbage().unwrap();
    compare(db.default_keyspace(), &right, "expired and collected");
    db.close().unwrap();
    db = open();
    compare(db.default_keyspace(), &right, "opened again");
    db.put(key_bytes(1), "again").unwrap();
    right.insert(key_bytes(1).into_vec(), b"again".to_vec());
    db.compact().unwrap();
    db.collect_garbage().unwrap();
    compare(db.default_keyspace(), &right, "put again");
    db.close().unwrap();
}

/// Operands over values in files, over operands, over nothing; below snapshots; and over what GC has moved.
pub fn e02_operands_are_combined_with_values_that_have_moved(case: &Case) {
    let mut options = case.options();
    options.keyspace.merge = Some(value::operator());
    options.merge_operators = value::operators();
    let mut bed = Bed::with(case, options);
    bed.fill(0..40);
    bed.step(&Op::Flush);
    for round in 0..4u32 {
        for key in (0..50).filter(|key| !(u32::from(*key) + round).is_multiple_of(3)) {
            let operand = spec(5000 + round * 100 + u32::from(key), len(key + round as KeyNo));
            bed.step(&Op::Write(Write::Merge(0, key, operand)));
        }
        bed.collect();
        bed.check();
        match round {
            0 => bed.step(&Op::Snapshot(0)),
            1 => bed.step(&Op::Flush),
            2 => bed.step(&Op::Compact),
            _ => bed.reopen(),
        }
        (0..6).for_each(|key| bed.put(key * 7, len(key)));
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
        bed.check();
    }
    bed.check_thoroughly();
}

fn ingested(keys: impl IntoIterator<Item = KeyNo>, tag: u32) -> Vec<Write> {
    let mut keys: Vec<KeyNo> = keys.into_iter().collect();
    keys.sort_by_key(|&key| key_bytes(key));
    keys.into_iter().map(|key| Write::Put(0, key, spec(tag + u32::from(key), len(key)))).collect()
}

/// An ingest over values in files is open while GC moves these; a crash at every I/O of its end leaves all or nothing.
pub fn e03_an_ingest_over_values_that_move_is_there_as_a_whole(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..40);
    bed.step(&Op::Flush);
    bed.cool();
    bed.step(&Op::Snapshot(0));
    for round in 0..3 {
        bed.step(&Op::Ingest(0, ingested((0..60).filter(|key| key % 3 != round), 7000 + 100 * u32::from(round))));
        bed.fill((0..40).filter(|key| key % 4 == round));
        bed.collect();
        bed.check();
        bed.step(&Op::EndIngest(if round == 1 { End::Drop } else { End::Finish }));
        bed.check();
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
        bed.check();
    }
    bed.fill((0..40).step_by(5));
    let writes = ingested((0..60).step_by(2), 8000);
    let mut ingest = bed.db().default_keyspace().ingest().unwrap();
    writes.iter().for_each(|write| write.add_to_ingest(&mut ingest).unwrap());
    let mut model = bed.model().clone();
    model.begin(&writes.iter().map(Write::change).collect::<Vec<_>>());
    let images = survives(&bed, &model, |_| assert!(ingest.finish().is_ok()));
    assert!(images > 8, "{images} images");
    bed.driver.model = model;
    bed.step(&Op::DropSnapshot(0));
    bed.step(&Op::Compact);
    bed.collect();
    bed.check();
    bed.check_thoroughly();
}

/// Large values between values that move: none is moved, none is left over, and a crash at every I/O of a put leaves
/// the old one or the new one.
pub fn e04_large_values_are_whole_beside_values_that_move(case: &Case) {
    let mut bed = Bed::new(case);
    let large =
        |key: KeyNo, round: u32| Op::PutReader(0, key, spec(9000 + round * 100 + u32::from(key), 65_537 + round));
    bed.fill(0..24);
    for round in 0..3 {
        (30..54).step_by(6).for_each(|key| bed.step(&large(key, round)));
        bed.step(&Op::Flush);
        bed.cool();
        bed.collect();
        bed.check();
        bed.fill((0..24).skip(1).step_by(2));
        bed.collect();
    }
    bed.step(&Op::Snapshot(0));
    bed.delete(36);
    bed.put(42, 100);
    let mut model = bed.model().clone();
    model.begin(&[Change::Put(0, key_bytes(48), spec(9999, 70_000))]);
    let images = survives(&bed, &model, |db| db.put_reader(key_bytes(48), &spec(9999, 70_000).bytes()[..]).unwrap());
    assert!(images > 8, "{images} images");
    bed.driver.model = model;
    bed.step(&Op::Compact);
    bed.collect();
    bed.step(&Op::ReadSnapshot(0, 0));
    bed.check();
    bed.reopen();
    bed.check();
    bed.step(&Op::Compact);
    bed.collect();
    assert_eq!(bed.db().stats().space.large_files, 2, "keys 30 and 48");
    no_orphans(&bed.fs, env::DIR.as_ref(), bed.db()).unwrap();
    bed.check_thoroughly();
}
