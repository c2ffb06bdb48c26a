//! Write caches: what they show, when they commit, and what a crash leaves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bifold::{Access, Db, Durability, Env, Error, KeyspaceOptions, MergeOperator, Options, PlacementKind, Workers};
use bifold_io::{
    faulty::FaultKind,
    memory::{MemoryFs, OpKind},
};

use crate::{
    bed::{Bed, numbers, small},
    scene::{Scene, calls_of, failing, images},
    support::{TempDir, entries, keys, tiny, tiny_db},
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The round of [`play`] that is synced.
const SYNCED: u8 = 1;

/// More than any of these tests gathers.
const MANY: u64 = 64 << 10;

#[test]
fn the_newest_write_of_a_key_is_seen_and_committed() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        bed.ks().put("old", [1; 100]).unwrap();
        bed.ks().put("gone", [1; 100]).unwrap();
        let cache = bed.ks().write_cache(MANY).unwrap();
        let commits = || bed.db().snapshot().seqno();
        let before = commits();
        for n in 0..100u8 {
            cache.put("new", [n; 100]).unwrap();
        }
        cache.put("old", [2; 30]).unwrap();
        cache.delete("gone").unwrap();
        cache.delete("never there").unwrap();
        let get = |key: &str| cache.get(key).unwrap().map(|value| value.to_vec());
        let expected = [("new", Some(vec![99; 100])), ("old", Some(vec![2; 30])), ("gone", None), ("other", None)];
        expected.iter().for_each(|(key, value)| assert_eq!(&get(key), value, "{placement:?}: {key}"));
        assert_eq!((commits(), keys(bed.ks().iter())), (before, vec!["gone".into(), "old".into()]), "nothing yet");
        assert_eq!((cache.replaced(), bed.db().stats().memory.transactions), (99, cache.bytes()));

        cache.drain().unwrap();
        assert_eq!((cache.bytes(), commits()), (0, before + 4), "{placement:?}: one entry for each key");
        expected.iter().for_each(|(key, value)| assert_eq!(&get(key), value, "{placement:?}: {key}"));
        let all = vec![(b"new".to_vec(), vec![99; 100]), (b"old".to_vec(), vec![2; 30])];
        assert_eq!(entries(bed.ks().iter()), all, "{placement:?}");
        bed.ks().put("old", "newer").unwrap();
        assert_eq!(get("old").unwrap(), b"newer", "what was drained is the keyspace's");
    }
}

#[test]
fn a_full_cache_is_committed_by_the_write_that_fills_it() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    let cache = ks.write_cache(4 << 10).unwrap();
    let mut drains = 0;
    for n in 0..100u32 {
        cache.put(n.to_be_bytes(), [0; 100]).unwrap();
        assert!(cache.bytes() < 4 << 10);
        let here = usize::from(cache.bytes() > 0);
        if here == 0 {
            drains += 1;
            assert_eq!(ks.iter().count(), n as usize + 1);
        }
    }
    // 4096 bytes are reached by the 21st entry of 200.
    assert_eq!(drains, 4);
    cache.put("large", vec![1; 10 << 10]).unwrap();
    assert_eq!((cache.bytes(), ks.iter().count()), (0, 101));
    drop(ks.write_cache(0).unwrap().put("at once", ""));
    assert!(ks.contains_key("at once").unwrap());
    let refused = ks.write_cache((512 << 20) + 1).unwrap_err().to_string();
    assert!(refused.contains("at most 536870912"), "{refused}");
}

/// A cache that gets no memory commits what it has, and then the write itself.
#[test]
fn writes_go_on_when_transactions_have_all_the_memory() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace();
    let cache = ks.write_cache(MANY * 16).unwrap();
    cache.put("k", "1").unwrap();
    let mut transaction = db.transaction();
    let most = db.options().memory_limit / 16;
    transaction.put(ks, "t", vec![0; (most - cache.bytes() - 300) as usize]).unwrap();
    cache.put("k", vec![2; 1000]).unwrap();
    assert_eq!((cache.bytes(), ks.get("k").unwrap().unwrap().len()), (0, 1000));
    cache.delete("k").unwrap();
    cache.put("other", vec![2; 1000]).unwrap();
    assert_eq!(keys(ks.iter()), ["other"]);
    transaction.commit().unwrap();
    (0..40u8).for_each(|n| cache.put([n], [0; 1000]).unwrap());
    assert_eq!(
        (keys(ks.iter()), cache.bytes() > 40_000),
        (vec!["other".into(), "t".into()], true),
        "there is room again"
    );
}

#[test]
fn entries_expire_in_the_cache_and_after_it() {
    let bed = Bed::new(PlacementKind::HashKv);
    let cache = bed.ks().write_cache(MANY).unwrap();
    cache.put_with_ttl("short", [1; 100], Duration::from_secs(10)).unwrap();
    cache.put_with_ttl("long", [1; 100], Duration::from_secs(30)).unwrap();
    let seen = || ["short", "long"].map(|key| cache.get(key).unwrap().is_some());
    bed.set_time(1_000_009);
    assert_eq!(seen(), [true, true]);
    bed.set_time(1_000_010);
    assert_eq!(seen(), [false, true]);
    cache.drain().unwrap();
    assert_eq!((seen(), keys(bed.ks().iter())), ([false, true], vec!["long".into()]));
    bed.set_time(1_000_030);
    assert_eq!(seen(), [false, false]);
}

#[test]
fn closing_and_dropping_commit_what_is_gathered() {
    let (_dir, db) = tiny_db();
    let ks = db.default_keyspace().clone();
    let cache = ks.write_cache(MANY).unwrap();
    cache.put("a", "1").unwrap();
    cache.close().unwrap();
    let cache = ks.write_cache(MANY).unwrap();
    cache.put("b", "1").unwrap();
    drop(cache);
    assert_eq!(keys(ks.iter()), ["a", "b"]);
    let cache = ks.write_cache(MANY).unwrap();
    cache.put("c", "1").unwrap();
    db.close().unwrap();
    let closed = |outcome: bifold::Result<()>| assert!(matches!(outcome, Err(Error::Closed { .. })));
    closed(cache.put("d", "1"));
    closed(cache.get("c").map(drop));
    closed(cache.close());
}

#[test]
fn bad_writes_are_refused_and_change_nothing() {
    let (dir, db) = tiny_db();
    let other = db.keyspace("other", tiny().keyspace).unwrap();
    let cache = other.write_cache(MANY).unwrap();
    let argument = |outcome: bifold::Result<()>| assert!(matches!(outcome, Err(Error::InvalidArgument { .. })));
    argument(cache.put("", "value"));
    argument(cache.delete(vec![0; 65 << 10]));
    assert_eq!(cache.bytes(), 0);
    cache.put("k", "v").unwrap();
    db.drop_keyspace("other").unwrap();
    for outcome in [cache.put("k", "w"), cache.get("k").map(drop), cache.drain()] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }) && error.to_string().contains("`other`"), "{error}");
    }
    drop((cache, other));
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), Options { access: Access::ReadOnly, ..tiny() }).unwrap();
    let cache = db.default_keyspace().write_cache(MANY).unwrap();
    assert!(matches!(cache.put("k", "v"), Err(Error::ReadOnly)));
    cache.close().unwrap();
}

/// A commit would refuse it, and with it all that is gathered.
#[test]
fn what_cannot_be_committed_is_not_gathered() {
    let (_dir, db) = tiny_db();
    let with_operator = KeyspaceOptions { merge: Some(MergeOperator::append()), ..tiny().keyspace };
    let ks = db.keyspace("merges", with_operator).unwrap();
    let cache = ks.write_cache(MANY).unwrap();
    cache.put("a", "1").unwrap();
    let refused = cache.put_with_ttl("b", "1", Duration::from_secs(1)).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
    cache.close().unwrap();
    assert_eq!(keys(ks.iter()), ["a"]);
}

/// Three rounds of writes by a cache to the first keyspace, each drained once. They are told when they are drained:
/// that is when they may be found.
fn play(scene: &Scene<Model>) -> bifold::Result<()> {
    let cache = scene.keyspaces[0].write_cache(MANY)?;
    let mut gathered = Model::new();
    for round in 0..3u8 {
        for n in 0..60u8 {
            let key = vec![n * 3 % 31];
            if n % 9 == 8 {
                cache.delete(&key)?;
                gathered.remove(&key);
            } else {
                cache.put(&key, [round, n].repeat(50))?;
                gathered.insert(key, [round, n].repeat(50));
            }
        }
        scene.tell(|state| state[0] = gathered.clone());
        if round == SYNCED {
            cache.drain_with(Durability::Sync)?;
            scene.is_durable();
        } else {
            cache.drain()?;
        }
        scene.tell(|state| drop(state[1].insert(vec![round], vec![round; 100])));
        scene.keyspaces[1].put([round], [round; 100])?;
    }
    scene.db.flush()
}

#[test]
fn a_power_loss_leaves_all_of_a_drain_or_nothing() {
    for placement in [PlacementKind::HashKv, PlacementKind::Streams, PlacementKind::Inline, PlacementKind::DiffKv] {
        let options = small(placement);
        let images = images(&options, 2, play);
        assert!(images.len() > 40, "{placement:?}: {}", images.len());
        for image in images {
            let env = Env { fs: Arc::new(image.fs.clone()), ..Env::system() };
            let db = Db::open_in(env, "/db", options.clone()).unwrap();
            let model = |keyspace: &bifold::Keyspace| Model::from_iter(entries(keyspace.iter()));
            let other = db.existing_keyspace("other").unwrap();
            let found = [model(db.default_keyspace()), other.as_ref().map(model).unwrap_or_default()];
            assert!(image.allows(&found), "{placement:?}, {}: {found:?}", image.what);
        }
    }
}

/// Whatever call fails, nothing that a cache took is gone from its sight.
#[test]
fn a_failed_drain_keeps_what_is_gathered() {
    let options = small(PlacementKind::HashKv);
    let play = |scene: &Scene<Model>| {
        let cache = scene.keyspaces[0].write_cache(MANY)?;
        for round in 0..3u8 {
            (0..60u8).try_for_each(|n| cache.put([n % 30], [round, n].repeat(50)))?;
            let drained = cache.drain_with(Durability::Sync);
            for n in 30..60u8 {
                // The call that fails may be this one's.
                let found = cache.get([n % 30]).or_else(|_| cache.get([n % 30])).unwrap();
                assert_eq!(found.as_deref(), Some(&[round, n].repeat(50)[..]), "round {round}, {drained:?}");
            }
            drained?;
        }
        Ok(())
    };
    let calls = calls_of(&options, play);
    let mut failed = 0;
    for at in 0..calls {
        for kind in [FaultKind::EIO, FaultKind::ENOSPC] {
            let (played, ..) = failing(&MemoryFs::new(), &options, (at, kind), play);
            failed += usize::from(played.is_err());
        }
    }
    assert!(failed > 10, "{failed} of {calls}");
}

/// While one thread drains, another one finds each key at least as new as it was acknowledged.
#[test]
fn readers_miss_nothing_while_a_cache_drains() {
    let dir = TempDir::new();
    let options = Options { workers: Workers::Threads(1), ..small(PlacementKind::HashKv) };
    let db = Db::open_with(dir.join("db"), options).unwrap();
    let cache = db.default_keyspace().write_cache(2 << 10).unwrap();
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    cache.put("k", 0u64.to_be_bytes()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..20_000u64 {
                cache.put("k", n.to_be_bytes()).unwrap();
                acknowledged.store(n, Ordering::Release);
                cache.put(n.to_be_bytes(), [7; 100]).unwrap();
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            let at_least = acknowledged.load(Ordering::Acquire);
            let found = cache.get("k").unwrap().expect("it was never deleted");
            let found = u64::from_be_bytes(found[..].try_into().unwrap());
            assert!(found >= at_least, "{found} after {at_least}");
        }
    });
    cache.close().unwrap();
    assert_eq!(db.iter().count(), 20_000);
}

/// The same, without luck: whatever a drain does to a file, what was gathered is found then.
#[test]
fn what_is_being_committed_is_found_in_the_cache() {
    let fs = MemoryFs::new();
    let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let db = Db::open_in(env, "/db", small(PlacementKind::HashKv)).unwrap();
    let cache = Arc::new(db.default_keyspace().write_cache(MANY).unwrap());
    let mut random = numbers(3);
    let asked = Arc::new(AtomicU64::new(0));
    for round in 0..5u8 {
        (0..100).for_each(|_| cache.put([random(40) as u8], [round; 200]).unwrap());
        (0..40).for_each(|n| cache.put([n], [round; 200]).unwrap());
        let (here, asked) = (Arc::clone(&cache), Arc::clone(&asked));
        fs.set_hook(Some(Arc::new(move |_, _: OpKind, _: &std::path::Path| {
            asked.fetch_add(1, Ordering::Relaxed);
            (0..40).for_each(|n| assert_eq!(here.get([n]).unwrap().unwrap()[..], [round; 200], "{n}"));
        })));
        cache.drain().unwrap();
        fs.set_hook(None);
    }
    assert!(asked.load(Ordering::Relaxed) >= 5);
}
