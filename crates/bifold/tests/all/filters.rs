//! Compaction filters, with every placement.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};

use bifold::{
    CompactionFilter, Db, Error, FilterEntry, Keyspace, PlacementKind, Snapshot, Verdict, stats::FilterStats,
};

use crate::{
    bed::{Bed, numbers},
    support::entries,
};

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(1 + (n % 60) as usize)
}

/// By its key: a fifth of all entries go, another fifth if their values say so; of another, values are replaced once.
fn fate(key: &[u8], mut value: impl FnMut() -> Vec<u8>) -> Verdict {
    match key.iter().map(|&byte| u32::from(byte)).sum::<u32>() % 5 {
        0 => Verdict::Delete,
        1 if value().ends_with(b"3 ") => Verdict::Delete,
        2 => match value() {
            value if value.ends_with(b"!") => Verdict::Keep,
            value => Verdict::Replace([&value[..], b"!"].concat()),
        },
        _ => Verdict::Keep,
    }
}

fn filter() -> CompactionFilter {
    CompactionFilter::new(|entry: &FilterEntry<'_>| {
        let mut failed = None;
        let fate = fate(entry.key(), || match entry.value() {
            Ok(value) => value.to_vec(),
            Err(error) => {
                failed = Some(error);
                Vec::new()
            }
        });
        failed.map_or(Ok(fate), Err)
    })
}

/// What is left of an entry once the filter was asked about it.
fn filtered(key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    match fate(key, || value.to_vec()) {
        Verdict::Keep => Some(value.to_vec()),
        Verdict::Delete => None,
        Verdict::Replace(value) => Some(value),
    }
}

/// What an iterator yields.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<Duration>)>;

struct History {
    bed: Bed,
    /// As if no filter had been asked since it was last applied to all.
    model: Model,
    /// With what each snapshot answered first.
    held: Vec<(Snapshot, Entries)>,
}

impl History {
    fn put(&mut self, n: u32, round: u32, expires: Option<Duration>) {
        let moment = expires.map(|at| UNIX_EPOCH + at);
        self.bed.ks().put_until(key(n), value(n, round), moment).unwrap();
        self.model.insert(key(n), (value(n, round), expires));
    }

    fn reopen(&mut self) {
        self.held.clear();
        self.bed.reopen();
        self.bed.ks().set_compaction_filter(Some(filter()));
    }

    /// Now the filter has been asked about everything.
    fn compact(&mut self) {
        self.bed.db().compact().unwrap();
        let after = |(key, (value, at)): (&Vec<u8>, &(Vec<u8>, _))| Some((key.clone(), (filtered(key, value)?, *at)));
        self.model = self.model.iter().filter_map(after).collect();
        let all: Vec<_> = self.model.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect();
        let found = entries(self.bed.ks().iter());
        let strange =
            found.iter().find(|entry| !all.contains(entry)).or_else(|| all.iter().find(|e| !found.contains(e)));
        assert!(found == all, "{:?}", strange.map(|(key, value)| (key.escape_ascii().to_string(), value.len())));
    }

    fn step(&mut self, step: u32, random: &mut impl FnMut(u64) -> u64) {
        let n = random(120) as u32;
        match random(24) {
            0..=12 => self.put(n, step, None),
            13 => self.put(n, step, Some(Duration::from_secs(3_000_000 + random(9)))),
            14 => {
                self.bed.ks().delete(key(n)).unwrap();
                self.model.remove(&key(n));
            }
            15 => {
                self.bed.ks().delete_range(key(n)..key(n + 10)).unwrap();
                self.model.retain(|other, _| *other < key(n) || *other >= key(n + 10));
            }
            16 => self.bed.db().flush().unwrap(),
            17 => self.bed.ks().compact_range(key(n)..key(n + 40)).unwrap(),
            18 => self.compact(),
            19 => self.bed.db().collect_garbage().unwrap(),
            20 => {
                let snapshot = self.bed.db().snapshot();
                let seen = entries(snapshot.iter(self.bed.ks()));
                self.held.push((snapshot, seen));
            }
            21 if !self.held.is_empty() => drop(self.held.swap_remove(random(self.held.len() as u64) as usize)),
            22 if random(4) == 0 => self.reopen(),
            _ => {}
        }
    }

    /// Entries are as they were put, or as the filter leaves them.
    fn check(&self, what: &str) {
        let ks = self.bed.ks();
        let mut found = BTreeMap::new();
        for pair in ks.iter().map(Result::unwrap) {
            let (value, expires_at) = &self.model[pair.key()];
            assert_eq!(pair.expires_at(), expires_at.map(|at| UNIX_EPOCH + at), "{what}");
            let now = pair.value().unwrap().to_vec();
            assert!(now == *value || Some(&now) == filtered(pair.key(), value).as_ref(), "{what}");
            found.insert(pair.key().to_vec(), now);
        }
        for (key, (value, _)) in &self.model {
            let is_right = found.contains_key(key) || filtered(key, value).is_none();
            assert!(is_right, "{what}: {} is not there", key.escape_ascii());
            assert_eq!(ks.get(key).unwrap().map(|value| value.to_vec()).as_ref(), found.get(key), "{what}");
        }
        for (snapshot, seen) in &self.held {
            assert_eq!(entries(snapshot.iter(ks)), *seen, "{what}: a snapshot");
        }
    }
}

fn history(placement: PlacementKind, seed: u64) {
    let mut random = numbers(seed);
    let mut history = History { bed: Bed::new(placement), model: Model::new(), held: Vec::new() };
    history.reopen();
    for step in 0..300 {
        history.step(step, &mut random);
        if step % 10 == 0 {
            history.check(&format!("{placement:?}, seed {seed}, step {step}"));
        }
    }
    history.held.clear();
    history.compact();
    let bed = &mut history.bed;
    bed.db.take().unwrap().close().unwrap();
    assert!(bifold::verify_in(&bed.env(), Path::new("/db"), |_| {}).unwrap().problems.is_empty());
    history.reopen();
    history.check("at the end");
    let stats = filter_stats(history.bed.db());
    assert_eq!((stats.deleted, stats.replaced, stats.failed), (0, 0, 0), "{placement:?}: everything was done before");
}

fn filter_stats(db: &Db) -> FilterStats {
    db.stats().keyspaces[0].filter
}

#[test]
fn random_histories_have_what_the_filter_leaves() {
    for placement in PlacementKind::ALL {
        (0..6).for_each(|seed| history(placement, seed));
    }
}

#[test]
fn a_filter_that_fails_changes_nothing() {
    type Broken = fn(&FilterEntry<'_>) -> bifold::Result<Verdict>;
    let broken: [Broken; 3] = [
        |_| Err(Error::ReadOnly),
        |_| panic!("a panic of the filter's"),
        |entry| if entry.key() == b"b" { Err(Error::ReadOnly) } else { Ok(Verdict::Keep) },
    ];
    for (broken, failed) in broken.into_iter().zip([2, 2, 1]) {
        let bed = Bed::new(PlacementKind::HashKv);
        bed.ks().put("a", [1; 300]).unwrap();
        bed.ks().put("b", "short").unwrap();
        bed.ks().set_compaction_filter(Some(CompactionFilter::new(broken)));
        bed.db().compact().unwrap();
        assert_eq!(entries(bed.ks().iter()).len(), 2);
        let stats = filter_stats(bed.db());
        assert_eq!((stats.asked, stats.deleted, stats.failed), (2, 0, failed), "{stats:?}");
        bed.ks().put("c", "it still takes writes").unwrap();
        bed.ks().set_compaction_filter(None);
        bed.db().compact().unwrap();
        assert_eq!(filter_stats(bed.db()).asked, 2, "nobody is asked any more");
    }
}

/// What a filter decides about is out of date when it was overwritten meanwhile: here by the filter itself.
#[test]
fn what_was_overwritten_meanwhile_stays() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        for n in 0..40u8 {
            bed.ks().put([n], [n; 200]).unwrap();
        }
        let other: Keyspace = bed.ks().clone();
        bed.ks().set_compaction_filter(Some(CompactionFilter::new(move |entry| {
            // Only a few, so that this writes into the memtable and waits for nobody.
            if entry.value()?.len() < 200 {
                return Ok(Verdict::Keep);
            }
            if entry.key()[0] < 5 {
                other.put(entry.key(), "newer")?;
            }
            Ok(Verdict::Delete)
        })));
        bed.ks().compact_range::<&[u8]>(..).unwrap();
        let left: Vec<_> = (0..5u8).map(|n| (vec![n], b"newer".to_vec())).collect();
        assert_eq!(entries(bed.ks().iter()), left, "{placement:?}");
    }
}

#[test]
fn a_filter_is_not_asked_about_what_only_snapshots_see() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let bed = Bed::new(placement);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        bed.ks().put("k", [1; 200]).unwrap();
        bed.ks().put("other", [2; 200]).unwrap();
        let snapshot = bed.db().snapshot();
        bed.ks().delete_range("a".."l").unwrap();
        bed.ks().set_compaction_filter(Some(CompactionFilter::new(move |entry| {
            seen.lock().unwrap().push(entry.key().to_vec());
            Ok(Verdict::Keep)
        })));
        bed.db().compact().unwrap();
        assert_eq!(*asked.lock().unwrap(), [b"other"], "{placement:?}");
        assert_eq!(filter_stats(bed.db()).asked, 1, "{placement:?}");
        assert!(snapshot.get(bed.ks(), "k").unwrap().is_some(), "{placement:?}");
    }
}

#[test]
fn a_transaction_conflicts_with_what_a_filter_deletes() {
    let bed = Bed::new(PlacementKind::Inline);
    bed.ks().put("k", "v").unwrap();
    let mut tx = bed.db().transaction();
    assert!(tx.get(bed.ks(), "k").unwrap().is_some());
    tx.put(bed.ks(), "other", "w").unwrap();
    let snapshot = bed.db().snapshot();
    bed.ks().set_compaction_filter(Some(CompactionFilter::new(|_| Ok(Verdict::Delete))));
    bed.db().compact().unwrap();
    assert_eq!(bed.ks().get("k").unwrap(), None);
    assert_eq!(snapshot.get(bed.ks(), "k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(tx.commit().unwrap_err().is_conflict());
}

/// The thread that compacts is the one that would flush. What it commits must not pile up until it is done.
#[test]
fn what_a_filter_replaces_is_flushed_meanwhile_where_callers_do_the_work() {
    const KEYS: u32 = 2000;
    let bed = Bed::new(PlacementKind::Inline);
    (0..KEYS).for_each(|n| bed.ks().put(key(n * 7 % KEYS), [7; 200]).unwrap());
    let most = Arc::new(AtomicU64::new(0));
    let (seen, db) = (Arc::clone(&most), bed.db().clone());
    bed.ks().set_compaction_filter(Some(CompactionFilter::new(move |entry| {
        if entry.key().ends_with(b"0") {
            seen.fetch_max(db.stats().keyspaces[0].sealed_memtables, Relaxed);
        }
        Ok(Verdict::Replace(vec![9; 200]))
    })));
    bed.db().compact().unwrap();
    assert_eq!(most.load(Relaxed), 2, "so many sealed memtables may wait");
    assert!(filter_stats(bed.db()).replaced >= u64::from(KEYS));
    let all: Vec<_> = (0..KEYS).map(|n| (key(n), vec![9u8; 200])).collect();
    assert!(entries(bed.ks().iter()) == all);
    // It holds the database.
    bed.ks().set_compaction_filter(None);
    assert_eq!(bed.db().stats().poisoned, None);
}

/// Else compactions would have work without end.
#[test]
fn a_value_that_is_replaced_by_the_same_one_is_kept() {
    for placement in [PlacementKind::Inline, PlacementKind::Streams] {
        let bed = Bed::new(placement);
        (0..200).for_each(|n| bed.ks().put(key(n), [7; 300]).unwrap());
        let filter = CompactionFilter::new(|_| Ok(Verdict::Replace(vec![9; 300])));
        bed.ks().set_compaction_filter(Some(filter));
        bed.db().compact().unwrap();
        assert_eq!(filter_stats(bed.db()).replaced, 200, "{placement:?}");
        bed.db().compact().unwrap();
        bed.db().compact().unwrap();
        assert_eq!(filter_stats(bed.db()).replaced, 200, "{placement:?}");
        assert_eq!(*bed.ks().get(key(100)).unwrap().unwrap(), [9; 300], "{placement:?}");
    }
}

/// It need not be read to know that another length is another value.
#[test]
fn a_large_value_is_replaced_without_reading_it() {
    const LARGE: usize = 4 << 20;
    let bed = Bed::new(PlacementKind::Inline);
    bed.ks().put_reader(key(1), &vec![7; LARGE][..]).unwrap();
    bed.db().flush().unwrap();
    bed.ks().set_compaction_filter(Some(CompactionFilter::new(|_| Ok(Verdict::Replace(vec![9; 100])))));
    let bytes_read = || bed.db().stats().io.iter().map(|io| io.bytes_read).sum::<u64>();
    let before = bytes_read();
    bed.db().compact().unwrap();
    assert!(bytes_read() - before < LARGE as u64, "{} bytes were read", bytes_read() - before);
    assert_eq!(*bed.ks().get(key(1)).unwrap().unwrap(), [9; 100]);
    assert_eq!(filter_stats(bed.db()).replaced, 1);
}
