//! The byte budget of background jobs, on a manual clock.

use std::{cell::Cell, convert::Infallible, sync::Arc, time::Duration};

use bifold_io::{Clock, clock::ManualClock, rate::RateBudget};

/// A manual clock that has run for a while, and a budget of 1000 bytes a second on it.
fn budget() -> (ManualClock, RateBudget) {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(10));
    (clock.clone(), RateBudget::new(Arc::new(clock), Some(1000)))
}

fn acquire(budget: &RateBudget, bytes: u64) {
    let Ok(()) = budget.acquire(bytes, || Ok::<_, Infallible>(()));
}

#[test]
fn in_the_long_run_the_rate_is_not_exceeded() {
    let (clock, budget) = budget();
    (0..50).for_each(|_| acquire(&budget, 100));
    // 5 s for 5000 bytes, minus the 0.1 s that had been saved up.
    assert_eq!(clock.now(), Duration::from_millis(14_900));
    assert_eq!(budget.waited(), Duration::from_millis(4900));
}

#[test]
fn a_pause_saves_up_a_tenth_of_a_second_and_no_more() {
    let (clock, budget) = budget();
    acquire(&budget, 1000);
    clock.advance(Duration::from_secs(60));
    let before = clock.now();
    acquire(&budget, 100);
    assert_eq!(clock.now(), before, "what was saved up");
    acquire(&budget, 100);
    assert_eq!(clock.now() - before, Duration::from_millis(100));
}

#[test]
fn without_a_rate_nobody_waits() {
    let (clock, budget) = budget();
    let before = clock.now();
    budget.set_rate(None);
    acquire(&budget, u64::MAX);
    assert_eq!((clock.now(), budget.waited()), (before, Duration::ZERO));
    budget.set_rate(Some(10));
    acquire(&budget, 2);
    assert_eq!(clock.now() - before, Duration::from_millis(100));
}

#[test]
fn a_waiting_job_is_asked_now_and_then_whether_to_continue() {
    let (clock, budget) = budget();
    let (before, asked) = (clock.now(), Cell::new(0));
    let closing = || {
        asked.set(asked.get() + 1);
        if asked.get() < 4 { Ok(()) } else { Err("closed") }
    };
    assert_eq!(budget.acquire(1_000_000, closing), Err("closed"));
    assert_eq!((asked.get(), clock.now() - before), (4, Duration::from_millis(300)));
}
