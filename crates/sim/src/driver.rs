//! Runs a history on a database and on the model at once, and compares every answer.
//!
//! A write takes three steps: the model *begins* it, the database does it, the model *acknowledges* it. In between,
//! the [`Watcher`] is called and judges the crash images taken during the call, since the same states are allowed
//! from the beginning to the acknowledgement.

mod copies;
mod ingests;
mod keyspaces;

use std::path::{Path, PathBuf};

use bifold::{Batch, Db, Durability, Keyspace, Range, Snapshot, Swap, ValueReader};
use bifold_io::Env;

use self::ingests::HeldIngest;
use crate::{
    feed::FeedReader,
    history::{Expect, KeyNo, Op, Span, Way, Write, key_bytes},
    model::{Bounds, Change, CommitNo, Model, NAMES, Name, TreeId, is_nothing},
    notices::Outstanding,
    options::OptionSet,
    read::{self, Trouble, compare_entries, compare_reader, compare_ways, expect_value},
    value::Spec,
};

/// Called at every step of a run.
pub trait Watcher {
    /// The database's call has returned; the model has not acknowledged it yet.
    ///
    /// # Errors
    /// What is wrong with what was seen during the call.
    fn before_acknowledge(&mut self, model: &Model) -> Result<(), Trouble>;

    /// What follows until [`Watcher::resume`] is not part of the run and must not be recorded.
    fn pause(&mut self) {}

    /// The run continues.
    fn resume(&mut self) {}
}

/// A watcher that sees nothing.
#[derive(Debug, Default)]
pub struct Blind;

impl Watcher for Blind {
    fn before_acknowledge(&mut self, _model: &Model) -> Result<(), Trouble> {
        Ok(())
    }
}

/// A database and its model.
pub struct Driver<W> {
    /// What a correct database holds.
    pub model: Model,
    /// Called at every step.
    pub watcher: W,
    env: Env,
    path: PathBuf,
    set: OptionSet,
    db: Option<Db>,
    trees: Vec<Option<Keyspace>>,
    snapshots: Vec<Option<HeldSnapshot>>,
    iterators: Vec<Option<HeldIterator>>,
    ingest: Option<HeldIngest>,
    feed: FeedReader,
    outstanding: Outstanding,
    checkpoints: usize,
}

struct HeldSnapshot {
    snapshot: Snapshot,
    commit: CommitNo,
    trees: Vec<Option<TreeId>>,
}

struct HeldIterator {
    range: Range,
    tree: TreeId,
    commit: CommitNo,
    taken: usize,
    /// A reader of the last entry's value.
    reader: Option<(Box<[u8]>, Spec, ValueReader)>,
}

/// How many slots there are for snapshots, and for iterators.
const SLOTS: usize = 3;

impl<W: Watcher> Driver<W> {
    /// A driver for the database at `path`, which need not exist. `model` describes its contents. Nothing is opened
    /// yet.
    pub fn new(env: Env, path: &Path, set: OptionSet, model: Model, watcher: W) -> Self {
        Self {
            model,
            watcher,
            env,
            path: path.to_owned(),
            set,
            db: None,
            trees: vec![None; NAMES.len()],
            snapshots: (0..SLOTS).map(|_| None).collect(),
            iterators: (0..SLOTS).map(|_| None).collect(),
            ingest: None,
            feed: FeedReader::default(),
            outstanding: Outstanding::default(),
            checkpoints: 0,
        }
    }

    /// Opens the database and the keyspaces that should exist.
    ///
    /// # Errors
    /// The database's refusal, or a keyspace that is missing.
    pub fn open(&mut self) -> Result<(), Trouble> {
        let opened = Db::open_in(self.env.clone(), &self.path, self.set.to_open(&self.model));
        self.watcher.before_acknowledge(&self.model)?;
        let db = opened?;
        for (at, name) in NAMES.iter().enumerate() {
            let there = db.existing_keyspace(name)?;
            if there.is_some() != self.model.current(at as Name).is_some() {
                return Err(Trouble::wrong(format!("after open, keyspace `{name}` exists: {}", there.is_some())));
            }
            self.trees[at] = there;
        }
        self.set.check_stored(&db, &mut self.model)?;
        // Recovery has made durable what it serves.
        self.model.acknowledge(Durability::Sync);
        self.db = Some(db);
        Ok(())
    }

    /// Closes the database, if it is open.
    ///
    /// # Errors
    /// The database's.
    pub fn close(&mut self) -> Result<(), Trouble> {
        self.drop_handles();
        let Some(db) = self.db.take() else { return Ok(()) };
        let closed = db.close();
        self.watcher.before_acknowledge(&self.model)?;
        closed.inspect_err(|_| self.outstanding.forget())?;
        self.model.acknowledge(Durability::Sync);
        self.outstanding.are_resolved()
    }

    /// Drops every handle, as a program does that forgets to close.
    ///
    /// # Errors
    /// The watcher's.
    pub fn abandon(&mut self) -> Result<(), Trouble> {
        self.drop_handles();
        self.outstanding.forget();
        self.db = None;
        self.watcher.before_acknowledge(&self.model)
    }

    /// Drops whatever keeps the database open.
    fn drop_handles(&mut self) {
        self.ingest = None;
        self.feed = FeedReader::default();
        self.trees.fill_with(|| None);
        self.snapshots.fill_with(|| None);
        self.iterators.fill_with(|| None);
    }

    /// The options of the database and its keyspaces.
    #[must_use]
    pub fn set(&self) -> &OptionSet {
        &self.set
    }

    /// Whether the database is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.db.is_some()
    }

    /// Drops everything and returns the model and the options.
    #[must_use]
    pub fn into_parts(mut self) -> (Model, OptionSet) {
        self.drop_handles();
        self.outstanding.forget();
        self.db = None;
        (self.model, self.set)
    }

    /// The open database.
    ///
    /// # Panics
    /// When it is not open.
    #[must_use]
    pub fn db(&self) -> &Db {
        self.db.as_ref().unwrap_or_else(|| panic!("the database is not open"))
    }

    /// Runs one operation and compares its answers. An operation on a missing keyspace does nothing.
    ///
    /// # Errors
    /// A wrong answer, or the database's refusal.
    pub fn step(&mut self, op: &Op) -> Result<(), Trouble> {
        self.run(op)?;
        match (self.set.keeps_all_changes(), &self.db) {
            (Some(all), Some(db)) => self.feed.catch_up(db, &self.model, all),
            _ => Ok(()),
        }
    }

    fn run(&mut self, op: &Op) -> Result<(), Trouble> {
        match op {
            Op::Write(write) => self.write(write),
            Op::PutReader(name, key, value) => self.put_reader(*name, *key, *value),
            Op::Batch(durability, writes) => self.batch(*durability, writes),
            Op::Swap(name, key, expect, new) => self.swap(*name, *key, *expect, *new),
            Op::Get(..) | Op::MultiGet(..) | Op::Scan(..) | Op::Prefix(..) => self.read(op),
            Op::Snapshot(_) | Op::ReadSnapshot(..) | Op::DropSnapshot(_) => self.snapshot(op),
            Op::OpenIterator(slot, name) => self.open_iterator(*slot, *name),
            Op::FinishIterator(slot, way) => self.finish_iterator(*slot, *way),
            Op::Flush => self.durable(Db::flush),
            Op::Sync => self.durable(Db::sync),
            Op::Compact => self.compact(None),
            Op::CompactRange(name, span) => self.compact(Some((*name, *span))),
            Op::Checkpoint => self.checkpoint(),
            Op::Reopen => self.close().and_then(|()| self.open()),
            Op::Abandon => self.abandon().and_then(|()| self.open()),
            Op::Create(name) => self.create(*name),
            Op::Drop(name) => self.drop_tree(*name),
            Op::Configure(name, variant) => self.configure(*name, *variant),
            Op::Ingest(name, writes) => self.begin_ingest(*name, writes),
            Op::EndIngest(end) => self.end_ingest(*end),
        }
    }

    fn write(&mut self, write: &Write) -> Result<(), Trouble> {
        let Some(tree) = self.trees[write.name() as usize].clone() else { return Ok(()) };
        self.model.begin(&[write.change()]);
        // Deleting an empty range writes nothing that could make earlier commits durable.
        let level = match write {
            Write::DeleteRange(_, span) if is_nothing(&span.bounds()) => Durability::Memory,
            _ => self.set.database.durability,
        };
        let done = write.apply(&tree);
        self.acknowledge(done, level)
    }

    fn put_reader(&mut self, name: Name, key: KeyNo, value: Spec) -> Result<(), Trouble> {
        let Some(tree) = self.trees[name as usize].clone() else { return Ok(()) };
        let key = key_bytes(key);
        self.model.begin(&[Change::Put(name, key.clone(), value)]);
        let done = tree.put_reader(&key, &value.bytes()[..]);
        self.acknowledge(done, self.set.database.durability)
    }

    fn acknowledge(&mut self, done: bifold::Result<()>, durability: Durability) -> Result<(), Trouble> {
        self.watcher.before_acknowledge(&self.model)?;
        done?;
        self.model.acknowledge(durability);
        Ok(())
    }

    fn batch(&mut self, durability: Durability, writes: &[Write]) -> Result<(), Trouble> {
        let mut batch = Batch::new();
        let mut changes = Vec::new();
        for write in writes {
            let Some(tree) = &self.trees[write.name() as usize] else { continue };
            changes.push(write.change());
            write.add_to(&mut batch, tree)?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.model.begin(&changes);
        // A batch of empty ranges has no operations, so nothing is written that could make earlier commits durable.
        let level = if batch.is_empty() { Durability::Memory } else { durability };
        // Of batches that are to be durable, half get a notice. Some of the notices are waited for later.
        let commit = self.model.head();
        if durability != Durability::Sync || commit.is_multiple_of(2) {
            let done = self.db().commit_with(batch, durability);
            return self.acknowledge(done, level);
        }
        let notice = self.db().commit_async(batch);
        let (done, notice) = match notice {
            Ok(notice) => (Ok(()), Some(notice)),
            Err(error) => (Err(error), None),
        };
        self.acknowledge(done, level.min(Durability::Buffered))?;
        notice.into_iter().for_each(|notice| self.outstanding.keep(commit, notice));
        if commit.is_multiple_of(3) {
            return Ok(());
        }
        let watcher = &mut self.watcher;
        self.outstanding.settle(&mut self.model, |model| watcher.before_acknowledge(model))
    }

    fn swap(&mut self, name: Name, key: KeyNo, expect: Expect, new: Option<Spec>) -> Result<(), Trouble> {
        let (Some(tree), Some(id)) = (self.trees[name as usize].clone(), self.model.current(name)) else {
            return Ok(());
        };
        let bytes = key_bytes(key);
        let there = self.model.get(id, &bytes, self.model.head());
        let expected = match expect {
            Expect::Current => there.map(Spec::bytes),
            Expect::Nothing => None,
            Expect::Other => Some(b"a value that never was".to_vec()),
        };
        let fits = expect == Expect::Current || (expect == Expect::Nothing && there.is_none());
        if fits {
            let change = new.map_or(Change::Delete(name, bytes.clone()), |v| Change::Put(name, bytes.clone(), v));
            self.model.begin(&[change]);
        }
        let outcome = tree.compare_and_swap(&bytes, expected.as_deref(), new.map(Spec::bytes).as_deref());
        self.watcher.before_acknowledge(&self.model)?;
        match outcome? {
            Swap::Done if fits => self.model.acknowledge(self.set.database.durability),
            Swap::Mismatch { current } if !fits => expect_value("swap found", &bytes, there, current.as_deref())?,
            Swap::Done => return Err(Trouble::wrong("a swap succeeded that should have found another value")),
            Swap::Mismatch { .. } => return Err(Trouble::wrong("a swap found a value that the model does not have")),
        }
        Ok(())
    }

    fn read(&mut self, op: &Op) -> Result<(), Trouble> {
        let (Op::Get(name, _) | Op::MultiGet(name, _) | Op::Scan(name, ..) | Op::Prefix(name, ..)) = op else {
            return Ok(());
        };
        let (Some(tree), Some(id)) = (&self.trees[*name as usize], self.model.current(*name)) else { return Ok(()) };
        let now = self.model.head();
        match op {
            Op::Get(_, key) => {
                let (bytes, right) = self.right(id, *key);
                expect_value("get", &bytes, right, tree.get(&bytes)?.as_deref())?;
                compare_reader("reader", &bytes, right, tree.get_reader(&bytes)?)?;
                if tree.contains_key(&bytes)? != right.is_some() {
                    return Err(Trouble::wrong(format!("contains_key of {} differs from get", bytes.escape_ascii())));
                }
            }
            Op::MultiGet(_, keys) => {
                let found = tree.multi_get(keys.iter().map(|&key| key_bytes(key)))?;
                for (key, found) in keys.iter().zip(found) {
                    let (bytes, right) = self.right(id, *key);
                    expect_value("multi_get", &bytes, right, found.as_deref())?;
                }
            }
            Op::Scan(_, span, way) => {
                let bounds = span.bounds();
                let right = self.model.scan(id, &bounds, now);
                compare_ways(&right, || tree.range(bounds.clone()), (*way, now))?;
                compare_entries("scan", right, tree.range(bounds), *way)?;
            }
            Op::Prefix(_, key, len) => {
                let key = key_bytes(*key);
                let prefix = &key[..(*len).min(key.len())];
                let right = self.model.scan(id, &everything(), now);
                let right = right.into_iter().filter(|(key, _)| key.starts_with(prefix)).collect();
                compare_entries("prefix", right, tree.prefix(prefix), Way::Forward)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn right(&self, tree: TreeId, key: KeyNo) -> (Box<[u8]>, Option<Spec>) {
        let bytes = key_bytes(key);
        let value = self.model.get(tree, &bytes, self.model.head());
        (bytes, value)
    }

    fn snapshot(&mut self, op: &Op) -> Result<(), Trouble> {
        match op {
            Op::Snapshot(slot) => {
                let trees = (0..NAMES.len()).map(|at| self.model.current(at as Name)).collect();
                let held = HeldSnapshot { snapshot: self.db().snapshot(), commit: self.model.head(), trees };
                self.snapshots[*slot] = Some(held);
            }
            Op::ReadSnapshot(slot, name) => {
                let (Some(held), Some(tree)) = (&self.snapshots[*slot], &self.trees[*name as usize]) else {
                    return Ok(());
                };
                let Some(id) = held.trees[*name as usize].filter(|id| self.model.current(*name) == Some(*id)) else {
                    return Ok(());
                };
                let right = self.model.scan(id, &everything(), held.commit);
                compare_entries("snapshot scan", right, held.snapshot.iter(tree), Way::Forward)?;
                for key in self.model.keys(id) {
                    let right = self.model.get(id, key, held.commit);
                    expect_value("snapshot get", key, right, held.snapshot.get(tree, key)?.as_deref())?;
                    compare_reader("snapshot's reader", key, right, held.snapshot.get_reader(tree, key)?)?;
                }
            }
            Op::DropSnapshot(slot) => self.snapshots[*slot] = None,
            _ => {}
        }
        Ok(())
    }

    fn open_iterator(&mut self, slot: usize, name: Name) -> Result<(), Trouble> {
        let (Some(tree), Some(id)) = (&self.trees[name as usize], self.model.current(name)) else { return Ok(()) };
        let mut range = tree.iter();
        let commit = self.model.head();
        let right = self.model.scan(id, &everything(), commit);
        read::compare_next("iterator's first entry", right.first().copied(), range.next())?;
        let reader = match right.last() {
            Some(&(key, value)) => tree.get_reader(key)?.map(|reader| (key.into(), value, reader)),
            None => None,
        };
        self.iterators[slot] = Some(HeldIterator { range, tree: id, commit, taken: right.len().min(1), reader });
        Ok(())
    }

    fn finish_iterator(&mut self, slot: usize, way: Way) -> Result<(), Trouble> {
        let Some(held) = self.iterators[slot].take() else { return Ok(()) };
        let right = self.model.scan(held.tree, &everything(), held.commit).split_off(held.taken);
        compare_entries("rest of an iterator", right, held.range, way)?;
        held.reader
            .map_or(Ok(()), |(key, value, reader)| compare_reader("held reader", &key, Some(value), Some(reader)))
    }

    fn durable(&mut self, call: impl FnOnce(&Db) -> bifold::Result<()>) -> Result<(), Trouble> {
        let done = call(self.db());
        self.acknowledge(done, Durability::Sync)
    }

    fn compact(&mut self, range: Option<(Name, Span)>) -> Result<(), Trouble> {
        let done = match range {
            None => self.db().compact(),
            Some((name, span)) => match &self.trees[name as usize] {
                Some(tree) => tree.compact_range(span.bounds()),
                None => Ok(()),
            },
        };
        self.acknowledge(done, Durability::Memory)
    }

    /// Reads everything in every way and compares it with the model's present state.
    ///
    /// # Errors
    /// What differs.
    pub fn compare_everything(&self) -> Result<(), Trouble> {
        read::compare_everything(self.db(), &self.model, self.model.head())
    }
}

/// No bounds at all.
#[must_use]
pub fn everything() -> Bounds {
    (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded)
}
