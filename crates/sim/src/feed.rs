//! The change feed of a history, compared with the commits of its model: each commit is there once, in order, with its
//! keyspaces, keys, operations and values, and nothing that GC has moved.

use std::{collections::BTreeMap, io::Read, ops::RangeInclusive, sync::Arc};

use bifold::{Change as Fed, ChangeKind, Changes, Db, Error, Value};

use crate::{
    history::Until,
    model::{Change, CommitNo, Contents, Model, Told, TreeId, keys_of},
    read::Trouble,
    value::Spec,
};

/// One commit of a feed.
type Commit = Vec<Fed>;

/// Reads a feed while its history runs.
#[derive(Debug, Default)]
pub struct FeedReader {
    changes: Option<Changes>,
    /// The number of the last change of the last commit read.
    since: u64,
    /// So many commits of the model were read.
    seen: usize,
}

impl FeedReader {
    /// Reads all that is new, and requires that it is what the model has. If not `all` changes are kept, those that are
    /// gone are not missed.
    ///
    /// # Errors
    /// What differs, or the database's refusal.
    pub fn catch_up(&mut self, db: &Db, model: &Model, all: bool) -> Result<(), Trouble> {
        let more = match self.read_on(db) {
            Err(Trouble::Refused(Error::ChangesGone { first, .. })) if !all => {
                // The last commits of the model, however many there are.
                *self = Self { since: first - 1, ..Self::default() };
                let more = self.read_on(db)?;
                let there = model.told().len();
                self.seen = there.checked_sub(more.len()).ok_or_else(|| more_than_there_are(&more, there))?;
                more
            }
            other => other?,
        };
        let told = model.told().get(self.seen..).unwrap_or_default();
        compare(told, &more, model).map_err(Trouble::wrong)?;
        if told.len() != more.len() {
            return Err(Trouble::wrong(format!("the feed has {} commits more, {} are right", more.len(), told.len())));
        }
        self.seen += more.len();
        Ok(())
    }

    /// The commits that have come. After an error it begins again where it was.
    fn read_on(&mut self, db: &Db) -> Result<Vec<Commit>, Trouble> {
        let mut changes = match self.changes.take() {
            Some(changes) => changes,
            None => db.changes(self.since)?,
        };
        let commits = commits_of(db, &mut changes, self.since)?;
        self.since = commits.last().and_then(|commit| commit.last()).map_or(self.since, |last| last.seqno);
        self.changes = Some(changes);
        Ok(commits)
    }
}

/// A feed from the first change on that is there.
#[derive(Debug)]
pub struct Feed {
    commits: Vec<Commit>,
    /// Whether changes are kept.
    is_kept: bool,
    /// Whether none is gone.
    is_whole: bool,
}

impl Feed {
    /// All of it.
    ///
    /// # Errors
    /// The database's refusal.
    pub fn read(db: &Db) -> Result<Self, Trouble> {
        let (is_kept, is_whole, commits) = match db.changes(0) {
            Ok(mut changes) => (true, true, commits_of(db, &mut changes, 0)?),
            Err(Error::ChangesGone { first, .. }) => {
                (true, false, commits_of(db, &mut db.changes(first - 1)?, first - 1)?)
            }
            Err(Error::InvalidArgument { .. }) => (false, true, Vec::new()),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { commits, is_kept, is_whole })
    }

    /// Which of the `allowed` states of the model its database has, by these `contents` and by the feed, which must
    /// have the commits up to there. `all`: whether it must have the first one, too.
    ///
    /// # Errors
    /// What differs.
    pub fn check_between(
        &self,
        contents: &Contents,
        (model, all): (&Model, bool),
        allowed: RangeInclusive<CommitNo>,
    ) -> Result<CommitNo, Trouble> {
        // A new database knows from its first durable commit on that changes are kept.
        if !self.is_kept && *allowed.start() > 0 {
            return Err(Trouble::wrong("changes are not kept any more"));
        }
        if all && !self.is_whole {
            return Err(Trouble::wrong("the first changes are gone"));
        }
        // A keyspace that was being dropped may be there or not: the feed must agree with the contents.
        let mut resolved = model.clone();
        resolved.resolve_as(contents);
        self.end_in(&resolved, contents, allowed)
    }

    /// The commit of the model behind which it ends.
    fn end_in(
        &self,
        model: &Model,
        contents: &Contents,
        allowed: RangeInclusive<CommitNo>,
    ) -> Result<CommitNo, Trouble> {
        let (found, told, mut wrong) = (&self.commits, model.told(), None);
        // It may end behind each of these commits, but if it is whole, its length says behind which.
        let ends = if self.is_whole { found.len()..=found.len() } else { found.len()..=told.len() };
        for end in ends.rev() {
            let Some(begin) = end.checked_sub(found.len()).filter(|_| end <= told.len()) else {
                return Err(more_than_there_are(found, told.len()));
            };
            // What was not told has changed nothing.
            let first = end.checked_sub(1).map_or(0, |last| told[last].commit);
            let last = told.get(end).map_or(model.head(), |next| next.commit - 1);
            let between = first.max(*allowed.start())..=last.min(*allowed.end());
            let fits = match compare(&told[begin..end], found, model) {
                Ok(()) if between.is_empty() => Err(format!("it ends with commit {first}, of {allowed:?}")),
                Ok(()) => {
                    let checked = model.check_between(contents, between);
                    checked.map_err(|mismatch| format!("it ends with commit {first}: {mismatch}"))
                }
                Err(other) => Err(other),
            };
            match fits {
                Ok(n) => return Ok(n),
                Err(why) => wrong = wrong.or(Some(why)),
            }
        }
        Err(Trouble::wrong(format!("the feed of {} commits: {}", found.len(), wrong.unwrap_or_default())))
    }
}

fn more_than_there_are(found: &[Commit], there: usize) -> Trouble {
    Trouble::wrong(format!("the feed has {} commits, but there were only {there}", found.len()))
}

/// The commits that have come since the change `since`, with their large values.
///
/// # Errors
/// Changes out of order, half a commit, or the database's refusal.
pub fn commits_of(db: &Db, changes: &mut Changes, since: u64) -> Result<Vec<Commit>, Trouble> {
    let (mut commits, mut commit, mut last) = (Vec::new(), Commit::new(), since);
    for change in changes {
        let mut change = change?;
        if change.large.is_some() {
            change.value = Some(read_large(db, &change)?);
        }
        if change.seqno <= last {
            return Err(Trouble::wrong(format!("change {} follows {last}", change.seqno)));
        }
        last = change.seqno;
        let ends = change.ends_commit;
        commit.push(change);
        if ends {
            commits.push(std::mem::take(&mut commit));
        }
    }
    if commit.is_empty() { Ok(commits) } else { Err(Trouble::wrong("the feed ends within a commit")) }
}

fn read_large(db: &Db, change: &Fed) -> Result<Value, Trouble> {
    let (mut reader, mut value) = (db.change_reader(change)?, Vec::new());
    match reader.read_to_end(&mut value) {
        Ok(_) => Ok(Value::from(value)),
        Err(error) => Err(error.downcast::<Error>().map_or_else(|error| Trouble::wrong(error.to_string()), Into::into)),
    }
}

/// Compares as many commits as there are on both sides.
fn compare(told: &[Arc<Told>], found: &[Commit], model: &Model) -> Result<(), String> {
    let mut ids = BTreeMap::new();
    for (told, found) in told.iter().zip(found) {
        let number = told.commit;
        if told.changes.len() != found.len() {
            return Err(format!("commit {number} has {} changes, {} are right", found.len(), told.changes.len()));
        }
        for ((tree, change), found) in told.changes.iter().zip(found) {
            let is_same_tree = *ids.entry(*tree).or_insert(found.keyspace_id) == found.keyspace_id;
            if !is_same_tree || !is_told((*tree, change), found, model) {
                return Err(format!("commit {number}: expected {change:?}, found {}", shown(found)));
            }
        }
    }
    Ok(())
}

fn is_told((tree, change): (TreeId, &Change), found: &Fed, model: &Model) -> bool {
    found.keyspace.as_deref() == model.name_of(tree) && is_same(change, found)
}

/// Whether this change was found, in whatever keyspace.
#[must_use]
pub fn is_same(change: &Change, found: &Fed) -> bool {
    let (value, until) = (found.value.as_deref(), found.expires_at);
    let is = |kind, key: &[u8]| found.kind == kind && *found.key == *key;
    let has = |spec: &Spec, right: Option<Until>| {
        value.is_some_and(|value| spec.is(value)) && until == right.map(Until::moment) && found.range_end.is_none()
    };
    let has_none = value.is_none() && until.is_none();
    match change {
        Change::Put(_, key, value) => is(ChangeKind::Put, key) && has(value, None),
        Change::PutUntil(_, key, value, until) => is(ChangeKind::Put, key) && has(value, Some(*until)),
        Change::Merge(_, key, operand) => is(ChangeKind::Merge, key) && has(operand, None),
        Change::Delete(_, key) => is(ChangeKind::Delete, key) && has_none && found.range_end.is_none(),
        Change::DeleteRange(_, bounds) => {
            let (start, end) = keys_of(bounds);
            is(ChangeKind::DeleteRange, &start) && has_none && found.range_end.as_deref() == end.as_deref()
        }
    }
}

/// A change of a feed in words.
#[must_use]
pub fn shown(found: &Fed) -> String {
    let value = found.value.as_deref().map(crate::value::describe);
    let key = found.key.escape_ascii();
    format!("{:?} of {:?}/{key}, value {value:?}, until {:?}", found.kind, found.keyspace, found.expires_at)
}
