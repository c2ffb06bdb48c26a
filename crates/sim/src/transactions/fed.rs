//! The change feed of transactions: each one that has written is one commit, in the order of their numbers, and after
//! each commit whoever applies the feed has what the checker says.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bifold::{Change, ChangeKind, Db, Error, SeqNo};

use super::{
    Session,
    check::{Checker, Key, Lists},
    work::{key_bytes, key_of, list_of},
};
use crate::{env, feed::commits_of, model::NAMES, read::Trouble};

/// What a feed has told, by commits.
pub(super) type Told = Vec<Vec<Change>>;

/// What is put expires at once, or much later.
fn soon() -> SystemTime {
    UNIX_EPOCH + env::BEGIN + Duration::from_secs(86_400)
}

impl Session {
    /// Reads the feed of this life while others write, until they have ended.
    pub(super) fn follow(&self) -> Result<Told, Trouble> {
        let mut told = Told::new();
        if !self.extras.feed {
            return Ok(told);
        }
        let mut changes = self.db.changes(self.since)?;
        loop {
            // Whatever is committed before this is in what follows.
            let is_last = self.is_over() || !self.is_busy();
            told.extend(commits_of(&self.db, &mut changes, last_of(&told).unwrap_or(self.since))?);
            if is_last {
                return Ok(told);
            }
            std::thread::yield_now();
        }
    }

    /// Compares what the feed told meanwhile, and what it tells now, with all commits of this life.
    pub(super) fn compare_feed(&self, told: &Told, checker: &Checker<'_>) -> Result<(), Trouble> {
        if !self.extras.feed {
            return Ok(());
        }
        let (found, right) = (told.len(), checker.commits().len());
        apply(told, checker)?;
        if found != right {
            return Err(Trouble::wrong(format!("the feed has {found} commits, {right} are right")));
        }
        let again = commits_of(&self.db, &mut self.db.changes(self.since)?, self.since)?;
        if *told == again { Ok(()) } else { Err(Trouble::wrong("the feed tells something else when it is read again")) }
    }
}

/// The number of the last change.
fn last_of(told: &Told) -> Option<SeqNo> {
    told.last()?.last().map(|change| change.seqno)
}

/// Compares the feed of an image, from the change `since` on, with the state that it `holds` and that was durable up
/// to `floor`.
pub(super) fn compare_image(
    db: &Db,
    since: SeqNo,
    (checker, floor): (&Checker<'_>, SeqNo),
    holds: &Lists,
) -> Result<(), Trouble> {
    let told = match db.changes(since) {
        Ok(mut changes) => commits_of(db, &mut changes, since)?,
        // A new database knows from its first durable commit on that changes are kept.
        Err(Error::InvalidArgument { .. }) => Told::new(),
        Err(error) => return Err(error.into()),
    };
    let applied = apply(&told, checker)?;
    let next = checker.commits().get(told.len()).map(|(number, _)| *number);
    if next.is_some_and(|next| next <= floor) {
        return Err(Trouble::wrong(format!(
            "after a power loss the feed ends before {next:?}, and {floor} was durable"
        )));
    }
    if applied == *holds {
        return Ok(());
    }
    Err(Trouble::wrong(format!("after a power loss the feed amounts to {applied:?}, the database holds {holds:?}")))
}

/// Applies commits of a feed, which must be the first ones of the life. Returns what they amount to.
fn apply(told: &Told, checker: &Checker<'_>) -> Result<Lists, Trouble> {
    let mut lists = checker.state(0);
    let commits = checker.commits();
    for (at, commit) in told.iter().enumerate() {
        let last = commit.last().map_or(0, |change| change.seqno);
        let Some(&(number, is_exact)) = commits.get(at) else {
            return Err(Trouble::wrong(format!("the feed has commit {last}, which nobody has made")));
        };
        if is_exact && last != number {
            return Err(Trouble::wrong(format!("commit {at} of the feed has the number {last}, not {number}")));
        }
        commit.iter().try_for_each(|change| apply_one(&mut lists, change))?;
        let right = checker.state(number);
        if lists != right {
            let written = commit.iter().map(|change| format!("{:?} {}", change.kind, change.key.escape_ascii()));
            let written: BTreeSet<String> = written.collect();
            return Err(Trouble::wrong(format!("the feed up to {number}: {lists:?}, right is {right:?}: {written:?}")));
        }
    }
    Ok(lists)
}

fn apply_one(lists: &mut Lists, change: &Change) -> Result<(), Trouble> {
    let Some(tree) = NAMES.iter().position(|name| change.keyspace.as_deref() == Some(name)) else {
        return Err(Trouble::wrong(format!("nobody did {change:?}")));
    };
    let key: Key = key_of(tree, &change.key)?;
    match (change.kind, &change.value) {
        (ChangeKind::Put, Some(_)) if change.expires_at.is_some_and(|at| at < soon()) => drop(lists.remove(&key)),
        (ChangeKind::Put, Some(value)) => drop(lists.insert(key, list_of(value)?)),
        (ChangeKind::Delete, None) => drop(lists.remove(&key)),
        (ChangeKind::DeleteRange, None) => {
            // A range ends behind its last key.
            let end = change.range_end.as_deref().unwrap_or(&[]);
            lists.retain(|other, _| other.0 != tree || other.1 < key.1 || key_bytes(other.1)[..] >= *end);
        }
        _ => return Err(Trouble::wrong(format!("nobody did {change:?}"))),
    }
    Ok(())
}
