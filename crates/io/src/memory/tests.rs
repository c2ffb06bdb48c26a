//! What a power loss may and may not take.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bifold_contract::Error;

use super::{Fate, MemoryFs, OpKind};
use crate::{
    fs::{FileSystem, LockMode, WriteFile},
    random::Random,
};

const DIR: &str = "/db";

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn fs() -> MemoryFs {
    let fs = MemoryFs::new();
    fs.create_dir_all(DIR.as_ref()).unwrap();
    fs
}

/// A file whose name is durable and that holds `durable` synced bytes of 1 and `unsynced` bytes of 2.
fn half_synced(durable: usize, unsynced: usize) -> (MemoryFs, Arc<dyn WriteFile>) {
    let fs = fs();
    let file = fs.create(&path("log")).unwrap();
    file.append(&[&vec![1; durable]]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(DIR.as_ref()).unwrap();
    file.append(&[&vec![2; unsynced]]).unwrap();
    (fs, file)
}

fn fates(seeds: u64) -> impl Iterator<Item = Fate> {
    let sampled = (0..seeds).flat_map(|seed| [Fate::Random(seed), Fate::Prefix(seed)]);
    [Fate::KeepAll, Fate::DropUnsynced].into_iter().chain(sampled)
}

#[test]
fn keeping_all_keeps_all_and_dropping_unsynced_drops_just_that() {
    let (fs, _) = half_synced(700, 600);
    let all = [vec![1; 700], vec![2; 600]].concat();
    assert_eq!(fs.power_loss(Fate::KeepAll).read(&path("log")), Some(all.clone()));
    assert_eq!(fs.power_loss(Fate::DropUnsynced).read(&path("log")), Some(vec![1; 700]));
    assert_eq!(fs.read(&path("log")), Some(all), "the original is as it was");
}

#[test]
fn random_loss_takes_whole_sectors_and_never_a_synced_byte() {
    let (fs, _) = half_synced(700, 5000);
    let (mut shorter, mut holes, mut whole) = (0, 0, 0);
    for seed in 0..300 {
        let bytes = fs.power_loss(Fate::Random(seed)).read(&path("log")).unwrap();
        assert!((700..=5700).contains(&bytes.len()));
        assert!(bytes[..700].iter().all(|&b| b == 1));
        for sector in bytes.chunks(512).skip(1) {
            let unsynced = sector.iter().filter(|&&b| b != 1);
            let first = unsynced.clone().next();
            assert!(unsynced.clone().all(|b| Some(b) == first), "a sector is kept or lost as a whole");
        }
        shorter += u32::from(bytes.len() < 5700);
        holes += u32::from(bytes.windows(2).any(|pair| pair == [0, 2]));
        whole += u32::from(bytes.len() == 5700);
    }
    assert!(shorter > 50 && holes > 50 && whole > 50, "shorter {shorter}, holes {holes}, whole {whole}");
}

#[test]
fn random_loss_often_ends_a_file_between_two_appends() {
    let (fs, file) = half_synced(700, 1000);
    file.append(&[&vec![3; 1000]]).unwrap();
    let len = |seed| fs.power_loss(Fate::Random(seed)).read(&path("log")).unwrap().len();
    assert!((0..300).filter(|&seed| len(seed) == 1700).count() > 10);
}

#[test]
fn entries_are_lost_and_kept_each_on_its_own() {
    let fs = fs();
    for name in ["a", "b"] {
        fs.create(&path(name)).unwrap().sync().unwrap();
    }
    let mut seen = [false; 4];
    for seed in 0..100 {
        let found = fs.power_loss(Fate::Random(seed));
        let there = |name| usize::from(found.read(&path(name)).is_some());
        seen[there("a") + 2 * there("b")] = true;
    }
    assert_eq!(seen, [true; 4]);
    assert!(fs.power_loss(Fate::DropUnsynced).files().is_empty(), "a synced file needs a synced name");
    fs.sync_dir(DIR.as_ref()).unwrap();
    for fate in fates(50) {
        assert_eq!(fs.power_loss(fate).files(), [path("a"), path("b")]);
    }
}

#[test]
fn a_rename_replaces_its_target_in_one_step() {
    let fs = fs();
    fs.write_durable(&path("current"), b"old");
    let new = fs.create(&path("temporary")).unwrap();
    new.append(&[b"new"]).unwrap();
    new.sync().unwrap();
    fs.sync_dir(DIR.as_ref()).unwrap();
    fs.rename(&path("temporary"), &path("current")).unwrap();
    let mut seen = [false; 2];
    for fate in fates(50) {
        let found = fs.power_loss(fate);
        let renamed = found.read(&path("current")).unwrap() == b"new";
        assert_eq!(found.read(&path("temporary")).is_some(), !renamed);
        seen[usize::from(renamed)] = true;
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_removed_file_comes_back_until_the_directory_is_synced() {
    let fs = fs();
    fs.write_durable(&path("table"), b"bytes");
    fs.remove(&path("table")).unwrap();
    assert_eq!(fs.power_loss(Fate::DropUnsynced).read(&path("table")), Some(b"bytes".to_vec()));
    assert_eq!(fs.power_loss(Fate::KeepAll).read(&path("table")), None);
    fs.sync_dir(DIR.as_ref()).unwrap();
    assert_eq!(fs.power_loss(Fate::DropUnsynced).read(&path("table")), None);
}

#[test]
fn a_prefix_ends_at_one_moment_in_all_files() {
    let fs = fs();
    let files = ["a", "b"].map(|name| fs.create(&path(name)).unwrap());
    fs.sync_dir(DIR.as_ref()).unwrap();
    let mut all = Vec::new();
    let mut random = Random::new(1);
    for byte in 0..20 {
        let which = random.below(2) as usize;
        files[which].append(&[&[byte; 10]]).unwrap();
        all.extend([(which, byte); 10]);
    }
    let mut lens = [0; 201];
    for seed in 0..2000 {
        let found = fs.power_loss(Fate::Prefix(seed));
        let found = ["a", "b"].map(|name| found.read(&path(name)).unwrap());
        let prefix = &all[..found[0].len() + found[1].len()];
        for (which, bytes) in found.iter().enumerate() {
            let expected = prefix.iter().filter(|(file, _)| *file == which).map(|(_, byte)| *byte);
            assert!(expected.eq(bytes.iter().copied()), "seed {seed}: {found:?}");
        }
        lens[prefix.len()] += 1;
    }
    assert!(lens.iter().filter(|hits| **hits > 0).count() > 150, "every moment occurs: {lens:?}");
}

#[test]
fn a_prefix_covers_entries_too() {
    let fs = fs();
    for n in 0..10 {
        fs.create(&path(&n.to_string())).unwrap();
    }
    for seed in 0..100 {
        let found = fs.power_loss(Fate::Prefix(seed)).files();
        let expected: Vec<_> = (0..found.len()).map(|n| path(&n.to_string())).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_a_failed_sync_covered_is_lost_even_if_a_later_sync_succeeds() {
    let (fs, file) = half_synced(700, 600);
    fs.break_sync(&path("log"));
    file.append(&[&[3; 100]]).unwrap();
    file.sync().unwrap();
    let all = [vec![1; 700], vec![2; 600], vec![3; 100]].concat();
    assert_eq!(fs.read(&path("log")), Some(all.clone()), "it can be read");
    assert_eq!(fs.power_loss(Fate::KeepAll).read(&path("log")), Some(all));
    let lost = [vec![1; 700], vec![0; 600], vec![3; 100]].concat();
    for fate in fates(20).skip(1) {
        assert_eq!(fs.power_loss(fate).read(&path("log")), Some(lost.clone()));
    }
}

#[test]
fn entries_that_a_failed_sync_covered_are_lost() {
    let fs = fs();
    fs.create(&path("a")).unwrap();
    fs.break_sync(DIR.as_ref());
    fs.create(&path("b")).unwrap();
    fs.sync_dir(DIR.as_ref()).unwrap();
    assert_eq!(fs.files(), [path("a"), path("b")]);
    assert_eq!(fs.power_loss(Fate::DropUnsynced).files(), [path("b")]);
}

#[test]
fn truncating_is_durable_and_gives_up_what_was_behind() {
    let (fs, file) = half_synced(700, 600);
    fs.truncate(&path("log"), 800).unwrap();
    file.append(&[&[3; 50]]).unwrap();
    let kept = [vec![1; 700], vec![2; 100]].concat();
    assert_eq!(fs.power_loss(Fate::DropUnsynced).read(&path("log")), Some(kept));
    assert_eq!(fs.read(&path("log")).unwrap()[800..], [3; 50]);
}

#[test]
fn a_fork_can_still_lose_what_was_unsynced_and_shares_nothing() {
    let (fs, file) = half_synced(700, 600);
    fs.create(&path("new")).unwrap();
    let fork = fs.fork();
    file.sync().unwrap();
    fs.sync_dir(DIR.as_ref()).unwrap();
    assert_eq!(fork.files(), [path("log"), path("new")]);
    let lost = fork.power_loss(Fate::DropUnsynced);
    assert_eq!((lost.files(), lost.read(&path("log"))), (vec![path("log")], Some(vec![1; 700])));
    fork.open_append(&path("log")).unwrap().append(&[b"more"]).unwrap();
    assert_eq!(fs.read(&path("log")).unwrap().len(), 1300);
    assert_eq!(fork.ops(), fs.ops() - 1, "counting goes on in both: two calls here, one there");
}

#[test]
fn the_hook_sees_every_change_after_it_took_effect_and_may_simulate_a_power_loss() {
    let fs = fs();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = {
        let (fs, seen) = (fs.clone(), Arc::clone(&seen));
        move |op, kind, path: &Path| {
            let len = fs.power_loss(Fate::KeepAll).read(path).map(|bytes| bytes.len());
            seen.lock().unwrap().push((op, kind, len));
        }
    };
    fs.set_hook(Some(Arc::new(hook)));
    let file = fs.create(&path("a")).unwrap();
    file.append(&[b"xyz"]).unwrap();
    fs.rename(&path("a"), &path("b")).unwrap();
    assert!(fs.remove(&path("a")).is_err());
    fs.remove(&path("b")).unwrap();
    fs.set_hook(None);
    file.sync().unwrap();
    let expected = [
        (2, OpKind::Create, Some(0)),
        (3, OpKind::Append, Some(3)),
        (4, OpKind::Rename, Some(3)),
        (5, OpKind::Remove, None),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(fs.ops(), 6);
}

#[test]
fn a_full_file_system_takes_what_fits() {
    let fs = fs();
    let file = fs.create(&path("a")).unwrap();
    fs.set_capacity(Some(10));
    file.append(&[&[1; 4], &[2; 4]]).unwrap();
    match file.append(&[&[3; 1], &[4; 4]]) {
        Err(Error::Io { source, .. }) => assert_eq!(source.kind(), std::io::ErrorKind::StorageFull),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs.read(&path("a")), Some(vec![1, 1, 1, 1, 2, 2, 2, 2, 3, 4]));
    assert_eq!(fs.used_bytes(), 10);
    fs.link(&path("a"), &path("b")).unwrap();
    assert_eq!(fs.used_bytes(), 10, "a file with two names is there once");
    fs.remove(&path("a")).unwrap();
    fs.remove(&path("b")).unwrap();
    assert_eq!(fs.used_bytes(), 0);
}

#[test]
fn locks_do_not_outlive_the_power() {
    let fs = fs();
    let _lock = fs.lock(&path("LOCK"), LockMode::Exclusive).unwrap();
    assert!(matches!(fs.lock(&path("LOCK"), LockMode::Exclusive), Err(Error::Locked { .. })));
    for other in [fs.power_loss(Fate::DropUnsynced), fs.fork()] {
        assert!(other.lock(&path("LOCK"), LockMode::Exclusive).is_ok());
    }
}

#[test]
fn the_trace_tells_calls_apart() {
    let trace = |name: &str, bytes: &[u8], read: usize| {
        let fs = fs();
        fs.create(&path(name)).unwrap().append(&[bytes]).unwrap();
        fs.open(&path(name)).unwrap().read_at(&mut vec![0; read], 0).unwrap();
        fs.trace_hash()
    };
    let first = trace("a", b"xyz", 2);
    assert_eq!(first, trace("a", b"xyz", 2));
    let others = [trace("b", b"xyz", 2), trace("a", b"xyy", 2), trace("a", b"xyzz", 2), trace("a", b"xyz", 3)];
    assert!(others.iter().all(|other| *other != first));
}

#[test]
fn a_flipped_bit_is_flipped_on_disk_and_in_no_copy() {
    let fs = fs();
    fs.write_durable(&path("a"), &[0; 600]);
    let copy = fs.power_loss(Fate::KeepAll);
    fs.flip_bit(&path("a"), 513 * 8 + 3);
    assert_eq!(fs.power_loss(Fate::DropUnsynced).read(&path("a")).unwrap()[513], 8);
    assert_eq!(copy.read(&path("a")), Some(vec![0; 600]));
}

/// A sector is written whole or not at all: what one call overwrites in it and what it appends there are kept or lost
/// together.
#[cfg(target_os = "linux")]
#[test]
fn what_a_call_writes_over_and_appends_in_one_sector_stays_together() {
    let (fs, _) = half_synced(24, 0);
    let name = path("log");
    let node = fs.state().node(&name).unwrap();
    fs.handle(&name, node).write_at(&[2; 1000], 0).unwrap();
    let (mut old, mut new) = (0, 0);
    for fate in fates(200) {
        let bytes = fs.power_loss(fate).read(&name).unwrap();
        let sector = &bytes[..bytes.len().min(512)];
        let is_old = sector[..24] == [1; 24] && sector[24..].iter().all(|&byte| byte == 0);
        let is_new = sector.iter().all(|&byte| byte == 2);
        assert!(is_old || is_new, "{fate:?}: {sector:?}");
        (old, new) = (old + u32::from(is_old), new + u32::from(is_new));
    }
    assert!(old > 50 && new > 50, "{old} held the old bytes, {new} the new ones");
}
