//! Tells slow operations of a store from stalls of the machine.
//!
//! Threads that only watch the clock, the *bystanders*, one for each processor, sleep a millisecond at a time and note
//! when they wake too late. The machine had no processor for them then: a hypervisor that took it away, or firmware.
//! Where the thread was ready and only waited for another thread of this machine to leave the processor, that is no
//! stall; Linux counts such waits for each thread (`/proc/thread-self/schedstat`).
//!
//! The threads of a phase note their slow operations with beginning, end and processor (`Slow`). What of an operation
//! fell into stalls of that processor is subtracted ([`SlowOperation::stalled_ms`]).
//!
//! An operation that waited for a thread on another processor, which stalled, counts as slow: what remains of an
//! operation is at most the store's. Where threads cannot be bound to processors, what a bystander saw counts for all.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

/// How long the bystander sleeps.
const TICK: Duration = Duration::from_millis(1);

/// Waking this much too late is usual: the system rounds the ends of sleeps.
const USUAL: Duration = Duration::from_micros(300);

/// Shorter operations are not noted one by one.
pub(crate) const SLOW: Duration = Duration::from_millis(1);

/// How many slow operations a thread keeps, and how many a report names.
const KEPT: usize = 256;
const NAMED: usize = 16;

/// The most bystanders: each wakes a thousand times a second.
const BYSTANDERS_MAX: usize = 16;

/// What the bystanders saw during a phase, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bystander {
    /// How often they slept.
    pub ticks: u64,
    /// How often a processor stalled.
    pub stalls: u64,
    /// The longest stall, in milliseconds.
    pub stall_ms_max: f64,
    /// All stalls together, in milliseconds.
    pub stall_ms: f64,
}

/// A slow operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SlowOperation {
    /// When it began, in seconds from the beginning of the phase.
    pub at_seconds: f64,
    /// How long it took, in milliseconds.
    pub ms: f64,
    /// Of these, for how long its processor stalled.
    pub stalled_ms: f64,
}

/// A slow operation of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slow {
    pub begin: Instant,
    pub end: Instant,
    /// Where its thread was at the end, if the system says so.
    pub processor: Option<usize>,
}

/// The slowest operations of a thread.
#[derive(Debug, Default)]
pub(crate) struct Slowest(Vec<Slow>);

impl Slowest {
    /// Notes an operation that took [`SLOW`] or longer.
    #[cold]
    pub fn note(&mut self, begin: Instant, end: Instant) {
        self.0.push(Slow { begin, end, processor: processor::here() });
        if self.0.len() == 2 * KEPT {
            self.keep_slowest(KEPT);
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    fn keep_slowest(&mut self, count: usize) {
        self.0.sort_unstable_by_key(|slow| std::cmp::Reverse(slow.end - slow.begin));
        self.0.truncate(count);
    }
}

/// A stall: within `due` and `woken` the processor did not run for `time`.
#[derive(Clone, Copy, Debug)]
struct Stall {
    due: Instant,
    woken: Instant,
    time: Duration,
}

/// What a bystander saw.
#[derive(Debug, Default)]
struct Watched {
    /// Where it was, if it was bound to a processor.
    processor: Option<usize>,
    ticks: u64,
    stalls: Vec<Stall>,
}

impl Watched {
    /// Watches the clock until `ended`.
    fn until(ended: &AtomicBool, processor: Option<usize>) -> Self {
        let mut watched = Self { processor: processor.filter(|&it| processor::stay_on(it)), ..Self::default() };
        let ready = Ready::of_this_thread();
        let mut ready_before = ready.time();
        while !ended.load(Relaxed) {
            let due = Instant::now() + TICK;
            thread::sleep(TICK);
            let woken = Instant::now();
            let ready_now = ready.time();
            let late = woken.saturating_duration_since(due);
            watched.ticks += 1;
            let time = late.saturating_sub(ready_now.saturating_sub(ready_before));
            if time > USUAL {
                watched.stalls.push(Stall { due, woken, time });
            }
            ready_before = ready_now;
        }
        watched
    }

    /// For how long an operation was stalled here.
    fn stalled(&self, slow: &Slow) -> Duration {
        if self.processor.is_some() && self.processor != slow.processor {
            return Duration::ZERO;
        }
        let within = |stall: &Stall| {
            let common = stall.woken.min(slow.end).saturating_duration_since(stall.due.max(slow.begin));
            common.min(stall.time)
        };
        self.stalls.iter().map(within).sum()
    }
}

/// What all bystanders saw.
#[derive(Debug, Default)]
pub(crate) struct WatchedAll(Vec<Watched>);

impl WatchedAll {
    /// Watches the clock on all processors until `ended`.
    pub fn until(ended: &AtomicBool) -> Self {
        let watched = thread::scope(|scope| {
            let watch = |processor| scope.spawn(move || Watched::until(ended, processor));
            let watching: Vec<_> = processor::all().into_iter().map(watch).collect();
            watching.into_iter().filter_map(|bystander| bystander.join().ok()).collect()
        });
        Self(watched)
    }

    /// The figures.
    pub fn figures(&self) -> Bystander {
        let all = || self.0.iter().flat_map(|watched| &watched.stalls).map(|stall| millis(stall.time));
        Bystander {
            ticks: self.0.iter().map(|watched| watched.ticks).sum(),
            stalls: all().count() as u64,
            stall_ms_max: all().fold(0.0, f64::max),
            stall_ms: all().sum(),
        }
    }

    /// The slowest operations, the longest first, in a phase that began at `begin`; and how long the slowest took in
    /// microseconds when stalls do not count, if there are slow ones.
    pub fn judge(&self, mut slowest: Slowest, begin: Instant) -> (Vec<SlowOperation>, Option<f64>) {
        slowest.keep_slowest(KEPT);
        let judged = slowest.0.iter().map(|slow| SlowOperation {
            at_seconds: slow.begin.saturating_duration_since(begin).as_secs_f64(),
            ms: millis(slow.end - slow.begin),
            stalled_ms: millis(self.stalled(slow)),
        });
        let mut judged: Vec<_> = judged.collect();
        let own = judged.iter().map(|slow| (slow.ms - slow.stalled_ms) * 1e3).reduce(f64::max);
        judged.truncate(NAMED);
        (judged, own)
    }

    /// One bystander counts: that of the processor. Where they could not be bound, all may have seen the same stalls.
    fn stalled(&self, slow: &Slow) -> Duration {
        self.0.iter().map(|watched| watched.stalled(slow)).max().unwrap_or_default()
    }
}

/// Where threads run.
#[cfg(target_os = "linux")]
mod processor {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// The processors to watch.
    pub fn all() -> Vec<Option<usize>> {
        let Ok(allowed) = sched_getaffinity(None) else { return vec![None] };
        let all = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
        all.take(super::BYSTANDERS_MAX).map(Some).collect()
    }

    /// That of the calling thread.
    #[expect(clippy::unnecessary_wraps, reason = "other systems do not say")]
    pub fn here() -> Option<usize> {
        Some(sched_getcpu())
    }

    /// Binds the calling thread to a processor. Returns whether that was possible.
    pub fn stay_on(processor: usize) -> bool {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).is_ok()
    }
}

/// Where threads run: not known.
#[cfg(not(target_os = "linux"))]
mod processor {
    pub fn all() -> Vec<Option<usize>> {
        vec![None]
    }

    pub fn here() -> Option<usize> {
        None
    }

    pub fn stay_on(_processor: usize) -> bool {
        false
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// For how long a thread was ready and waited for a processor.
struct Ready(Option<File>);

impl Ready {
    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// So far; nothing where the system does not count it.
    fn time(&self) -> Duration {
        let mut text = [0; 64];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        Duration::from_nanos(second_number(&text[..read]).unwrap_or(0))
    }
}

fn second_number(text: &[u8]) -> Option<u64> {
    str::from_utf8(text).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fell_into_stalls_does_not_count() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let stall = |from, to, ms| Stall { due: at(from), woken: at(to), time: Duration::from_millis(ms) };
        let watched = |processor, stalls| Watched { processor: Some(processor), ticks: 50, stalls };
        let first = watched(0, vec![stall(10, 30, 20), stall(50, 70, 5)]);
        let watched = WatchedAll(vec![first, watched(1, vec![stall(5, 45, 40), stall(91, 92, 1)])]);
        let slow = |(from, to, processor)| Slow { begin: at(from), end: at(to), processor: Some(processor) };
        let slowest = Slowest([(5, 45, 0), (25, 28, 0), (48, 80, 0), (90, 92, 1)].map(slow).to_vec());
        let (judged, own) = watched.judge(slowest, begin);
        let figures: Vec<_> = judged.iter().map(|slow| (slow.ms.round(), slow.stalled_ms.round())).collect();
        assert_eq!(figures, [(40.0, 20.0), (32.0, 5.0), (3.0, 3.0), (2.0, 1.0)]);
        assert_eq!(own.map(f64::round), Some(27_000.0), "the second is the slowest of the store");
        let unbound = || Watched { processor: None, ticks: 1, stalls: vec![stall(10, 30, 20)] };
        let slow = Slow { begin: at(5), end: at(45), processor: Some(0) };
        let (judged, _) = WatchedAll(vec![unbound(), unbound()]).judge(Slowest(vec![slow]), begin);
        assert_eq!(judged[0].stalled_ms.round(), 20.0, "once, although two have seen it");
        assert_eq!(watched.figures(), Bystander { ticks: 100, stalls: 4, stall_ms_max: 40.0, stall_ms: 66.0 });
    }

    #[test]
    fn the_slowest_are_kept() {
        let (mut slowest, begin) = (Slowest::default(), Instant::now());
        (1..=2000_u64).for_each(|ms| slowest.note(begin, begin + Duration::from_millis(ms)));
        let (judged, _) = WatchedAll::default().judge(slowest, begin);
        assert_eq!(
            judged.iter().map(|slow| slow.ms.round() as u64).collect::<Vec<_>>(),
            (1985..=2000).rev().collect::<Vec<_>>()
        );
    }

    #[test]
    fn bystanders_end_and_have_slept_each_on_a_processor() {
        let ended = AtomicBool::new(false);
        let watched = thread::scope(|scope| {
            let bystanders = scope.spawn(|| WatchedAll::until(&ended));
            thread::sleep(20 * TICK);
            ended.store(true, Relaxed);
            bystanders.join().unwrap()
        });
        assert!(!watched.0.is_empty() && watched.0.iter().all(|watched| watched.ticks > 0), "{watched:?}");
        let mut processors: Vec<_> = watched.0.iter().map(|watched| watched.processor).collect();
        processors.dedup();
        assert_eq!(processors.len(), watched.0.len(), "{processors:?}");
    }

    #[test]
    fn the_wait_for_a_processor_is_the_second_number() {
        assert_eq!(second_number(b"12 345 6\n"), Some(345));
        assert_eq!(second_number(b""), None);
    }
}
