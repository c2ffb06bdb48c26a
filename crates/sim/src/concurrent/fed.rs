//! The bank as its change feed tells it, read by a thread of its own while others write.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use bifold::{Change, ChangeKind, Keyspace};

use super::{ACCOUNTS, Bank, OPENING, WRITERS, read_number};
use crate::{model::NAMES, read::Trouble};

/// What the changes so far amount to.
#[derive(Default)]
struct FedBank {
    /// By keyspace and key.
    numbers: BTreeMap<(String, Vec<u8>), u64>,
    /// What each writer's accounts hold.
    sums: [u64; WRITERS as usize],
    seen: u64,
    commits: u64,
}

impl Bank {
    /// Reads the feed until the writers have ended. After each of its commits all sums are right and each number that
    /// counts is one more than before; in the end it has told what the database holds. Returns its commits.
    pub(super) fn follow(&self) -> Result<u64, Trouble> {
        let mut told = FedBank::default();
        let mut changes = self.db.changes(0)?;
        loop {
            // Whatever is committed before this is in what follows.
            let is_last = self.stop.load(Ordering::Acquire);
            for change in changes.by_ref() {
                told.apply(&change?)?;
            }
            if is_last {
                break;
            }
        }
        for (name, tree) in [bifold::DEFAULT_KEYSPACE, NAMES[1]].into_iter().zip(&self.trees) {
            told.compare(name, tree)?;
        }
        Ok(told.commits)
    }
}

impl FedBank {
    fn apply(&mut self, change: &Change) -> Result<(), Trouble> {
        if change.seqno <= self.seen {
            return Err(Trouble::wrong(format!("change {} comes after {}", change.seqno, self.seen)));
        }
        self.seen = change.seqno;
        self.commits += u64::from(change.ends_commit);
        // Other keyspaces come and go.
        let name = change.keyspace.as_deref().filter(|name| [bifold::DEFAULT_KEYSPACE, NAMES[1]].contains(name));
        if let Some(name) = name {
            if change.kind != ChangeKind::Put {
                return Err(Trouble::wrong(format!("nobody did {change:?}")));
            }
            self.put(name, &change.key, read_number(change.value.as_deref())?)?;
        }
        let is_right = self.sums.iter().all(|&sum| sum == ACCOUNTS * OPENING);
        if change.ends_commit && !is_right {
            return Err(Trouble::wrong(format!("after the change {} the sums are {:?}", self.seen, self.sums)));
        }
        Ok(())
    }

    fn put(&mut self, name: &str, key: &[u8], number: u64) -> Result<(), Trouble> {
        let before = self.numbers.insert((name.to_owned(), key.to_vec()), number);
        if let Some(account) = key.strip_prefix(b"account/") {
            let sum = &mut self.sums[usize::from(account[0] - b'0')];
            *sum = *sum + number - before.unwrap_or(0);
        } else if before.is_some_and(|before| number != before + 1) {
            let what = key.escape_ascii();
            return Err(Trouble::wrong(format!("change {}: {what} is {number} after {before:?}", self.seen)));
        }
        Ok(())
    }

    fn compare(&self, name: &str, tree: &Keyspace) -> Result<(), Trouble> {
        let told = self.numbers.iter().filter(|((of, _), _)| of == name);
        let mut told = told.map(|((_, key), number)| (key.clone(), *number));
        for entry in tree.iter() {
            let entry = entry?;
            let there = (entry.key().to_vec(), read_number(Some(&entry.value()?))?);
            let next = told.next();
            if next.as_ref() != Some(&there) {
                return Err(Trouble::wrong(format!("`{name}` holds {there:?}, the feed has told {next:?}")));
            }
        }
        match told.next() {
            None => Ok(()),
            more => Err(Trouble::wrong(format!("the feed has told of {more:?}, which `{name}` does not hold"))),
        }
    }
}
