//! The commits of writers that have keys and numbers of their own: they follow from a seed, the writer and the number.
//! So whoever finds a database in which writers were stopped can tell which of their commits it has.
//!
//! A seed decides what they have besides puts and deletes: entries that expire, or have, in every other one, and
//! operands of a merge operator in half of the rest; ingests in three of five; a change feed in two of five ([`fed`]),
//! half of these with ingests. One ingest is one commit, into one keyspace.

pub mod fed;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use bifold::{Batch, Db, Durability, Keyspace, Options};

use crate::{
    history::{Until, key_bytes},
    model::{Change, CommitNo, Contents, Entries, Name},
    options::ALL_CHANGES,
    random::Random,
    read::Trouble,
    value::{self, OPERAND_BYTES_MIN, Spec},
};

/// One commit in so many is an ingest.
const INGEST_EVERY: u64 = 12;

/// The most entries of one, without its number.
const INGESTED_MAX: u64 = 24;

/// Keys of a writer in each keyspace.
const KEYS: u64 = 60;

/// All commits of a seed.
#[derive(Debug)]
pub struct Commits {
    seed: u64,
    has_expiry: bool,
    /// Nothing expires in a keyspace with a merge operator.
    has_merges: bool,
    has_ingests: bool,
    has_feed: bool,
    /// A database has one open ingest at a time.
    ingesting: Mutex<()>,
}

impl Commits {
    /// Those of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed, "extras of commits");
        let (has_expiry, ways) = (random.chance(50), random.below(5));
        let (has_feed, has_ingests) = (ways < 2, (1..4).contains(&ways));
        let has_merges = !has_expiry && random.chance(50);
        Self { seed, has_expiry, has_merges, has_ingests, has_feed, ingesting: Mutex::default() }
    }

    /// Those of a seed if it has neither ingests nor a change feed nor a merge operator.
    #[must_use]
    pub fn batches_of(seed: u64) -> Self {
        Self { has_merges: false, has_ingests: false, has_feed: false, ..Self::of(seed) }
    }

    /// Options that a database of these commits needs. It keeps all changes, or those that it kept before.
    #[must_use]
    pub fn suit(&self, mut options: Options) -> Options {
        options.retain_changes = self.has_feed.then_some(ALL_CHANGES);
        if self.has_merges {
            options.keyspace.merge = Some(value::operator());
            options.merge_operators = value::operators();
        }
        options
    }

    /// Whether changes are kept.
    #[must_use]
    pub fn has_feed(&self) -> bool {
        self.has_feed
    }

    /// Whether a commit is an ingest.
    #[must_use]
    pub fn is_ingest(&self, writer: u8, n: CommitNo) -> bool {
        self.has_ingests && self.random(writer, n, "which are ingests").below(INGEST_EVERY) == 0
    }

    /// The changes of commit number `n` of a writer, in the first two keyspaces.
    ///
    /// Every commit stores its number, so no two states are alike, and a batch does so in both keyspaces, so that half
    /// of one is visible.
    #[must_use]
    pub fn changes(&self, writer: u8, n: CommitNo) -> Vec<Change> {
        if self.is_ingest(writer, n) {
            return self.ingested(writer, n);
        }
        let mut random = self.random(writer, n, "kill");
        let mut extras = self.random(writer, n, "which puts expire");
        let writes = random.within(1, 5);
        let mut changes: Vec<Change> = (0..writes)
            .map(|_| {
                let name = random.below(2) as Name;
                let key = own_key(writer, random.below(KEYS) as u16);
                if random.chance(20) {
                    return Change::Delete(name, key);
                }
                let len = if random.chance(90) { random.within(0, 300) } else { random.within(300, 6000) };
                let value = Spec { tag: n as u32, len: len as u32 };
                if self.has_merges && extras.below(3) == 0 {
                    return Change::Merge(name, key, value.at_least(OPERAND_BYTES_MIN));
                }
                self.put(&mut extras, name, key, value)
            })
            .collect();
        changes.extend((0..2).map(|name| Change::Put(name, number_key(writer), number_of(n))));
        changes
    }

    /// The puts of an ingest, by ascending keys.
    fn ingested(&self, writer: u8, n: CommitNo) -> Vec<Change> {
        let mut random = self.random(writer, n, "ingests");
        let name = random.below(2) as Name;
        let mut puts = BTreeMap::new();
        for _ in 0..random.within(0, INGESTED_MAX) {
            let key = own_key(writer, random.below(KEYS) as u16);
            let value = Spec { tag: n as u32, len: random.within(0, 600) as u32 };
            puts.insert(key.clone(), self.put(&mut random, name, key, value));
        }
        puts.insert(number_key(writer), Change::Put(name, number_key(writer), number_of(n)));
        puts.into_values().collect()
    }

    /// A put, which perhaps expires.
    fn put(&self, random: &mut Random, name: Name, key: Box<[u8]>, value: Spec) -> Change {
        if !self.has_expiry || random.below(3) > 0 {
            return Change::Put(name, key, value);
        }
        Change::PutUntil(name, key, value, random.pick(&[Until::Past, Until::Far, Until::Far]))
    }

    fn random(&self, writer: u8, n: CommitNo, stream: &str) -> Random {
        Random::new(self.seed ^ n.rotate_left(20) ^ u64::from(writer) << 56, stream)
    }

    /// Makes commit number `n` of a writer. An ingest is durable, whatever is asked for.
    ///
    /// # Errors
    /// The database's.
    pub fn commit(
        &self,
        (db, trees): (&Db, &[Keyspace; 2]),
        (writer, n): (u8, CommitNo),
        durability: Durability,
    ) -> Result<(), Trouble> {
        if self.is_ingest(writer, n) {
            return self.ingest(trees, writer, n);
        }
        Ok(db.commit_with(self.batch(trees, writer, n)?, durability)?)
    }

    /// A commit that is no ingest, as a batch.
    ///
    /// # Errors
    /// The database's.
    pub fn batch(&self, trees: &[Keyspace; 2], writer: u8, n: CommitNo) -> Result<Batch, Trouble> {
        let mut batch = Batch::new();
        for change in self.changes(writer, n) {
            let tree = &trees[change.name() as usize];
            match change {
                Change::Merge(_, key, operand) => batch.merge(tree, key, operand.bytes())?,
                Change::PutUntil(_, key, value, until) => {
                    batch.put_until(tree, key, value.bytes(), Some(until.moment()))?
                }
                Change::Put(_, key, value) => batch.put(tree, key, value.bytes())?,
                Change::Delete(_, key) => batch.delete(tree, key)?,
                Change::DeleteRange(_, bounds) => batch.delete_range(tree, bounds)?,
            };
        }
        Ok(batch)
    }

    fn ingest(&self, trees: &[Keyspace; 2], writer: u8, n: CommitNo) -> Result<(), Trouble> {
        let changes = self.changes(writer, n);
        let Some(name) = changes.first().map(Change::name) else { return Ok(()) };
        let _one_at_a_time = self.ingesting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ingest = trees[name as usize].ingest()?;
        for change in &changes {
            match change {
                Change::Put(_, key, value) => ingest.put(key, value.bytes())?,
                Change::PutUntil(_, key, value, until) => {
                    ingest.put_until(key, value.bytes(), Some(until.moment()))?;
                }
                other => return Err(Trouble::wrong(format!("{other:?} is no put, and ingests have only these"))),
            }
        }
        let (found, right) = (ingest.finish()?.entries, changes.len() as u64);
        if found == right {
            return Ok(());
        }
        Err(Trouble::wrong(format!("an ingest of {right} entries says that it had {found}")))
    }
}

fn own_key(writer: u8, key: u16) -> Box<[u8]> {
    [&[writer][..], &key_bytes(key)].concat().into()
}

/// The key with the number of a writer's last commit.
fn number_key(writer: u8) -> Box<[u8]> {
    own_key(writer, u16::MAX)
}

fn number_of(n: CommitNo) -> Spec {
    Spec { tag: n as u32, len: 8 }
}

/// The entries that one writer wrote.
#[must_use]
pub fn written_by(contents: &Contents, writer: u8) -> Contents {
    let own = |entries: &Entries| entries.iter().filter(|(k, _)| k[0] == writer).cloned().collect();
    contents.iter().map(|(name, entries)| (name.clone(), own(entries))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_commit_is_there_and_no_two_leave_the_same_numbers() {
        let all: Vec<Commits> = (0..40).map(Commits::of).collect();
        let changes = |commits: &Commits| (1..40).flat_map(|n| commits.changes(0, n)).collect::<Vec<_>>();
        let expires = |commits: &Commits| changes(commits).iter().any(|c| matches!(c, Change::PutUntil(..)));
        let ingests = |commits: &Commits| (1..40).any(|n| commits.is_ingest(0, n));
        let merges = |commits: &Commits| changes(commits).iter().any(|c| matches!(c, Change::Merge(..)));
        for has in [&expires as &dyn Fn(&Commits) -> bool, &ingests, &merges, &Commits::has_feed] {
            let count = all.iter().filter(|commits| has(commits)).count();
            assert!((5..32).contains(&count), "{count} of 40");
        }
        assert!(all.iter().any(|commits| commits.has_feed() && ingests(commits)));
        for commits in &all {
            for n in 1..40 {
                let changes = commits.changes(3, n);
                let numbers = changes
                    .iter()
                    .filter(|c| matches!(c, Change::Put(_, key, v) if *key == number_key(3) && *v == number_of(n)));
                assert_eq!(numbers.count(), if commits.is_ingest(3, n) { 1 } else { 2 });
            }
        }
    }
}
