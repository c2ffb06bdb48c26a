//! Random histories on files in memory, against a model that only knows the promises: what was synced, and what was
//! ever passed to the system.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bifold_io::{
    FileSystem,
    memory::{Fate, MemoryFs},
    random::Random,
};

const DIR: &str = "/db";

/// What is promised of the files, by name. Every file's first byte is its own number, which identifies it.
#[derive(Default)]
struct Promises {
    files: BTreeMap<u8, File>,
    /// The names as callers see them.
    names: BTreeMap<PathBuf, u8>,
    /// The names at the last sync of the directory.
    durable: BTreeMap<PathBuf, u8>,
    /// Everything each name has referred to since that sync; `None`: nothing.
    since: BTreeMap<PathBuf, Vec<Option<u8>>>,
}

#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
}

impl Promises {
    fn set(&mut self, name: &Path, file: Option<u8>) {
        self.since.entry(name.into()).or_default().push(file);
        match file {
            Some(file) => self.names.insert(name.into(), file),
            None => self.names.remove(name),
        };
    }

    /// Checks what was found after a power loss.
    fn check(&self, found: &MemoryFs) {
        let every_name = self.durable.keys().chain(self.since.keys());
        for name in every_name {
            let is = found.read(name).map(|bytes| self.file_of(&bytes));
            let durable = self.durable.get(name).copied();
            let mut possible = self.since.get(name).into_iter().flatten().copied().chain([durable]);
            // A file without any of its bytes cannot be identified.
            let fits = |may: Option<u8>| match (is, may) {
                (Some(None), Some(file)) => self.files[&file].synced == 0,
                (Some(Some(is)), Some(may)) => is == may,
                (is, may) => is.is_none() && may.is_none(),
            };
            assert!(possible.any(fits), "{} is {is:?}, was {durable:?}, {:?}", name.display(), self.since.get(name));
        }
        for name in found.files() {
            let bytes = found.read(&name).unwrap();
            if let Some(file) = self.file_of(&bytes) {
                self.files[&file].check(&bytes);
            }
        }
    }

    /// Which file has these bytes; `None` when the first byte, which identifies it, is lost.
    fn file_of(&self, bytes: &[u8]) -> Option<u8> {
        bytes.first().copied().filter(|number| *number != 0)
    }
}

impl File {
    fn check(&self, found: &[u8]) {
        assert!((self.synced..=self.bytes.len()).contains(&found.len()), "{} bytes of {}", found.len(), self.synced);
        assert_eq!(found[..self.synced], self.bytes[..self.synced], "synced bytes stay");
        let sectors = found.chunks(512).zip(self.bytes.chunks(512));
        for (at, (is, was)) in sectors.enumerate() {
            let synced = self.synced.saturating_sub(at * 512).min(is.len());
            let (is, was) = (&is[synced..], &was[synced..]);
            assert!(is == &was[..is.len()] || is.iter().all(|b| *b == 0), "sector {at} is neither there nor lost");
        }
    }
}

/// Applies a step to both.
fn step(fs: &MemoryFs, model: &mut Promises, random: &mut Random) {
    let a_name = |random: &mut Random| Path::new(DIR).join(random.below(4).to_string());
    let (name, other) = (a_name(random), a_name(random));
    let there = model.names.get(&name).copied();
    match (random.below(12), there) {
        (_, None) if model.files.len() < 200 => {
            let number = model.files.len() as u8 + 1;
            let bytes = vec![number; 1 + random.below(600) as usize];
            fs.create(&name).unwrap().append(&[&bytes]).unwrap();
            model.files.insert(number, File { bytes, synced: 0 });
            model.set(&name, Some(number));
        }
        (0, Some(file)) if model.names.get(&other) != Some(&file) => {
            fs.rename(&name, &other).unwrap();
            model.set(&name, None);
            model.set(&other, Some(file));
        }
        (1, Some(_)) => {
            fs.remove(&name).unwrap();
            model.set(&name, None);
        }
        (2, Some(file)) if !model.names.contains_key(&other) => {
            fs.link(&name, &other).unwrap();
            model.set(&other, Some(file));
        }
        (3, _) => {
            fs.sync_dir(DIR.as_ref()).unwrap();
            model.durable = model.names.clone();
            model.since.clear();
        }
        (4 | 5, Some(number)) => {
            fs.open_append(&name).unwrap().sync().unwrap();
            let file = model.files.get_mut(&number).unwrap();
            file.synced = file.bytes.len();
        }
        (6, Some(number)) => {
            let file = model.files.get_mut(&number).unwrap();
            let len = 1 + random.below(file.bytes.len() as u64) as usize;
            fs.truncate(&name, len as u64).unwrap();
            file.bytes.truncate(len);
            file.synced = len;
        }
        (_, Some(number)) => {
            // No zeros: a lost byte must differ from every byte that was written.
            let bytes: Vec<u8> = (0..random.below(900)).map(|_| 1 + random.below(255) as u8).collect();
            fs.open_append(&name).unwrap().append(&[&bytes]).unwrap();
            model.files.get_mut(&number).unwrap().bytes.extend(bytes);
        }
        _ => {}
    }
}

type Contents = Vec<(PathBuf, Option<Vec<u8>>)>;

fn contents(fs: &MemoryFs) -> Contents {
    fs.files().into_iter().map(|name| (name.clone(), fs.read(&name))).collect()
}

fn same_files(left: &MemoryFs, right: &MemoryFs) -> bool {
    contents(left) == contents(right)
}

#[test]
fn every_fate_keeps_what_was_promised_and_invents_nothing() {
    for seed in 0..30 {
        let (fs, mut model, mut random) = (MemoryFs::new(), Promises::default(), Random::new(seed));
        fs.create_dir_all(DIR.as_ref()).unwrap();
        for _ in 0..60 {
            step(&fs, &mut model, &mut random);
            let fate_seed = random.next_u64();
            for fate in [Fate::KeepAll, Fate::DropUnsynced, Fate::Random(fate_seed), Fate::Prefix(fate_seed)] {
                model.check(&fs.power_loss(fate));
            }
            assert!(same_files(&fs.power_loss(Fate::KeepAll), &fs));
            let fork = fs.fork();
            for fate in [Fate::KeepAll, Fate::DropUnsynced, Fate::Random(fate_seed), Fate::Prefix(fate_seed)] {
                assert!(
                    same_files(&fork.power_loss(fate), &fs.power_loss(fate)),
                    "a fork loses what the original loses"
                );
            }
        }
    }
}

#[test]
fn a_second_power_loss_takes_nothing_that_the_first_one_left() {
    for seed in 0..30 {
        let (fs, mut model, mut random) = (MemoryFs::new(), Promises::default(), Random::new(seed));
        fs.create_dir_all(DIR.as_ref()).unwrap();
        (0..60).for_each(|_| step(&fs, &mut model, &mut random));
        let found = fs.power_loss(Fate::Random(seed));
        for fate in [Fate::DropUnsynced, Fate::Random(seed + 1), Fate::Prefix(seed)] {
            assert!(same_files(&found, &found.power_loss(fate)));
        }
    }
}

#[test]
fn a_prefix_is_an_earlier_state() {
    for seed in 0..20 {
        let (fs, mut random) = (MemoryFs::new(), Random::new(seed));
        fs.create_dir_all(DIR.as_ref()).unwrap();
        // Nothing is synced from here on, so a prefix may end in any of these states.
        let mut states = vec![contents(&fs)];
        let file = fs.create(&Path::new(DIR).join("0")).unwrap();
        states.push(contents(&fs));
        for byte in 1..40_u8 {
            if random.chance(1, 3) {
                fs.create(&Path::new(DIR).join(format!("n{byte}"))).unwrap();
                states.push(contents(&fs));
            } else {
                for _ in 0..1 + random.below(3) {
                    file.append(&[&[byte]]).unwrap();
                    states.push(contents(&fs));
                }
            }
        }
        for fate in 0..20 {
            let found = fs.power_loss(Fate::Prefix(fate));
            assert!(states.contains(&contents(&found)), "seed {seed}, fate {fate}: {found:?}");
        }
    }
}
