//! Reads a whole database in every way there is and compares the answers with the model's.

use std::{fmt, io::Read as _, ops::ControlFlow};

use bifold::{Db, Error, Pair, Range, ValueReader};

use crate::{
    driver::everything,
    history::{KeyNo, Way, key_bytes},
    model::{CommitNo, Contents, Entries, Model, NAMES, Name},
    random::Random,
    value::{Spec, describe},
};

/// Why a step of a run failed.
#[derive(Debug)]
pub enum Trouble {
    /// An answer is wrong. Never allowed, whatever faults are injected.
    Wrong(String),
    /// The database refused; only allowed if a fault was injected.
    Refused(Error),
}

impl Trouble {
    /// A wrong answer.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }

    /// The same trouble, with the place where it arose.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Wrong(text) => Self::Wrong(format!("{what}: {text}")),
            Self::Refused(error) => Self::Wrong(format!("{what}: refused: {error}")),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text) => f.write_str(text),
            Self::Refused(error) => write!(f, "refused: {error}"),
        }
    }
}

/// Everything that `db` holds, by iterating forwards.
///
/// # Errors
/// The database's refusal, or keys out of order.
pub fn contents(db: &Db) -> Result<Contents, Trouble> {
    let mut contents = Contents::new();
    for name in db.keyspace_names() {
        let Some(tree) = db.existing_keyspace(&name)? else {
            return Err(Trouble::wrong(format!("keyspace `{name}` is listed but does not exist")));
        };
        let mut entries = Entries::new();
        for entry in tree.iter() {
            let entry = entry?.into_parts()?;
            if entries.last().is_some_and(|last| last.0 >= entry.0) {
                return Err(Trouble::wrong(format!("{name}: key {} comes out of order", entry.0.escape_ascii())));
            }
            entries.push(entry);
        }
        contents.insert(name, entries);
    }
    Ok(contents)
}

/// Compares what visits see, each of a few entries more than the one before, with `right`.
///
/// # Errors
/// What differs.
pub fn compare_visited(what: &str, right: &[(&[u8], Spec)], mut range: Range) -> Result<(), Trouble> {
    let (mut at, mut trouble) = (0, Ok(()));
    for most in 1.. {
        let before = at;
        range.visit(|key, value| {
            trouble = match right.get(at) {
                Some((expected, spec)) if *expected == key => expect_value(what, key, Some(*spec), Some(value)),
                _ => Err(Trouble::wrong(format!("{what}: key {} is not entry {at}", key.escape_ascii()))),
            };
            at += 1;
            if trouble.is_err() || at - before == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        trouble?;
        trouble = Ok(());
        if at - before < most {
            break;
        }
    }
    if at == right.len() { Ok(()) } else { Err(Trouble::wrong(format!("{what}: {at} entries of {}", right.len()))) }
}

/// Compares scans both ways, point reads of every key ever used and a multi-get of all keys with the state after
/// commit `n`.
///
/// # Errors
/// What differs.
pub fn compare_everything(db: &Db, model: &Model, n: CommitNo) -> Result<(), Trouble> {
    let snapshot = db.snapshot();
    for (at, name) in NAMES.iter().enumerate() {
        let (tree, id) = match (db.existing_keyspace(name)?, model.current(at as Name)) {
            (Some(tree), Some(id)) => (tree, id),
            (None, None) => continue,
            (there, _) => return Err(Trouble::wrong(format!("keyspace `{name}` exists: {}", there.is_some()))),
        };
        for way in [Way::Forward, Way::Backward, Way::BothEnds] {
            compare_entries(name, model.scan(id, &everything(), n), tree.iter(), way)?;
        }
        compare_entries(name, model.scan(id, &everything(), n), snapshot.iter(&tree), Way::Forward)?;
        let keys: Vec<&[u8]> = model.keys(id).collect();
        let together = tree.multi_get(&keys)?;
        for (key, found) in keys.into_iter().zip(together) {
            let right = model.get(id, key, n);
            expect_value("multi_get", key, right, found.as_deref())?;
            expect_value("get", key, right, tree.get(key)?.as_deref())?;
            compare_reader("reader", key, right, tree.get_reader(key)?)?;
        }
    }
    Ok(())
}

/// Compares an iterator's entries with the right ones.
///
/// # Errors
/// The first entry that differs, or the database's refusal.
pub fn compare_entries(what: &str, right: Vec<(&[u8], Spec)>, mut range: Range, way: Way) -> Result<(), Trouble> {
    let mut right = right.into_iter();
    for turn in 0.. {
        let back = way == Way::Backward || (way == Way::BothEnds && turn % 2 == 1);
        let (expected, found) =
            if back { (right.next_back(), range.next_back()) } else { (right.next(), range.next()) };
        let ended = expected.is_none();
        compare_next(what, expected, found)?;
        if ended {
            break;
        }
    }
    Ok(())
}

/// How many moves of an iterator's ends are compared.
const MOVES: usize = 24;

/// Moves both ends of an iterator at random, by entries and by seeks, and compares what they yield with `right`, all
/// entries of its range. `key` samples keys, in the range and outside.
///
/// # Errors
/// As [`compare_entries`].
pub fn compare_sought(
    what: &str,
    right: &[(&[u8], Spec)],
    mut range: Range,
    (random, key): (&mut Random, impl Fn(&mut Random) -> Vec<u8>),
) -> Result<(), Trouble> {
    // The entries that may still be yielded, and by either end.
    let (mut first, mut end) = (0, right.len());
    for _ in 0..MOVES {
        let is_left = first < end;
        match random.weighted(&[3, 3, 1, 1]) {
            0 => {
                compare_next(what, right.get(first).copied().filter(|_| is_left), range.next())?;
                first = if is_left { first + 1 } else { first.max(end) };
            }
            1 => {
                end = if is_left { end - 1 } else { end.min(first) };
                compare_next(what, right.get(end).copied().filter(|_| is_left), range.next_back())?;
            }
            2 => {
                let key = key(random);
                first = right.partition_point(|(other, _)| *other < &key[..]);
                range.seek(&key);
            }
            _ => {
                let key = key(random);
                end = right.partition_point(|(other, _)| *other <= &key[..]);
                range.seek_for_prev(&key);
            }
        }
    }
    Ok(())
}

/// Reads a range by visits, by its keys alone, and by seeks that follow from `seed`, and compares with `right`.
///
/// # Errors
/// As [`compare_entries`].
pub fn compare_ways(
    right: &[(&[u8], Spec)],
    range: impl Fn() -> Range,
    (way, seed): (Way, u64),
) -> Result<(), Trouble> {
    compare_visited("visit", right, range())?;
    compare_keys(right, range(), way)?;
    let mut random = Random::new(seed ^ right.len() as u64, "moves of an iterator");
    let key = |random: &mut Random| {
        let key = key_bytes(random.below(64) as KeyNo);
        [&key[..], &[0][..random.below(2) as usize]].concat()
    };
    compare_sought("seek", right, range(), (&mut random, key))
}

/// Compares the keys of a range, from the front or from the back, with the right ones.
///
/// # Errors
/// As [`compare_entries`].
pub fn compare_keys(right: &[(&[u8], Spec)], range: Range, way: Way) -> Result<(), Trouble> {
    let keys = range.keys();
    let found: bifold::Result<Vec<Box<[u8]>>> =
        if way == Way::Backward { keys.rev().collect() } else { keys.collect() };
    let mut found = found?;
    if way == Way::Backward {
        found.reverse();
    }
    if found.iter().map(|key| &key[..]).eq(right.iter().map(|(key, _)| *key)) {
        return Ok(());
    }
    Err(Trouble::wrong(format!("keys: {} were found, {} are right, or others", found.len(), right.len())))
}

/// Compares one entry of an iterator with the right one.
///
/// # Errors
/// As [`compare_entries`].
pub fn compare_next(
    what: &str,
    right: Option<(&[u8], Spec)>,
    found: Option<bifold::Result<Pair>>,
) -> Result<(), Trouble> {
    let found = found.transpose()?.map(Pair::into_parts).transpose()?;
    match (right, found) {
        (None, None) => Ok(()),
        (Some((key, spec)), Some((found, value))) if *key == *found => {
            expect_value(what, key, Some(spec), Some(&value))
        }
        (right, found) => {
            let right = right.map_or("the end".to_owned(), |(key, _)| format!("key {}", key.escape_ascii()));
            let found = found.map_or("the end".to_owned(), |(key, _)| format!("key {}", key.escape_ascii()));
            Err(Trouble::wrong(format!("{what}: expected {right}, found {found}")))
        }
    }
}

/// Compares one value with the right one.
///
/// # Errors
/// How they differ.
pub fn expect_value(what: &str, key: &[u8], right: Option<Spec>, found: Option<&[u8]>) -> Result<(), Trouble> {
    let fits = match (right, found) {
        (None, None) => true,
        (Some(spec), Some(bytes)) => spec.is(bytes),
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let right = right.map_or("nothing".to_owned(), |spec| spec.to_string());
    let found = found.map_or("nothing".to_owned(), describe);
    Err(Trouble::wrong(format!("{what} {}: expected {right}, found {found}", key.escape_ascii())))
}

/// Compares what a reader of a value yields with the right value.
///
/// # Errors
/// How they differ, or the database's refusal.
pub fn compare_reader(what: &str, key: &[u8], right: Option<Spec>, reader: Option<ValueReader>) -> Result<(), Trouble> {
    let Some(mut reader) = reader else { return expect_value(what, key, right, None) };
    let (len, mut bytes) = (reader.len(), Vec::new());
    if let Err(error) = reader.read_to_end(&mut bytes) {
        let text = error.to_string();
        return Err(match error.downcast::<Error>() {
            Ok(error) => Trouble::Refused(error),
            Err(_) => Trouble::wrong(format!("{what} {}: {text}", key.escape_ascii())),
        });
    }
    if bytes.len() as u64 != len {
        return Err(Trouble::wrong(format!("{what} {}: {} bytes of {len}", key.escape_ascii(), bytes.len())));
    }
    expect_value(what, key, right, Some(&bytes))
}
