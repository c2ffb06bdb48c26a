//! Tests of the two steps, with what others do between them.

use std::{path::Path, time::Duration};

use bifold_io::{Env, clock::ManualClock, memory::MemoryFs};

use super::*;
use crate::{
    background::bed::Bed,
    limits::transaction_memory::Charge,
    open::recover::recover,
    settings::options::{Durability, KeyspaceOptions, Options, Workers},
    state::{
        op::{Act, Op},
        snapshot::Holder,
    },
};

const READ: u32 = 7;

/// How something is committed between the two steps, and whether it is sealed and flushed before the second one.
enum Meanwhile {
    Sealed,
    Flushed,
    Ingested,
}

/// Reads a key, does step 1, lets somebody else write `key`, then does step 2, and step 1 again.
fn check((read, key): (u32, u32), meanwhile: Meanwhile) -> (bool, Result<()>) {
    let bed = Bed::new(KeyspaceOptions::default());
    bed.fill([(READ, vec![1]), (8, vec![1])].into_iter());
    let engine = &bed.engine;
    let snapshot = Arc::new(engine.snapshots.open(&engine.visible, Holder::Transaction, engine.env.clock.now()));
    let (mut reads, charge) = (ReadSet::default(), Charge::on(&engine.transactions));
    reads.note_key(&bed.tree, &read.to_be_bytes(), &charge).unwrap();
    let mut check = ReadCheck::new(&engine.reader, &snapshot, &reads);
    check.prepare().unwrap();
    assert!(check.holds().unwrap(), "nobody has committed since");
    if let Meanwhile::Ingested = meanwhile {
        bed.ingest(key, &[2]);
    } else {
        bed.fill(std::iter::once((key, vec![2])));
    }
    if let Meanwhile::Flushed = meanwhile {
        bed.flush().unwrap();
        bed.flush().unwrap();
    }
    (check.holds().unwrap(), check.prepare())
}

#[test]
fn a_memtable_that_was_sealed_since_step_1_is_asked() {
    let (holds, decided) = check((READ, READ), Meanwhile::Sealed);
    assert!(!holds && decided.is_err_and(|error| error.is_conflict()));
    let (holds, decided) = check((READ, 8), Meanwhile::Sealed);
    assert!(holds && decided.is_ok(), "another key");
}

#[test]
fn a_memtable_that_was_flushed_since_step_1_makes_another_round() {
    let (holds, decided) = check((READ, READ), Meanwhile::Flushed);
    assert!(!holds && decided.is_err_and(|error| error.is_conflict()));
    let (holds, decided) = check((READ, 8), Meanwhile::Flushed);
    assert!(!holds && decided.is_ok(), "memtables cannot say that it is another key, and tables do");
}

/// Nothing is below the ingested keys, so no memtable is flushed for them.
#[test]
fn an_ingest_since_step_1_makes_another_round() {
    let (holds, decided) = check((100, 100), Meanwhile::Ingested);
    assert!(!holds && decided.is_err_and(|error| error.is_conflict()));
    let (holds, decided) = check((READ, 100), Meanwhile::Ingested);
    assert!(!holds && decided.is_ok(), "memtables do not know which keys it had, and tables do");
}

/// Step 1 finds the same value, whose time is over before step 2.
#[test]
fn a_value_that_was_given_less_time_and_has_expired_since_step_1_makes_another_round() {
    let clock = ManualClock::default();
    let is_now = |millis: Millis| clock.set_unix(Duration::from_millis(millis));
    is_now(1000);
    let env = Env { fs: Arc::new(MemoryFs::new()), clock: Arc::new(clock.clone()), ..Env::system() };
    let options = Options { workers: Workers::Threads(2), ..Options::default() };
    let engine = recover(env, Path::new("/db"), options).unwrap();
    let tree = engine.state.create_keyspace("k", &engine.options.keyspace).unwrap();
    let put = |act: Act<'_>| {
        engine.commit(&[Op { tree: &tree, key: b"key", act }], Durability::Buffered).unwrap();
    };
    put(Act::Put(b"value"));
    let snapshot = Arc::new(engine.snapshots.open(&engine.visible, Holder::Transaction, engine.env.clock.now()));
    let (mut reads, charge) = (ReadSet::default(), Charge::on(&engine.transactions));
    reads.note_key(&tree, b"key", &charge).unwrap();
    let mut check = ReadCheck::new(&engine.reader, &snapshot, &reads);
    put(Act::PutUntil(b"value", 2000));
    check.prepare().unwrap();
    assert!(check.holds().unwrap(), "it is the same value");
    put(Act::PutUntil(b"value", 3000));
    is_now(2000);
    assert!(!check.holds().unwrap());
    check.prepare().unwrap();
    assert!(check.holds().unwrap(), "it was given more time since");
    is_now(3000);
    assert!(!check.holds().unwrap(), "nobody has committed since, but its time is over");
    assert!(check.prepare().is_err_and(|error| error.is_conflict()));
}
