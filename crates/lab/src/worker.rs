//! One thread's loop: choose a key, make it and its value, call the store, time the call, check the answer.
//!
//! Only the call of the store is timed. Histograms and counts are the thread's own until the end, so threads share
//! nothing but the store and the number of the next new key.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use hdrhistogram::Histogram;

use crate::{
    Failure, Plan, Result, Store,
    bystander::{SLOW, Slowest},
    choose::Chooser,
    keys::Keys,
    live::LiveBytes,
    random::{Random, mix},
    run::histogram,
    store::Entries,
    values::Values,
    workload::{Mix, Operation},
};

/// What all threads of a phase share.
pub(crate) struct Task<'a> {
    pub store: &'a dyn Store,
    pub plan: &'a Plan,
    pub keys: &'a Keys,
    pub values: &'a Values,
    pub live: &'a LiveBytes,
    pub mix: Mix,
    /// Whether scans have from 1 to `scan_len` keys instead of exactly that many.
    pub vary_scans: bool,
    /// Keys that existed when the phase began, and must be found.
    pub loaded: u64,
    /// The number of the next new key.
    pub next_insert: &'a AtomicU64,
    pub deadline: Option<Instant>,
    /// The stream of random numbers: phases that share it choose the same keys.
    pub stream: u64,
    /// Operations done by all threads, for progress.
    pub done: &'a AtomicU64,
}

/// The counts of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Operations; each key of a batch is one, a scan is one.
    pub operations: u64,
    /// Reads that found nothing.
    pub not_found: u64,
    /// Bytes of keys and values given to the store.
    pub bytes_written: u64,
    /// Bytes of keys and values received from it.
    pub bytes_read: u64,
    /// A sum over all operations and their keys: the same for two runs of one plan, in any order of their threads.
    pub digest: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.not_found += other.not_found;
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
        self.digest = self.digest.wrapping_add(other.digest);
    }

    /// Adds an operation on key number `index`; `detail` is anything else that it depends on.
    fn note(&mut self, operation: Operation, index: u64, detail: u64) {
        let what = mix(index ^ (operation as u64) << 56).wrapping_add(detail);
        self.digest = self.digest.wrapping_add(mix(what));
    }
}

/// The durations of each kind of operation, in nanoseconds. Histograms are large, so they are made when needed.
pub(crate) struct Latencies([Option<Box<Histogram<u64>>>; Operation::COUNT]);

impl Default for Latencies {
    fn default() -> Self {
        Self([const { None }; Operation::COUNT])
    }
}

impl Latencies {
    fn record(&mut self, operation: Operation, nanoseconds: u64) {
        self.0[operation as usize].get_or_insert_with(|| Box::new(histogram())).saturating_record(nanoseconds);
    }

    pub fn of(&self, operation: Operation) -> Option<&Histogram<u64>> {
        self.0[operation as usize].as_deref()
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            if let Some(theirs) = theirs {
                **mine.get_or_insert_with(|| Box::new(histogram())) += &**theirs;
            }
        }
    }

    /// All of these kinds together.
    pub fn merged(&self, operations: &[Operation]) -> Histogram<u64> {
        operations.iter().filter_map(|&operation| self.of(operation)).fold(histogram(), |sum, one| sum + one)
    }
}

/// A thread reports progress after this many operations: a shared counter for each one would cost as much as a cached
/// read.
const SHOWN_EVERY: u64 = 64;

/// One thread of a phase.
pub(crate) struct Worker<'a> {
    task: &'a Task<'a>,
    chooser: Chooser,
    random: Random,
    key: Vec<u8>,
    value: Vec<u8>,
    entries: Entries,
    counts: Counts,
    latencies: Latencies,
    slowest: Slowest,
    /// Operations that `done` does not have yet.
    unseen: u64,
    /// New keys of a load are dealt to the threads in turn, without communication: the next one of this thread, and the
    /// distance.
    deal: Option<(u64, u64)>,
}

impl<'a> Worker<'a> {
    pub fn new(task: &'a Task<'a>, thread: u64, chooser: Chooser) -> Self {
        // A load starts on an empty store; otherwise the first thread to ask gets the next new key.
        let loading = task.loaded == 0 && task.mix.rest == Operation::Insert && task.mix.first.1 == 100;
        Self {
            task,
            chooser,
            random: Random::new(task.plan.seed, task.stream << 32 | thread),
            key: Vec::with_capacity(task.keys.len()),
            value: Vec::with_capacity(task.values.max()),
            entries: Entries::default(),
            counts: Counts::default(),
            latencies: Latencies::default(),
            slowest: Slowest::default(),
            unseen: 0,
            deal: loading.then_some((thread, task.plan.threads as u64)),
        }
    }

    /// Does `share` operations, or fewer when time runs out.
    pub fn run(mut self, share: u64) -> Result<(Counts, Latencies, Slowest)> {
        while self.counts.operations < share {
            let end = self.step(share - self.counts.operations)?;
            if self.task.deadline.is_some_and(|deadline| end >= deadline) {
                break;
            }
        }
        self.show();
        Ok((self.counts, self.latencies, self.slowest))
    }

    /// Reports the progress of this thread.
    fn show(&mut self) {
        self.task.done.fetch_add(std::mem::take(&mut self.unseen), Relaxed);
    }

    /// One call of the store (two for a read followed by a write), of at most `most` operations.
    fn step(&mut self, most: u64) -> Result<Instant> {
        let (first, percent) = self.task.mix.first;
        let operation = if percent == 100 || self.random.below(100) < percent { first } else { self.task.mix.rest };
        let (begin, end) = match operation {
            Operation::Insert | Operation::Update => self.write(operation, most)?,
            Operation::Read => {
                let index = self.choose();
                self.read(index)?
            }
            Operation::Missing => self.look_for_missing()?,
            Operation::Scan | Operation::ScanBack => self.scan(operation)?,
            Operation::ReadModifyWrite => {
                let index = self.choose();
                let (begin, _) = self.read(index)?;
                (begin, self.overwrite(operation, index)?.1)
            }
        };
        let nanoseconds = u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX);
        self.latencies.record(operation, nanoseconds);
        if end - begin >= SLOW {
            self.slowest.note(begin, end);
        }
        let operations = if self.entries.is_empty() { 1 } else { self.entries.len() as u64 };
        self.counts.operations += operations;
        self.unseen += operations;
        if self.unseen >= SHOWN_EVERY {
            self.show();
        }
        self.entries.clear();
        Ok(end)
    }

    /// The number of an existing key.
    fn choose(&mut self) -> u64 {
        self.chooser.choose(&mut self.random)
    }

    /// The number of the next key to write.
    fn target(&mut self, operation: Operation) -> u64 {
        match (operation, &mut self.deal) {
            (Operation::Insert, Some((next, distance))) => {
                let index = *next;
                *next += *distance;
                index
            }
            (Operation::Insert, None) => {
                let index = self.task.next_insert.fetch_add(1, Relaxed);
                self.chooser.grow(index + 1);
                index
            }
            _ => self.choose(),
        }
    }

    fn write(&mut self, operation: Operation, most: u64) -> Result<(Instant, Instant)> {
        let batch = (self.task.plan.batch as u64).min(most);
        if batch == 1 {
            let index = self.target(operation);
            return self.overwrite(operation, index);
        }
        for _ in 0..batch {
            let index = self.target(operation);
            self.make(operation, index);
            self.entries.push(&self.key, &self.value);
        }
        let begin = Instant::now();
        self.task.store.put_all(&self.entries)?;
        Ok((begin, Instant::now()))
    }

    fn overwrite(&mut self, operation: Operation, index: u64) -> Result<(Instant, Instant)> {
        self.make(operation, index);
        let begin = Instant::now();
        self.task.store.put(&self.key, &self.value)?;
        Ok((begin, Instant::now()))
    }

    /// Makes the key and a new value of key number `index`. A load writes version 0, so that a later run
    /// knows the size of everything.
    fn make(&mut self, operation: Operation, index: u64) {
        let version = if self.deal.is_some() { 0 } else { self.random.draw() as u32 };
        self.task.keys.present(index, &mut self.key);
        self.task.values.write(index, version, &mut self.value);
        self.task.live.wrote(index, self.task.keys.own_bytes(index) + self.value.len());
        self.counts.note(operation, index, u64::from(version));
        self.counts.bytes_written += (self.key.len() + self.value.len()) as u64;
    }

    fn read(&mut self, index: u64) -> Result<(Instant, Instant)> {
        self.counts.note(Operation::Read, index, 0);
        self.task.keys.present(index, &mut self.key);
        let (mut bytes, mut verdict) = (0, Ok(()));
        let begin = Instant::now();
        let found = self.task.store.get(&self.key, &mut |value| {
            bytes = value.len();
            verdict = self.task.values.check(index, value);
        })?;
        let end = Instant::now();
        // A key beyond those loaded may have been promised to another thread that has not written it yet.
        if !found && index < self.task.loaded {
            verdict =
                Err("the key is missing, but it was written; were --num, --seed and --key-size the same then?"
                    .to_owned());
        }
        verdict.map_err(|answer| self.wrong("get", answer))?;
        if found {
            self.counts.bytes_read += (self.key.len() + bytes) as u64;
        } else {
            self.counts.not_found += 1;
        }
        Ok((begin, end))
    }

    fn look_for_missing(&mut self) -> Result<(Instant, Instant)> {
        let index = self.choose();
        self.counts.note(Operation::Missing, index, 0);
        self.task.keys.missing(index, &mut self.key);
        let begin = Instant::now();
        let found = self.task.store.get(&self.key, &mut |_| ())?;
        let end = Instant::now();
        if found {
            return Err(self.wrong("get", "it has a value, but was never written".to_owned()));
        }
        self.counts.not_found += 1;
        Ok((begin, end))
    }

    fn scan(&mut self, operation: Operation) -> Result<(Instant, Instant)> {
        let index = self.choose();
        let len = self.task.plan.scan_len;
        let len = if self.task.vary_scans { 1 + self.random.below(len as u64) as usize } else { len };
        self.counts.note(operation, index, len as u64);
        self.task.keys.present(index, &mut self.key);
        let (mut bytes, mut ordered, mut verdict) = (0, true, Ok(()));
        let previous = &mut self.value;
        previous.clear();
        let is_backward = operation == Operation::ScanBack;
        let (store, values, loaded) = (self.task.store, self.task.values, self.task.loaded);
        let mut see = |key: &[u8], value: &[u8]| {
            if previous.is_empty() && index < loaded {
                verdict = values.check(index, value);
            }
            ordered &=
                previous.is_empty() || (previous.as_slice() != key && (previous.as_slice() > key) == is_backward);
            previous.clear();
            previous.extend_from_slice(key);
            bytes += key.len() + value.len();
        };
        let begin = Instant::now();
        let found = match is_backward {
            true => store.scan_back(&self.key, len, &mut see)?,
            false => store.scan(&self.key, len, &mut see)?,
        };
        let end = Instant::now();
        if !ordered {
            verdict = Err(format!("keys do not {}", if is_backward { "descend" } else { "ascend" }));
        }
        if found == 0 && index < self.task.loaded {
            verdict = Err("it is empty, but its first key was written".to_owned());
        }
        verdict.map_err(|answer| self.wrong(operation.name(), answer))?;
        self.counts.bytes_read += bytes as u64;
        Ok((begin, end))
    }

    fn wrong(&self, call: &str, answer: String) -> Failure {
        Failure::WrongAnswer { question: format!("{call} {}", self.key.escape_ascii()), answer }
    }
}
