//! The reference model: what a correct database holds after every commit, and which of these states a crash may leave.
//!
//! Each key keeps its versions as (commit, value), so any past state can be read without copying a map per commit.
//! Commits are numbered from 1; state 0 is the empty database.
//!
//! **The promise that is checked.** A recovered state equals the state after some commit `n`, for all keyspaces at
//! once, with `floor ≤ n ≤ head`. `head` is the last commit begun, acknowledged or not. `floor` is the last one
//! acknowledged at a level that survives this kind of crash. A batch is one commit here, so a torn batch matches no
//! `n`.
//!
//! Keyspaces are created and dropped by durable records of their own, apart from commits. While such a call is
//! running, either outcome is right. A keyspace that is dropped and created again is another tree.

mod bounds;

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, sync::Arc};

use bifold::{Durability, Value};

use self::bounds::is_range;
pub use self::{
    bounds::{Bounds, borrowed, is_nothing, keys_of},
    told::Told,
};
use crate::{
    history::Until,
    value::{Spec, describe},
};

mod options;
mod told;

/// Number of a commit; 0 is "before the first".
pub type CommitNo = u64;

/// Names of the keyspaces that histories use; the first always exists.
pub const NAMES: [&str; 3] = ["default", "alpha", "beta"];

/// Position of a keyspace's name in [`NAMES`].
pub type Name = u8;

/// Number of a variant of a keyspace's options; 0 is what it was created with.
pub type Variant = u32;

/// One life of a keyspace: created, used, perhaps dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeId(usize);

/// One change within a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key gets a value.
    Put(Name, Box<[u8]>, Spec),
    /// A key gets a value that expires; if it has expired, the key has none.
    PutUntil(Name, Box<[u8]>, Spec, Until),
    /// A key gets an operand of [`value::operator`](crate::value::operator).
    Merge(Name, Box<[u8]>, Spec),
    /// A key loses its value.
    Delete(Name, Box<[u8]>),
    /// All keys of a range lose theirs.
    DeleteRange(Name, Bounds),
}

/// How a database may end without closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process ends; the operating system keeps everything it was given.
    Kill,
    /// Power is lost.
    Power,
}

impl Crash {
    /// This crash, followed by another one.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        if next == Self::Kill { self } else { Self::Power }
    }
}

/// The reference model of one database.
#[derive(Clone, Debug)]
pub struct Model {
    trees: Vec<Tree>,
    head: CommitNo,
    floor_kill: CommitNo,
    floor_power: CommitNo,
    has_changed_options: bool,
    /// What changes anything, by commits.
    told: Vec<Arc<Told>>,
}

#[derive(Clone, Debug)]
struct Tree {
    name: Name,
    life: Life,
    /// The options that it surely has, unless they are being changed.
    options: Variant,
    /// The options that it is getting.
    changing_to: Option<Variant>,
    keys: BTreeMap<Box<[u8]>, Vec<Version>>,
}

/// The state of a keyspace between its first record and its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Creating,
    Exists,
    Dropping,
    Dropped,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    commit: CommitNo,
    value: Option<Spec>,
}

/// Everything that a database holds, read by iterating: for each keyspace its entries in key order.
pub type Contents = BTreeMap<String, Entries>;

/// Entries in key order.
pub type Entries = Vec<(Box<[u8]>, Value)>;

/// Why a recovered state is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The states that would have been right.
    pub allowed: RangeInclusive<CommitNo>,
    /// The closest state.
    pub nearest: CommitNo,
    /// How the found state differs from it, in words; at most [`DIFFERENCES_MAX`] differences.
    pub differences: Vec<String>,
}

/// At most this many differences are reported.
pub const DIFFERENCES_MAX: usize = 6;

impl Default for Model {
    fn default() -> Self {
        Self {
            trees: vec![Tree::new(0, Life::Exists)],
            head: 0,
            floor_kill: 0,
            floor_power: 0,
            has_changed_options: false,
            told: Vec::new(),
        }
    }
}

impl Model {
    /// Checks that `found` is a state that `crash` may leave now, and returns which one (the last, if several are
    /// alike).
    ///
    /// # Errors
    /// What is wrong, and with which keys.
    pub fn check(&self, found: &Contents, crash: Crash) -> Result<CommitNo, Mismatch> {
        self.check_between(found, self.floor(crash)..=self.head)
    }

    /// Checks that `found` is the state after one of `allowed`.
    ///
    /// # Errors
    /// As [`Model::check`].
    pub fn check_between(&self, found: &Contents, allowed: RangeInclusive<CommitNo>) -> Result<CommitNo, Mismatch> {
        let mut wrong = Tally::new(&allowed);
        for name in found.keys() {
            if NAMES.iter().all(|n| n != name) {
                wrong.everywhere(format!("keyspace `{name}` was never created"));
            }
        }
        for (at, name) in NAMES.iter().enumerate() {
            self.compare_tree(at as Name, found.get(*name), &mut wrong);
        }
        let (nearest, misses) = wrong.best();
        if misses == 0 {
            return Ok(nearest);
        }
        let mut differences = wrong.always;
        self.list_differences(found, nearest, &mut differences);
        differences.truncate(DIFFERENCES_MAX);
        Err(Mismatch { allowed, nearest, differences })
    }

    fn compare_tree(&self, name: Name, found: Option<&Entries>, wrong: &mut Tally) {
        let alive = self.trees.iter().rev().find(|t| t.name == name && t.life != Life::Dropped);
        let (tree, entries) = match (alive, found) {
            (None, None) => return,
            (Some(tree), None) if tree.life != Life::Exists => return,
            (Some(_), None) => return wrong.everywhere(format!("keyspace `{}` is missing", NAMES[name as usize])),
            (None, Some(_)) => return wrong.everywhere(format!("keyspace `{}` is back", NAMES[name as usize])),
            (Some(tree), Some(entries)) => (tree, entries),
        };
        for (key, versions) in &tree.keys {
            let value = value_of(entries, key);
            let mut since = 0;
            let mut holds: Option<Spec> = None;
            for version in versions {
                wrong.count(since, version.commit, !same(holds, value));
                (since, holds) = (version.commit, version.value);
            }
            wrong.count(since, CommitNo::MAX, !same(holds, value));
        }
        for (key, value) in entries.iter().filter(|(key, _)| !tree.keys.contains_key(key)) {
            let name = NAMES[name as usize];
            wrong.everywhere(format!("{name}/{}: never written, found {}", key.escape_ascii(), describe(value)));
        }
    }

    fn list_differences(&self, found: &Contents, nearest: CommitNo, into: &mut Vec<String>) {
        for tree in self.trees.iter().filter(|t| t.life != Life::Dropped) {
            let name = NAMES[tree.name as usize];
            let Some(entries) = found.get(name) else { continue };
            for (key, versions) in &tree.keys {
                let (right, value) = (at(versions, nearest), value_of(entries, key));
                if !same(right, value) {
                    let since = versions.iter().rev().find(|v| v.commit <= nearest).map_or(0, |v| v.commit);
                    into.push(format!(
                        "{name}/{}: expected {} (commit {since}), found {}",
                        key.escape_ascii(),
                        right.map_or("nothing".to_owned(), |spec| spec.to_string()),
                        value.map_or("nothing".to_owned(), |bytes| origin(versions, bytes)),
                    ));
                }
            }
        }
    }

    /// Begins a commit: from now on it may or may not survive.
    pub fn begin(&mut self, changes: &[Change]) -> CommitNo {
        self.head += 1;
        self.tell(changes);
        for change in changes {
            match change {
                Change::Put(name, key, value) => self.write(*name, key.clone(), Some(*value)),
                Change::PutUntil(name, key, value, until) => {
                    self.write(*name, key.clone(), Some(*value).filter(|_| *until == Until::Far));
                }
                Change::Merge(name, key, operand) => {
                    let older = self.current(*name).and_then(|tree| self.trees[tree.0].keys.get(key)?.last()?.value);
                    self.write(*name, key.clone(), Some(operand.on(older)));
                }
                Change::Delete(name, key) => self.write(*name, key.clone(), None),
                Change::DeleteRange(name, bounds) => {
                    let Some(tree) = self.current(*name).filter(|_| is_range(bounds)) else { continue };
                    let hit: Vec<_> =
                        self.trees[tree.0].keys.range::<[u8], _>(borrowed(bounds)).map(|(k, _)| k.clone()).collect();
                    hit.into_iter().for_each(|key| self.write(*name, key, None));
                }
            }
        }
        self.head
    }

    fn write(&mut self, name: Name, key: Box<[u8]>, value: Option<Spec>) {
        let commit = self.head;
        let Some(tree) = self.current(name) else { return };
        let versions = self.trees[tree.0].keys.entry(key).or_default();
        match versions.last_mut() {
            Some(last) if last.commit == commit => last.value = value,
            Some(last) if last.value.is_none() && value.is_none() => {}
            _ => versions.push(Version { commit, value }),
        }
    }

    /// Records that the last commit was acknowledged at this level.
    pub fn acknowledge(&mut self, durability: Durability) {
        if durability != Durability::Memory {
            self.floor_kill = self.head;
        }
        if durability == Durability::Sync {
            self.floor_power = self.head;
        }
    }

    /// Records that this commit survives a power loss, with all before it.
    pub fn is_durable(&mut self, commit: CommitNo) {
        self.floor_kill = self.floor_kill.max(commit);
        self.floor_power = self.floor_power.max(commit);
    }

    /// Removes all commits after `commit`: they did not happen, or did not survive.
    pub fn cut_back_to(&mut self, commit: CommitNo) {
        for tree in &mut self.trees {
            tree.keys.retain(|_, versions| {
                versions.retain(|v| v.commit <= commit);
                !versions.is_empty()
            });
        }
        self.told.retain(|told| told.commit <= commit);
        self.head = commit;
        self.floor_kill = self.floor_kill.min(commit);
        self.floor_power = self.floor_power.min(commit);
    }

    /// What a database surely holds from now on, after it recovered `found`, which equals the state after `commit`.
    #[must_use]
    pub fn recovered(&self, commit: CommitNo, found: &Contents) -> Self {
        let mut model = self.clone();
        model.cut_back_to(commit);
        model.resolve_as(found);
        model.floor_kill = commit;
        model.floor_power = commit;
        model
    }

    /// Begins to create a keyspace.
    pub fn begin_create(&mut self, name: Name) {
        self.trees.push(Tree::new(name, Life::Creating));
    }

    /// Begins to drop a keyspace.
    pub fn begin_drop(&mut self, name: Name) {
        if let Some(tree) = self.current(name) {
            self.trees[tree.0].life = Life::Dropping;
        }
    }

    /// Decides whether keyspaces being created or dropped exist, as `found` shows.
    pub fn resolve_as(&mut self, found: &Contents) {
        for tree in &mut self.trees {
            tree.life = match tree.life {
                Life::Creating | Life::Dropping if found.contains_key(NAMES[tree.name as usize]) => Life::Exists,
                Life::Creating | Life::Dropping => Life::Dropped,
                unchanged => unchanged,
            };
        }
    }

    /// Records that the call that created or dropped a keyspace, or changed its options, was acknowledged.
    pub fn acknowledge_change(&mut self) {
        for tree in &mut self.trees {
            tree.options = tree.changing_to.take().unwrap_or(tree.options);
            tree.life = match tree.life {
                Life::Creating => Life::Exists,
                Life::Dropping => Life::Dropped,
                unchanged => unchanged,
            };
        }
    }

    /// The current tree of `name`.
    #[must_use]
    pub fn current(&self, name: Name) -> Option<TreeId> {
        self.trees.iter().rposition(|t| t.name == name && matches!(t.life, Life::Exists | Life::Creating)).map(TreeId)
    }

    /// The last commit begun.
    #[must_use]
    pub fn head(&self) -> CommitNo {
        self.head
    }

    /// The last commit that must survive `crash`.
    #[must_use]
    pub fn floor(&self, crash: Crash) -> CommitNo {
        match crash {
            Crash::Kill => self.floor_kill,
            Crash::Power => self.floor_power,
        }
    }

    /// The value of a key after commit `n`.
    #[must_use]
    pub fn get(&self, tree: TreeId, key: &[u8], n: CommitNo) -> Option<Spec> {
        self.trees[tree.0].keys.get(key).and_then(|versions| at(versions, n))
    }

    /// Whether some commit gave the key this value.
    #[must_use]
    pub fn has_ever_held(&self, tree: TreeId, key: &[u8], value: &[u8]) -> bool {
        let versions = self.trees[tree.0].keys.get(key);
        versions.is_some_and(|versions| versions.iter().any(|version| version.value.is_some_and(|spec| spec.is(value))))
    }

    /// The entries of a range after commit `n`.
    pub fn scan(&self, tree: TreeId, bounds: &Bounds, n: CommitNo) -> Vec<(&[u8], Spec)> {
        if !is_range(bounds) {
            return Vec::new();
        }
        let keys = self.trees[tree.0].keys.range::<[u8], _>(borrowed(bounds));
        keys.filter_map(|(key, versions)| Some((key.as_ref(), at(versions, n)?))).collect()
    }

    /// Every key a tree ever had, with or without a value now.
    pub fn keys(&self, tree: TreeId) -> impl Iterator<Item = &[u8]> {
        self.trees[tree.0].keys.keys().map(AsRef::as_ref)
    }
}

impl Tree {
    fn new(name: Name, life: Life) -> Self {
        Self { name, life, options: 0, changing_to: None, keys: BTreeMap::new() }
    }
}

/// For each allowed commit, how many keys of the found state do not match it: stored as steps, summed up at the end.
struct Tally {
    first: CommitNo,
    last: CommitNo,
    steps: Vec<i64>,
    always: Vec<String>,
}

impl Tally {
    fn new(allowed: &RangeInclusive<CommitNo>) -> Self {
        let (first, last) = (*allowed.start(), *allowed.end());
        assert!(first <= last, "no state is allowed: {first}..={last}");
        Self { first, last, steps: vec![0; (last - first + 2) as usize], always: Vec::new() }
    }

    /// Counts one more wrong key from commit `since` up to the one before `until`.
    fn count(&mut self, since: CommitNo, until: CommitNo, wrong: bool) {
        let (begin, end) = (since.max(self.first), until.min(self.last + 1));
        if wrong && begin < end {
            self.steps[(begin - self.first) as usize] += 1;
            self.steps[(end - self.first) as usize] -= 1;
        }
    }

    /// Counts something that is wrong for every commit.
    fn everywhere(&mut self, what: String) {
        self.always.push(what);
        self.count(self.first, self.last + 1, true);
    }

    /// The last commit with the fewest wrong keys, and their number.
    fn best(&self) -> (CommitNo, i64) {
        let mut sum = 0;
        let mut best = (self.first, i64::MAX);
        for (commit, step) in (self.first..=self.last).zip(&self.steps) {
            sum += step;
            if sum <= best.1 {
                best = (commit, sum);
            }
        }
        best
    }
}

fn at(versions: &[Version], n: CommitNo) -> Option<Spec> {
    let after = versions.partition_point(|v| v.commit <= n);
    versions[..after].last().and_then(|v| v.value)
}

fn value_of<'a>(entries: &'a [(Box<[u8]>, Value)], key: &[u8]) -> Option<&'a [u8]> {
    entries.binary_search_by(|(k, _)| k.as_ref().cmp(key)).ok().map(|at| &entries[at].1[..])
}

fn same(spec: Option<Spec>, bytes: Option<&[u8]>) -> bool {
    match (spec, bytes) {
        (Some(spec), Some(bytes)) => spec.is(bytes),
        (None, None) => true,
        _ => false,
    }
}

/// Which version of the key a found value is.
fn origin(versions: &[Version], bytes: &[u8]) -> String {
    let known = versions.iter().rev().find(|v| same(v.value, Some(bytes)));
    match known {
        Some(version) => format!("{} (commit {})", describe(bytes), version.commit),
        None => format!("{} (of no commit to this key)", describe(bytes)),
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.allowed.start(), self.allowed.end());
        write!(f, "no state after commits {first}..={last} fits; nearest is {}:", self.nearest)?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n    {difference}"))
    }
}
