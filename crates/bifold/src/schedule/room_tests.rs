//! Work that found too little room: who wakes the workers that are to try again, and when.

use std::thread;

use super::*;
use crate::{background::bed::Bed, settings::options::KeyspaceOptions};

/// Too little for a flush.
const TOO_LITTLE: u64 = 16 << 10;
/// Enough for one.
const ENOUGH: u64 = 8 << 20;

/// A tree with a full memtable. A worker found no room to write it, and now there is room.
fn held_up() -> Bed {
    let bed = Bed::new(KeyspaceOptions::default());
    let Bed { engine, memory, .. } = &bed;
    bed.fill((0..64).map(|n| (n, vec![1; 2000])));
    memory.set_capacity(Some(memory.used_bytes() + TOO_LITTLE));
    let task = engine.scheduler.take_task(Role::Flusher).expect("a memtable is sealed");
    engine.scheduler.do_task(task);
    assert_eq!(bed.tree.view().sealed.len(), 1, "there was room");
    memory.set_capacity(Some(memory.used_bytes() + ENOUGH));
    bed
}

/// They sleep, and it may be the caller who has made room.
#[test]
fn a_caller_that_waits_for_a_flush_wakes_the_workers() {
    let bed = held_up();
    let Bed { engine, tree, .. } = &bed;
    let seen = engine.signal.epoch();
    thread::scope(|scope| {
        let flush = scope.spawn(|| engine.flusher.flush(std::slice::from_ref(tree), Means::Reserve));
        let woken = engine.signal.sleep_past(seen);
        let task = engine.scheduler.take_task(Role::Flusher);
        task.into_iter().for_each(|task| engine.scheduler.do_task(task));
        let flushed = flush.join();
        assert_eq!(woken, Woken::Changed, "nobody wakes it");
        flushed.unwrap().unwrap();
    });
    assert!(tree.view().sealed.is_empty());
    engine.health.well().unwrap();
}

/// Others may have made room. The worker that looks first may be one that does no such work.
#[test]
fn workers_are_woken_to_try_again_though_nobody_asks() {
    let bed = held_up();
    let Bed { engine, tree, .. } = &bed;
    let seen = engine.signal.epoch();
    engine.scheduler.sleep_past(seen);
    assert_ne!(engine.signal.epoch(), seen, "the others sleep on");
    let task = engine.scheduler.take_task(Role::Flusher).expect("it is tried again");
    engine.scheduler.do_task(task);
    assert!(tree.view().sealed.is_empty());
    engine.health.well().unwrap();
}
