//! A thread that runs random transactions and notes what they see.

use std::{thread, time::Duration};

use bifold::{Durability, Error, Isolation, Transaction, TransactionOptions};

use super::{
    EACH, KEYS, Session,
    check::{Done, Key, List, Lists, Step, TransactionEnd},
};
use crate::{model::NAMES, random::Random, read::Trouble};

/// Bytes behind a list, at most: with the smaller options some values are separated and others not.
const PADDING_MAX: u64 = 150;

/// Longer than any run.
const LONG: Duration = Duration::from_secs(1 << 32);

/// One thread.
pub(super) struct Worker<'a> {
    life: &'a Session,
    random: Random,
    /// Decides what expires.
    expiry: Random,
    first_id: u32,
}

/// The bytes of a key.
pub(super) fn key_bytes(key: u8) -> [u8; 2] {
    [b'k', key]
}

/// The position of a key.
pub(super) fn key_of(tree: usize, key: &[u8]) -> Result<Key, Trouble> {
    match key {
        [b'k', key] => Ok((tree, *key)),
        other => Err(Trouble::wrong(format!("nobody has put the key {}", other.escape_ascii()))),
    }
}

/// The list in a value.
pub(super) fn list_of(value: &[u8]) -> Result<List, Trouble> {
    let wrong = || Trouble::wrong(format!("{} is no list", value.escape_ascii()));
    let (count, rest) = value.split_first().ok_or_else(wrong)?;
    let numbers = rest.get(..usize::from(*count) * 4).ok_or_else(wrong)?;
    Ok(numbers.chunks_exact(4).map(|n| n.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))).collect())
}

/// A list with some bytes behind it.
pub(super) fn value_of(list: &[u32], padding: usize) -> Vec<u8> {
    let mut value = vec![list.len() as u8];
    value.extend(list.iter().flat_map(|number| number.to_be_bytes()));
    value.resize(value.len() + padding, b'.');
    value
}

impl<'a> Worker<'a> {
    pub(super) fn new(life: &'a Session, number: u64, first_id: u32) -> Self {
        let random = |stream| Random::new(life.seed ^ number << 32, stream);
        Self { life, random: random("worker"), expiry: random("which puts expire"), first_id }
    }

    pub(super) fn run(mut self) -> Result<Vec<Done>, Trouble> {
        let mut all = Vec::new();
        for id in self.first_id..self.first_id + EACH {
            if self.life.is_over() {
                break;
            }
            all.push(self.transact(id)?);
        }
        Ok(all)
    }

    fn transact(&mut self, id: u32) -> Result<Done, Trouble> {
        let isolation = self.life.isolation;
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let mut tx = self.life.db.transaction_with(options);
        let mut done =
            Done { id, snapshot: tx.snapshot(), outcome: TransactionEnd::Nothing, isolation, steps: Vec::new() };
        for _ in 0..self.random.within(1, 4) {
            self.step(&mut tx, &mut done)?;
            if self.random.chance(40) {
                thread::yield_now();
            }
        }
        if self.random.chance(5) {
            tx.rollback();
            return Ok(done);
        }
        let durability = self.random.pick(&[Durability::Memory, Durability::Buffered, Durability::Sync]);
        match tx.commit_with(durability) {
            Ok(number) => {
                done.outcome = TransactionEnd::Committed(number);
                // Without writes there is nothing to sync.
                if durability == Durability::Sync && done.wrote(0).is_some() {
                    self.life.is_durable(number);
                }
            }
            Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(done)
    }

    fn step(&mut self, tx: &mut Transaction, done: &mut Done) -> Result<(), Trouble> {
        let key = self.any_key();
        match self.random.weighted(&[8, 4, 3, 5, 3, 2, 2, 1]) {
            0 => self.append(tx, key, done),
            1 => self.read(tx, key, done).map(drop),
            2 => self.read_several(tx, key.0, done),
            3 => self.scan(tx, key.0, done),
            4 => {
                // A delete that follows from what was read, or a blind one.
                if self.random.chance(50) {
                    self.read(tx, key, done)?;
                }
                tx.delete(&self.life.trees[key.0], key_bytes(key.1))?;
                done.steps.push(Step::Wrote(key, None));
                Ok(())
            }
            5 => self.clear(tx, key.0, done),
            6 => self.put(tx, key, vec![done.id], done),
            _ => self.undo(tx, done),
        }
    }

    fn any_key(&mut self) -> Key {
        (self.random.below(NAMES.len() as u64) as usize, self.random.below(u64::from(KEYS)) as u8)
    }

    fn padding(&mut self) -> usize {
        self.random.below(PADDING_MAX) as usize
    }

    fn read(&mut self, tx: &Transaction, key: Key, done: &mut Done) -> Result<List, Trouble> {
        let (tree, bytes) = (&self.life.trees[key.0], key_bytes(key.1));
        // Under snapshot isolation it makes a difference.
        let one_in = if self.life.isolation == Isolation::Snapshot { 2 } else { 4 };
        let is_for_update = self.random.below(one_in) == 0;
        let found = if is_for_update { tx.get_for_update(tree, bytes)? } else { tx.get(tree, bytes)? };
        let list = found.as_deref().map(list_of).transpose()?;
        let step = if is_for_update { Step::ReadForUpdate } else { Step::Read };
        done.steps.push(step(key, list.clone()));
        Ok(list.unwrap_or_default())
    }

    fn append(&mut self, tx: &mut Transaction, key: Key, done: &mut Done) -> Result<(), Trouble> {
        let mut list = self.read(tx, key, done)?;
        list.push(done.id);
        self.put(tx, key, list, done)
    }

    /// Puts a list: for good, for long, or so that it expires at once for all others.
    fn put(&mut self, tx: &mut Transaction, key: Key, list: List, done: &mut Done) -> Result<(), Trouble> {
        let (tree, bytes, value) = (&self.life.trees[key.0], key_bytes(key.1), value_of(&list, self.padding()));
        match self.expiry.below(6) {
            0 if self.life.extras.expiry => {
                tx.put_with_ttl(tree, bytes, value, Duration::ZERO)?;
                done.steps.push(Step::WroteExpired(key, list));
                return Ok(());
            }
            1 | 2 if self.life.extras.expiry => tx.put_with_ttl(tree, bytes, value, LONG)?,
            _ => tx.put(tree, bytes, value)?,
        }
        done.steps.push(Step::Wrote(key, Some(list)));
        Ok(())
    }

    fn read_several(&mut self, tx: &Transaction, tree: usize, done: &mut Done) -> Result<(), Trouble> {
        let keys: Vec<u8> = (0..3).map(|_| self.random.below(u64::from(KEYS)) as u8).collect();
        let found = tx.multi_get(&self.life.trees[tree], keys.iter().map(|&key| key_bytes(key)))?;
        for (key, value) in keys.into_iter().zip(found) {
            done.steps.push(Step::Read((tree, key), value.as_deref().map(list_of).transpose()?));
        }
        Ok(())
    }

    /// The first and the last key of a range.
    fn bounds(&mut self) -> (u8, u8) {
        let (one, other) = (self.random.below(u64::from(KEYS)) as u8, self.random.below(u64::from(KEYS)) as u8);
        if self.random.chance(30) { (0, KEYS - 1) } else { (one.min(other), one.max(other)) }
    }

    /// Scans a range from one end, perhaps not to its end, or reads one entry at each end.
    fn scan(&mut self, tx: &Transaction, tree: usize, done: &mut Done) -> Result<(), Trouble> {
        let (from, to) = self.bounds();
        let mut range = tx.range(&self.life.trees[tree], key_bytes(from)..=key_bytes(to));
        let most = if self.random.chance(40) { self.random.within(1, 3) as usize } else { usize::MAX };
        let way = self.random.below(3);
        let mut seen = [(from, None), (to, None)];
        let (mut found, mut is_whole) = (Lists::new(), false);
        for n in 0..most {
            let is_front = way == 0 || way == 2 && n % 2 == 0;
            let Some(pair) = (if is_front { range.next() } else { range.next_back() }) else {
                is_whole = true;
                break;
            };
            let (bytes, value) = pair?.into_parts()?;
            let key = key_of(tree, &bytes)?;
            if found.insert(key, list_of(&value)?).is_some() {
                return Err(Trouble::wrong(format!("a scan has yielded {key:?} twice")));
            }
            seen[usize::from(!is_front)].1 = Some(key.1);
        }
        if is_whole {
            done.steps.push(Step::Scanned((tree, from), (tree, to), found));
            return Ok(());
        }
        let [(_, front), (_, back)] = seen;
        for (from, to) in front.map(|last| (from, last)).into_iter().chain(back.map(|last| (last, to))) {
            let part = found.iter().filter(|(key, _)| (from..=to).contains(&key.1));
            let part = part.map(|(key, list)| (*key, list.clone())).collect();
            done.steps.push(Step::Scanned((tree, from), (tree, to), part));
        }
        Ok(())
    }

    fn clear(&mut self, tx: &mut Transaction, tree: usize, done: &mut Done) -> Result<(), Trouble> {
        let (from, to) = self.bounds();
        tx.delete_range(&self.life.trees[tree], key_bytes(from)..=key_bytes(to))?;
        done.steps.push(Step::Cleared((tree, from), (tree, to)));
        Ok(())
    }

    /// Writes something and goes back. Only what it has read meanwhile stays.
    fn undo(&mut self, tx: &mut Transaction, done: &mut Done) -> Result<(), Trouble> {
        let savepoint = tx.savepoint();
        let before = done.steps.len();
        let key = self.any_key();
        self.append(tx, key, done)?;
        self.clear(tx, key.0, done)?;
        tx.rollback_to(savepoint)?;
        let mut position = 0;
        done.steps.retain(|step| {
            position += 1;
            position <= before || matches!(step, Step::Read(..) | Step::ReadForUpdate(..))
        });
        Ok(())
    }
}
