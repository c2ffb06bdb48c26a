//! What a change feed tells of the commits of all writers: those of each writer in order, each one once and as a whole,
//! and nothing else. So whoever applies them has what the writers have put, up to the last commit of each.

use bifold::{Changes, Db, Error, SeqNo};

use super::Commits;
use crate::{
    feed::{commits_of, is_same, shown},
    model::{CommitNo, NAMES},
    read::Trouble,
};

/// A commit of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedCommit {
    /// Whose it is.
    pub writer: u8,
    /// Which one of that writer.
    pub n: CommitNo,
    /// The number of its last change.
    pub seqno: SeqNo,
}

/// Reads a feed, perhaps while it grows.
#[derive(Debug)]
pub struct FedCommits<'a> {
    commits: &'a Commits,
    /// The last commit of each writer that was read.
    heads: Vec<CommitNo>,
    /// The number of the last change that was read.
    since: SeqNo,
    changes: Option<Changes>,
}

impl<'a> FedCommits<'a> {
    /// Reads what comes after these last commits of the writers and after this change.
    #[must_use]
    pub fn new(commits: &'a Commits, heads: &[CommitNo], since: SeqNo) -> Self {
        Self { commits, heads: heads.to_vec(), since, changes: None }
    }

    /// Reads all that is there, and requires that it is what comes next.
    ///
    /// # Errors
    /// What differs, or the database's refusal.
    pub fn catch_up(&mut self, db: &Db) -> Result<Vec<FedCommit>, Trouble> {
        let mut changes = match self.changes.take() {
            Some(changes) => changes,
            None => db.changes(self.since)?,
        };
        let found = commits_of(db, &mut changes, self.since)?;
        self.changes = Some(changes);
        found.iter().map(|commit| self.next(commit)).collect()
    }

    fn next(&mut self, found: &[bifold::Change]) -> Result<FedCommit, Trouble> {
        let (Some(first), Some(last)) = (found.first(), found.last()) else {
            return Err(Trouble::wrong("the feed has a commit without changes"));
        };
        let writer = first.key[0];
        let Some(head) = self.heads.get_mut(usize::from(writer)) else {
            return Err(Trouble::wrong(format!("the feed: nobody has written {}", shown(first))));
        };
        *head += 1;
        let (n, seqno) = (*head, last.seqno);
        let place = || format!("the feed, commit {n} of writer {writer}, change {seqno}");
        let right = self.commits.changes(writer, n);
        if right.len() != found.len() {
            return Err(Trouble::wrong(format!("{}: {} changes, {} are right", place(), found.len(), right.len())));
        }
        for (right, found) in right.iter().zip(found) {
            if found.keyspace.as_deref() != Some(NAMES[right.name() as usize]) || !is_same(right, found) {
                return Err(Trouble::wrong(format!("{}: expected {right:?}, found {}", place(), shown(found))));
            }
        }
        self.since = seqno;
        Ok(FedCommit { writer, n, seqno })
    }

    /// Reads all that is there, which must end with these last commits of the writers.
    ///
    /// # Errors
    /// What differs, or the database's refusal.
    pub fn end_with(mut self, db: &Db, heads: &[CommitNo]) -> Result<Vec<FedCommit>, Trouble> {
        let found = match self.catch_up(db) {
            // A new database knows from its first durable commit on that changes are kept.
            Err(Trouble::Refused(Error::InvalidArgument { .. })) if heads.iter().all(|&head| head == 0) => Vec::new(),
            other => other?,
        };
        if self.heads == heads {
            return Ok(found);
        }
        Err(Trouble::wrong(format!("the feed ends with commits {:?} of the writers, they have {heads:?}", self.heads)))
    }
}
