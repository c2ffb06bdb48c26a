//! The trees of an open database, one for each keyspace.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bifold_contract::{Edit, FileId, KeyspaceEdit, KeyspaceId, LevelEdit, LogFloor, edit::TableAdded};

use crate::{
    log::{manifest::ManifestFile, wal::Wal},
    state::{changing::Changing, places::Places, tree::Tree},
};

/// All trees. Reading them takes no lock.
#[derive(Debug)]
pub(crate) struct Trees {
    all: ArcSwap<Vec<Arc<Tree>>>,
}

/// State behind a lock under which the set of trees does not change. The set is replaced under both locks.
pub(crate) trait KeepsTrees {}

impl KeepsTrees for Wal {}

impl KeepsTrees for ManifestFile {}

impl Trees {
    /// These trees, sorted by keyspace number.
    pub fn new(trees: Vec<Arc<Tree>>) -> Self {
        Self { all: ArcSwap::from_pointee(trees) }
    }

    /// All trees at this moment; the set may change at any time. [`Trees::steady`] returns a set that stays valid.
    pub fn all(&self) -> arc_swap::Guard<Arc<Vec<Arc<Tree>>>> {
        self.all.load()
    }

    /// All trees. While the caller holds the commit lock or the manifest's lock, none is created and none is dropped.
    pub fn steady(&self, _lock: &impl KeepsTrees) -> Arc<Vec<Arc<Tree>>> {
        self.all.load_full()
    }

    /// The tree of a keyspace.
    pub fn get(&self, keyspace: KeyspaceId) -> Option<Arc<Tree>> {
        find(&self.all(), keyspace)
    }

    /// The tree of the keyspace with this name.
    pub fn named(&self, name: &str) -> Option<Arc<Tree>> {
        self.all().iter().find(|tree| tree.name == name).cloned()
    }

    /// The trees of these keyspaces, as far as they exist.
    pub fn of(&self, places: &Places) -> Vec<Arc<Tree>> {
        match places {
            Places::All => self.all().to_vec(),
            Places::In(some) => some.iter().filter_map(|&keyspace| self.get(keyspace)).collect(),
        }
    }

    /// Replaces the set. Only `install` calls this.
    pub fn set(&self, trees: Vec<Arc<Tree>>, _locks: (&ManifestFile, &Wal), _change: &Changing<'_>) {
        debug_assert!(trees.is_sorted_by_key(|tree| tree.keyspace), "trees are sorted by keyspace number");
        self.all.store(Arc::new(trees));
    }
}

/// The tree of a keyspace in a list sorted by keyspace number.
pub(crate) fn find(trees: &[Arc<Tree>], keyspace: KeyspaceId) -> Option<Arc<Tree>> {
    trees.binary_search_by_key(&keyspace, |tree| tree.keyspace).ok().map(|at| Arc::clone(&trees[at]))
}

/// The state of a database as one edit.
pub(crate) fn state_of(trees: &[Arc<Tree>], next_file: FileId, last_seqno: u64, log_floor: LogFloor) -> Edit {
    let mut edit = Edit {
        next_file: Some(next_file),
        last_seqno: Some(last_seqno),
        log_floor: Some(log_floor),
        ..Edit::default()
    };
    for tree in trees {
        let options = tree.options().record();
        edit.keyspaces.push(KeyspaceEdit::Created { id: tree.keyspace, name: tree.name.clone(), options });
        if tree.may_lose_entries() {
            edit.keyspaces.push(KeyspaceEdit::Expires { id: tree.keyspace });
        }
        let values = tree.placement().recorded();
        edit.values.added.extend(values.added);
        edit.values.garbage.extend(values.garbage);
        edit.values.large.extend(values.large);
        let view = tree.view();
        edit.keyspaces.push(KeyspaceEdit::Flushed { id: tree.keyspace, seqno: tree.flushed() });
        let shape = view.version.shape();
        let added = shape
            .tables()
            .map(|(level, run, table)| TableAdded { level, run, table: Arc::clone(table) })
            .collect::<Vec<_>>();
        let boundaries = shape.boundaries.to_vec();
        if !added.is_empty() || !boundaries.is_empty() {
            let keyspace = tree.keyspace;
            edit.levels.push(LevelEdit { keyspace, added, boundaries, ..LevelEdit::default() });
        }
    }
    edit
}
