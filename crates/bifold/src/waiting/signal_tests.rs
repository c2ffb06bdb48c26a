//! Tests of the watchdog. They are not in `signal.rs` because that file is also compiled over other primitives.

use std::{thread, time::Duration};

use crate::waiting::signal::{Signal, Vigil, Woken};

fn impatient() -> Signal {
    Signal::with_patience(Duration::from_millis(1))
}

#[test]
fn a_wait_that_nobody_will_end_is_overdue_and_says_who_waits() {
    let signal = impatient();
    let _other = signal.waiting("a GC run", "a full memtable to be written", Duration::ZERO);
    let _waiting = signal.waiting("a commit", "a full memtable to be written", Duration::ZERO);
    assert_eq!(signal.sleep_past(signal.epoch()), Woken::Overdue);
    let words = signal.note_overdue("a commit", "a full memtable to be written", "it is a test");
    assert!(words.contains("a GC run for a full memtable"), "{words}");
    assert_eq!((signal.overdue().count, signal.overdue().described), (1, vec![words]));
    assert_eq!(signal.waits().len(), 2);
}

#[test]
fn no_wait_is_overdue_while_somebody_is_at_work_however_long_it_takes() {
    let signal = impatient();
    thread::scope(|scope| {
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let signal = &signal;
        scope.spawn(move || {
            let _at_work = signal.working();
            begin.send(()).unwrap();
            ended.recv().unwrap();
        });
        begun.recv().unwrap();
        let _waiting = signal.waiting("a commit", "a flush", Duration::ZERO);
        let mut vigil = Vigil::default();
        for _ in 0..20 {
            assert_eq!(signal.sleep_past(signal.epoch()), Woken::Patient);
            assert_eq!(signal.look_up(signal.epoch(), Duration::from_millis(1), &mut vigil), Woken::Patient);
        }
        end.send(()).unwrap();
    });
    let _waiting = signal.waiting("a commit", "a flush", Duration::ZERO);
    assert_eq!(signal.sleep_past(signal.epoch()), Woken::Overdue, "it has ended and notified nobody");
}

#[test]
fn a_thread_that_works_and_waits_is_not_at_work() {
    let signal = impatient();
    let _at_work = signal.working();
    assert_eq!(signal.sleep_past(signal.epoch()), Woken::Patient);
    let _waiting = signal.waiting("a GC run", "a flush", Duration::ZERO);
    assert_eq!(signal.sleep_past(signal.epoch()), Woken::Overdue);
}

#[test]
fn a_polling_thread_is_overdue_only_when_nothing_but_its_own_changes_happens() {
    let signal = impatient();
    let (mut vigil, every) = (Vigil::default(), Duration::from_millis(1));
    let notify_and_look = |vigil: &mut Vigil| {
        signal.notify();
        vigil.own_changes += 1;
        signal.look_up(signal.epoch(), every, vigil)
    };
    assert_eq!(notify_and_look(&mut vigil), Woken::Overdue);
    let _at_work = signal.working();
    assert_eq!(notify_and_look(&mut vigil), Woken::Patient);
}

#[test]
fn a_change_after_the_epoch_was_read_is_not_slept_through() {
    let signal = Signal::default();
    let seen = signal.epoch();
    signal.notify();
    assert_eq!(signal.sleep_past(seen), Woken::Changed);
    assert!(signal.changes_soon(seen) && !impatient().changes_soon(0));
    let seen = signal.epoch();
    signal.stop();
    assert_eq!(signal.sleep_past(seen), Woken::Changed);
}
