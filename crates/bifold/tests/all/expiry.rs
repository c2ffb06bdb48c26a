//! Entries that expire: every read, every job, every placement, with a clock that the test moves.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bifold::{
    Batch, Db, Env, Keyspace, KeyspaceOptions, Options, PlacementKind, Snapshot, TimeToLive,
    options::{DiffKv, HashKv, Values},
};
use bifold_io::{ManualClock, memory::MemoryFs};

use crate::support::{entries, tiny};

const ALL: [PlacementKind; 7] = [
    PlacementKind::Inline,
    PlacementKind::WiscKey,
    PlacementKind::HashKv,
    PlacementKind::NovKv,
    PlacementKind::DiffKv,
    PlacementKind::UniKv,
    PlacementKind::Streams,
];

/// A database in memory with a clock of its own.
struct Bed {
    fs: MemoryFs,
    clock: ManualClock,
    options: Options,
    db: Option<Db>,
}

impl Bed {
    fn new(placement: PlacementKind) -> Self {
        let values = Values {
            separate_from_bytes: 64,
            file_bytes: 16 << 10,
            hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
            diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
            ..Values::default()
        };
        let keyspace = KeyspaceOptions { values, ..tiny().keyspace.with_placement(placement) };
        let options = Options { keyspace: KeyspaceOptions { table_bytes: 8 << 10, ..keyspace }, ..tiny() };
        let mut bed = Self { fs: MemoryFs::new(), clock: ManualClock::default(), options, db: None };
        bed.set_time(1_000_000);
        bed.reopen();
        bed
    }

    fn set_time(&self, seconds: u64) {
        self.clock.set_unix(Duration::from_secs(seconds));
    }

    fn env(&self) -> Env {
        Env { fs: Arc::new(self.fs.clone()), clock: Arc::new(self.clock.clone()), ..Env::system() }
    }

    fn reopen(&mut self) {
        if let Some(db) = self.db.take() {
            db.close().unwrap();
        }
        self.db = Some(Db::open_in(self.env(), "/db", self.options.clone()).unwrap());
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn ks(&self) -> &Keyspace {
        self.db().default_keyspace()
    }
}

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
    assert_eq!(entries(ks.iter()), right, "{what}: forward");
    assert_eq!(entries(ks.iter().rev()), right.iter().rev().cloned().collect::<Vec<_>>(), "{what}: backward");
    assert_eq!(entries(snapshot.iter(ks)), right, "{what}: in a snapshot");
    assert_eq!(entries(ks.prefix("key")), right, "{what}: prefix");
    let mut visited = Vec::new();
    ks.iter()
        .visit(|key, value| {
            visited.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(visited, right, "{what}: visit");
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

/// A generator of numbers, the same each time.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// Random puts with and without a time, deletes, flushes, merges, GC, snapshots, openings; time passes.
fn history(placement: PlacementKind, seed: u64) {
    let mut bed = Bed::new(placement);
    let mut random = numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (mut model, mut now) = (Model::new(), 1_000_000);
    let mut held: Vec<(Snapshot, Model, u64)> = Vec::new();
    for step in 0..300 {
        let what = format!("{placement:?}, seed {seed}, step {step}");
        let n = random(120) as u32;
        match random(30) {
            0..=9 => {
                let expires = now + 1 + random(200);
                bed.ks().put_with_ttl(key(n), value(n, step), seconds(expires - now)).unwrap();
                model.insert(key(n), (value(n, step), Some(expires)));
            }
            10..=16 => {
                bed.ks().put(key(n), value(n, step)).unwrap();
                model.insert(key(n), (value(n, step), None));
            }
            17 => {
                let mut batch = Batch::new();
                for n in n..n + 20 {
                    let expires = now + 1 + random(100);
                    batch.put_with_ttl(bed.ks(), key(n), value(n, step), seconds(expires - now)).unwrap();
                    model.insert(key(n), (value(n, step), Some(expires)));
                }
                bed.db().commit(batch).unwrap();
            }
            18 => {
                bed.ks().delete(key(n)).unwrap();
                model.remove(&key(n));
            }
            19 => {
                bed.ks().delete_range(key(n)..key(n + 10)).unwrap();
                (n..n + 10).for_each(|n| drop(model.remove(&key(n))));
            }
            20 => now += random(80),
            21 => bed.db().flush().unwrap(),
            22 => bed.ks().compact_range(key(n)..key(n + 40)).unwrap(),
            23 if random(3) == 0 => bed.db().compact().unwrap(),
            24 if random(2) == 0 => bed.db().collect_garbage().unwrap(),
            25 => held.push((bed.db().snapshot(), model.clone(), now)),
            26 if !held.is_empty() => drop(held.swap_remove(random(held.len() as u64) as usize)),
            27 => {
                let is_alive = model.get(&key(n)).is_some_and(|(_, e)| e.is_none_or(|e| e > now));
                assert_eq!(bed.ks().touch(key(n), seconds(50)).unwrap(), is_alive, "{what}");
                if is_alive {
                    model.get_mut(&key(n)).unwrap().1 = Some(now + 50);
                }
            }
            28 => {
                let is_alive = model.get(&key(n)).is_some_and(|(_, e)| e.is_none_or(|e| e > now));
                assert_eq!(bed.ks().persist(key(n)).unwrap(), is_alive, "{what}");
                if is_alive {
                    model.get_mut(&key(n)).unwrap().1 = None;
                }
            }
            29 if random(6) == 0 => {
                held.clear();
                bed.reopen();
            }
            _ => {}
        }
        bed.set_time(now);
        if step % 10 == 0 {
            check_reads(bed.ks(), &bed.db().snapshot(), &model, now, &what);
            for (snapshot, then, time) in &held {
                assert_eq!(entries(snapshot.iter(bed.ks())), at(then, *time), "{what}: snapshot");
                for key in then.keys() {
                    let right = at(then, *time).into_iter().find(|(k, _)| k == key.as_bytes()).map(|(_, v)| v);
                    assert_eq!(snapshot.get(bed.ks(), key).unwrap().as_deref(), right.as_deref(), "{what}: {key}");
                }
            }
        }
    }
    drop(held);
    bed.db.take().unwrap().close().unwrap();
    assert!(bifold::verify_in(&bed.env(), Path::new("/db"), |_| {}).unwrap().problems.is_empty());
    bed.reopen();
    check_reads(bed.ks(), &bed.db().snapshot(), &model, now, "at the end");
}

#[test]
fn random_histories_read_what_has_not_expired() {
    for placement in ALL {
        (0..6).for_each(|seed| history(placement, seed));
    }
}
