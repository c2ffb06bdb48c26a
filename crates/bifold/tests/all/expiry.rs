//! Entries that expire: every read, every job, every placement, with a clock that the test moves.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bifold::{
    Batch, Db, Durability, Env, Error, Keyspace, KeyspaceOptions, Options, PlacementKind, Snapshot, TimeToLive,
    Transaction, options::Cold,
};
use bifold_io::memory::Fate;

use crate::{
    bed::{Bed, numbers, small},
    support::{check_iterators, entries},
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key(n: u32) -> String {
    format!("key{n:05}")
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(1 + (n % 60) as usize)
}

/// What is right: values by key, and when they expire.
type Model = BTreeMap<String, (Vec<u8>, Option<u64>)>;

fn at(model: &Model, now: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let is_alive = |expires: &Option<u64>| expires.is_none_or(|expires| expires > now);
    model.iter().filter(|(_, (_, e))| is_alive(e)).map(|(k, (v, _))| (k.clone().into_bytes(), v.clone())).collect()
}

/// Every way to read gives these entries.
fn check_reads(ks: &Keyspace, snapshot: &Snapshot, model: &Model, now: u64, what: &str) {
    let right = at(model, now);
    check_iterators(ks, &right, what);
    assert_eq!(entries(snapshot.iter(ks)), right, "{what}: in a snapshot");
    assert_eq!(entries(ks.prefix("key")), right, "{what}: prefix");
    let keys: Vec<&String> = model.keys().collect();
    let right: BTreeMap<Vec<u8>, Vec<u8>> = right.into_iter().collect();
    for (key, found) in keys.iter().zip(ks.multi_get(&keys).unwrap()) {
        let right = right.get(key.as_bytes()).map(|value| &value[..]);
        assert_eq!(found.as_deref(), right, "{what}: multi_get of {key}");
        assert_eq!(ks.get(key).unwrap().as_deref(), right, "{what}: get of {key}");
        assert_eq!(snapshot.get(ks, key).unwrap().as_deref(), right, "{what}: get of {key} in a snapshot");
        assert_eq!(ks.contains_key(key).unwrap(), right.is_some(), "{what}: contains_key of {key}");
        let expires = model[*key].1;
        let left = match (right, expires) {
            (None, _) => TimeToLive::NoKey,
            (Some(_), None) => TimeToLive::Forever,
            (Some(_), Some(expires)) => TimeToLive::Left(seconds(expires - now)),
        };
        assert_eq!(ks.ttl(key).unwrap(), left, "{what}: ttl of {key}");
    }
    for pair in ks.iter().map(Result::unwrap) {
        let expires = model[std::str::from_utf8(pair.key()).unwrap()].1;
        assert_eq!(pair.expires_at(), expires.map(|at| UNIX_EPOCH + seconds(at)), "{what}");
    }
}

/// Random puts with and without a time, deletes, flushes, merges, GC, snapshots, openings; time passes.
struct History {
    bed: Bed,
    model: Model,
    now: u64,
    held: Vec<(Snapshot, Model, u64)>,
}

impl History {
    fn put(&mut self, n: u32, round: u32, lives: Option<u64>) {
        let (ks, expires) = (self.bed.ks(), lives.map(|lives| self.now + lives));
        match lives {
            Some(lives) => ks.put_with_ttl(key(n), value(n, round), seconds(lives)).unwrap(),
            None => ks.put(key(n), value(n, round)).unwrap(),
        }
        self.model.insert(key(n), (value(n, round), expires));
    }

    fn put_together(&mut self, entries: std::ops::Range<u32>, round: u32, lives: u64) {
        let mut batch = Batch::new();
        for n in entries {
            batch.put_with_ttl(self.bed.ks(), key(n), value(n, round), seconds(lives)).unwrap();
            self.model.insert(key(n), (value(n, round), Some(self.now + lives)));
        }
        self.bed.db().commit(batch).unwrap();
    }

    fn delete(&mut self, entries: std::ops::Range<u32>) {
        match entries.len() {
            1 => self.bed.ks().delete(key(entries.start)).unwrap(),
            _ => self.bed.ks().delete_range(key(entries.start)..key(entries.end)).unwrap(),
        }
        entries.for_each(|n| drop(self.model.remove(&key(n))));
    }

    /// `touch`, or `persist` if it shall live for good.
    fn change(&mut self, n: u32, lives: Option<u64>, what: &str) {
        let alive = self.model.get_mut(&key(n)).filter(|(_, expires)| expires.is_none_or(|at| at > self.now));
        let ks = self.bed.ks();
        let done = lives.map_or_else(|| ks.persist(key(n)), |lives| ks.touch(key(n), seconds(lives)));
        assert_eq!(done.unwrap(), alive.is_some(), "{what}");
        if let Some((_, expires)) = alive {
            *expires = lives.map(|lives| self.now + lives);
        }
    }

    fn step(&mut self, step: u32, what: &str, random: &mut impl FnMut(u64) -> u64) {
        let n = random(120) as u32;
        match random(30) {
            0..=9 => self.put(n, step, Some(1 + random(200))),
            10..=16 => self.put(n, step, None),
            17 => self.put_together(n..n + 20, step, 1 + random(100)),
            18 => self.delete(n..n + 1),
            19 => self.delete(n..n + 10),
            20 => self.now += random(80),
            21 => self.bed.db().flush().unwrap(),
            22 => self.bed.ks().compact_range(key(n)..key(n + 40)).unwrap(),
            23 if random(3) == 0 => self.bed.db().compact().unwrap(),
            24 if random(2) == 0 => self.bed.db().collect_garbage().unwrap(),
            25 => self.held.push((self.bed.db().snapshot(), self.model.clone(), self.now)),
            26 if !self.held.is_empty() => drop(self.held.swap_remove(random(self.held.len() as u64) as usize)),
            27 => self.change(n, Some(50), what),
            28 => self.change(n, None, what),
            29 if random(6) == 0 => {
                self.held.clear();
                self.bed.reopen();
            }
            _ => {}
        }
        self.bed.set_time(self.now);
    }

    fn check(&self, what: &str) {
        let ks = self.bed.ks();
        check_reads(ks, &self.bed.db().snapshot(), &self.model, self.now, what);
        for (snapshot, then, time) in &self.held {
            assert_eq!(entries(snapshot.iter(ks)), at(then, *time), "{what}: snapshot");
            for key in then.keys() {
                let right = at(then, *time).into_iter().find(|(k, _)| k == key.as_bytes()).map(|(_, v)| v);
                assert_eq!(snapshot.get(ks, key).unwrap().as_deref(), right.as_deref(), "{what}: {key}");
            }
        }
    }
}

fn history(placement: PlacementKind, seed: u64) {
    let mut random = numbers(seed);
    let mut history = History { bed: Bed::new(placement), model: Model::new(), now: 1_000_000, held: Vec::new() };
    for step in 0..300 {
        let what = format!("{placement:?}, seed {seed}, step {step}");
        history.step(step, &what, &mut random);
        if step % 10 == 0 {
            history.check(&what);
        }
    }
    history.held.clear();
    let bed = &mut history.bed;
    bed.db.take().unwrap().close().unwrap();
    assert!(bifold::verify_in(&bed.env(), Path::new("/db"), |_| {}).unwrap().problems.is_empty());
    bed.reopen();
    history.check("at the end");
}

#[test]
fn random_histories_read_what_has_not_expired() {
    for placement in PlacementKind::ALL {
        (0..6).for_each(|seed| history(placement, seed));
    }
}

/// With `Sync` each acknowledged operation is there after a power loss, with its instant; nothing expired comes back.
#[test]
fn a_power_loss_keeps_instants() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        bed.options.durability = Durability::Sync;
        bed.reopen();
        let mut random = numbers(7);
        let (mut model, mut now) = (Model::new(), 1_000_000);
        for step in 0..120 {
            let n = random(30) as u32;
            match random(12) {
                0..=4 => {
                    let expires = now + 1 + random(60);
                    bed.ks().put_with_ttl(key(n), value(n, step), seconds(expires - now)).unwrap();
                    model.insert(key(n), (value(n, step), Some(expires)));
                }
                5..=6 => {
                    bed.ks().put(key(n), value(n, step)).unwrap();
                    model.insert(key(n), (value(n, step), None));
                }
                7 => {
                    bed.ks().delete(key(n)).unwrap();
                    model.remove(&key(n));
                }
                8 => now += random(20),
                9 => bed.db().flush().unwrap(),
                10 => bed.db().compact().unwrap(),
                _ => bed.db().collect_garbage().unwrap(),
            }
            bed.set_time(now);
            for fate in [Fate::DropUnsynced, Fate::Random(u64::from(step))] {
                let fs = bed.fs.power_loss(fate);
                let env = Env { fs: Arc::new(fs), ..bed.env() };
                let db = Db::open_in(env, "/db", bed.options.clone()).unwrap();
                let what = format!("{placement:?}, step {step}, {fate:?}");
                check_reads(db.default_keyspace(), &db.snapshot(), &model, now, &what);
                drop(db);
            }
        }
    }
}

#[test]
fn an_expired_version_hides_older_ones_for_good() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let (old, new) = ([b'o'; 300], [b'n'; 300]);
        bed.ks().put("k", old).unwrap();
        bed.db().flush().unwrap();
        bed.db().compact().unwrap();
        bed.ks().put_with_ttl("k", new, seconds(10)).unwrap();
        bed.db().flush().unwrap();
        bed.set_time(1_000_010);
        let is_gone = |what: &str| assert_eq!(bed.ks().get("k").unwrap(), None, "{placement:?}: {what}");
        is_gone("at its instant");
        bed.ks().put("other", new).unwrap();
        bed.db().flush().unwrap();
        is_gone("after a flush");
        bed.db().compact().unwrap();
        is_gone("after a merge");
        bed.db().collect_garbage().unwrap();
        is_gone("after GC");
        assert_eq!(bed.db().stats().keyspaces[0].expiring_entries, 0, "{placement:?}");
    }
}

/// The tags in the groups are still the newest records of their keys.
#[test]
fn values_in_a_cold_log_that_have_expired_are_freed() {
    let mut options = small(PlacementKind::HashKv);
    options.keyspace.values.hashkv.cold = Cold::Log;
    let bed = Bed::of(options);
    (0..600).for_each(|n| bed.ks().put_with_ttl(key(n), value(n, 0), seconds(10)).unwrap());
    bed.db().collect_garbage().unwrap();
    let before = bed.db().stats().space.values_bytes;
    bed.set_time(1_000_010);
    bed.ks().compact_range::<&str>(..).unwrap();
    bed.db().wait_idle().unwrap();
    let after = bed.db().stats().space.values_bytes;
    assert!(after < before / 2, "{after} bytes of {before} are left");
}

#[test]
fn time_that_was_seen_does_not_come_back() {
    let mut bed = Bed::new(PlacementKind::Inline);
    bed.ks().put_with_ttl("k", "v", seconds(10)).unwrap();
    bed.set_time(1_000_010);
    assert_eq!(bed.ks().get("k").unwrap(), None);
    bed.set_time(1_000_000);
    assert_eq!(bed.ks().get("k").unwrap(), None, "the clock was set back");
    bed.reopen();
    assert_eq!(bed.ks().get("k").unwrap(), None, "and the database opened again");
    bed.ks().put_with_ttl("k", "v", seconds(10)).unwrap();
    assert_eq!(bed.ks().ttl("k").unwrap(), TimeToLive::Left(seconds(10)), "counted from the time that was seen");
}

#[test]
fn a_transaction_conflicts_if_what_it_has_read_has_expired() {
    type Read = fn(&Transaction, &Keyspace);
    let reads: [(&str, Read); 4] = [
        ("get", |tx, ks| assert!(tx.get(ks, "k").unwrap().is_some())),
        ("contains_key", |tx, ks| assert!(tx.contains_key(ks, "k").unwrap())),
        ("multi_get", |tx, ks| assert!(tx.multi_get(ks, ["k"]).unwrap()[0].is_some())),
        ("range", |tx, ks| assert_eq!(tx.iter(ks).count(), 1)),
    ];
    for (name, read) in reads {
        for passed in [9, 10] {
            let bed = Bed::new(PlacementKind::Inline);
            bed.ks().put_with_ttl("k", "v", seconds(10)).unwrap();
            let mut tx = bed.db().transaction();
            read(&tx, bed.ks());
            bed.set_time(1_000_000 + passed);
            read(&tx, bed.ks());
            tx.put_with_ttl(bed.ks(), "other", "w", seconds(5)).unwrap();
            let committed = tx.commit();
            assert_eq!(committed.is_err_and(|error| error.is_conflict()), passed == 10, "{name}, {passed}");
            let left = if passed == 10 { TimeToLive::NoKey } else { TimeToLive::Left(seconds(5)) };
            assert_eq!(bed.ks().ttl("other").unwrap(), left);
        }
    }
}

#[test]
fn a_transaction_does_not_conflict_if_what_it_has_read_was_given_more_time() {
    type Read = fn(&Transaction, &Keyspace);
    let reads: [(&str, Read); 2] = [
        ("get", |tx, ks| assert!(tx.get(ks, "k").unwrap().is_some() && tx.get(ks, "l").unwrap().is_some())),
        ("range", |tx, ks| assert_eq!(tx.iter(ks).count(), 2)),
    ];
    for (name, read) in reads {
        for (passed, touches_both, refused) in [(19, true, None), (20, true, Some("k")), (19, false, Some("l"))] {
            let bed = Bed::new(PlacementKind::Inline);
            bed.ks().put_with_ttl("k", "v", seconds(10)).unwrap();
            bed.ks().put_with_ttl("l", "v", seconds(11)).unwrap();
            let mut tx = bed.db().transaction();
            read(&tx, bed.ks());
            assert!(bed.ks().touch("k", seconds(20)).unwrap());
            if touches_both {
                assert!(bed.ks().touch("l", seconds(30)).unwrap());
            }
            bed.set_time(1_000_000 + passed);
            tx.put(bed.ks(), "other", "w").unwrap();
            let conflict = match tx.commit() {
                Err(Error::Conflict { key, .. }) => Some(key.escape_ascii().to_string()),
                committed => committed.map(|_| None).unwrap(),
            };
            assert_eq!(conflict.as_deref(), refused, "{name}, {passed}");
        }
    }
}

#[test]
fn a_keyspace_has_a_default_that_puts_override() {
    let bed = Bed::new(PlacementKind::HashKv);
    let options = KeyspaceOptions { ttl: Some(seconds(10)), ..bed.ks().options() };
    bed.ks().set_options(options).unwrap();
    bed.ks().put("a", [1; 300]).unwrap();
    bed.ks().put_with_ttl("b", "v", seconds(20)).unwrap();
    bed.ks().put_with_ttl("c", "v", Duration::MAX).unwrap();
    bed.ks().compare_and_swap("d", None, Some(b"v")).unwrap();
    let mut batch = Batch::new();
    batch.put(bed.ks(), "e", "v").unwrap();
    bed.db().commit(batch).unwrap();
    let left = |key: &str| bed.ks().ttl(key).unwrap();
    let ten = TimeToLive::Left(seconds(10));
    assert_eq!(["a", "d", "e"].map(left), [ten; 3]);
    assert_eq!(["b", "c"].map(left), [TimeToLive::Left(seconds(20)), TimeToLive::Forever]);
    bed.set_time(1_000_010);
    let swapped = bed.ks().compare_and_swap("a", None, Some(b"again")).unwrap();
    assert_eq!(swapped, bifold::Swap::Done, "an expired key has no value");
}

/// One entry in a hundred is too little for a rewrite without a request.
#[test]
fn compact_drops_the_little_that_has_expired() {
    let bed = Bed::new(PlacementKind::Inline);
    for n in 0..100 {
        bed.ks().put(key(n), "stays").unwrap();
    }
    bed.ks().put_with_ttl(key(50), "goes", seconds(10)).unwrap();
    bed.db().compact().unwrap();
    let expiring = || bed.db().stats().keyspaces[0].expiring_entries;
    assert_eq!(expiring(), 1);
    bed.set_time(1_000_010);
    bed.db().compact().unwrap();
    assert_eq!(expiring(), 0);
}

#[test]
fn copies_keep_instants() {
    let bed = Bed::new(PlacementKind::WiscKey);
    bed.ks().put_with_ttl("k", [1; 300], seconds(10)).unwrap();
    bed.db().checkpoint("/checkpoint").unwrap();
    bed.db().backup("/backups").unwrap();
    bifold::Backup::open_in(bed.env(), "/backups").unwrap().restore("/restored").unwrap();
    for copy in ["/checkpoint", "/restored"] {
        let db = Db::open_in(bed.env(), copy, bed.options.clone()).unwrap();
        assert_eq!(db.default_keyspace().ttl("k").unwrap(), TimeToLive::Left(seconds(10)), "{copy}");
        drop(db);
    }
}

/// Row by row what RocksDB documents of `DBWithTTL`, and what is so here: the table in `docs/expiry.md`.
#[test]
fn what_rocksdb_documents_of_ttl() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        bed.ks().put_with_ttl("k", [1; 300], Duration::from_millis(9_500)).unwrap();
        bed.ks().put_with_ttl("long", [2; 300], seconds(20)).unwrap();
        bed.db().flush().unwrap();
        bed.set_time(1_000_009);
        assert_eq!(bed.ks().ttl("k").unwrap(), TimeToLive::Left(Duration::from_millis(500)), "it lives that long");
        assert_eq!(bed.ks().get("k").unwrap().unwrap(), [1; 300], "values have nothing added");
        bed.set_time(1_000_010);
        assert!(bed.ks().get("k").unwrap().is_none(), "no compaction is needed");
        assert_eq!(bed.ks().iter().count(), 1, "nor by iterators");
        // Opened again with another default: instants are those of the puts.
        bed.options.keyspace.ttl = Some(seconds(1));
        bed.reopen();
        let other = KeyspaceOptions { ttl: Some(seconds(1)), ..bed.ks().options() };
        bed.ks().set_options(other.clone()).unwrap();
        bed.ks().put("later", "v").unwrap();
        assert_eq!(bed.ks().ttl("later").unwrap(), TimeToLive::Left(seconds(1)), "it counts for later puts");
        bed.set_time(1_000_019);
        assert!(bed.ks().get("long").unwrap().is_some(), "the next opening's time to live changes nothing");
        bed.set_time(1_000_020);
        // A reader that compacts nothing finds nothing expired either.
        bed.db.take().unwrap().close().unwrap();
        let options = Options { access: bifold::Access::ReadOnly, ..bed.options.clone() };
        let reader = Db::open_in(bed.env(), "/db", options).unwrap();
        assert_eq!(reader.iter().count(), 0);
        drop(reader);
        bed.reopen();
        // No time to live: for good. None at all: at once, and not for good.
        bed.ks().set_options(KeyspaceOptions { ttl: None, ..other }).unwrap();
        bed.ks().put("for good", "v").unwrap();
        bed.ks().put_with_ttl("at once", "v", Duration::ZERO).unwrap();
        assert_eq!(bed.ks().ttl("for good").unwrap(), TimeToLive::Forever);
        assert_eq!(bed.ks().ttl("at once").unwrap(), TimeToLive::NoKey);
    }
}
