//! The trees of a new state: those of the last one where no edit has touched them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bifold_contract::{
    Error, FileId, KeyspaceId, LevelEdit, Result, RunId, SeqNo, TableRemoved, ValueEdit, edit::TableAdded,
};
use bifold_index::{table::Table, version::Version};
use bifold_values::parts::value_files::FileAccess;

use super::{Follower, manifest::Touched};
use crate::{
    log::trees::find,
    open::recover::{KeyspaceState, ManifestState},
    settings::options::KeyspaceOptions,
    state::{
        numbers::Numbers,
        presets::{self, FoundFiles, OwnPlacements},
        tree::{Layer, Tree, View},
    },
};

impl Follower {
    /// All trees, with empty memtables.
    ///
    /// # Errors
    /// I/O errors and corruption; a placement that is not registered.
    pub(super) fn open_trees(&self, state: &ManifestState) -> Result<Vec<Arc<Tree>>> {
        let numbers = Numbers::from(state.next_file.max(1));
        let own = (OwnPlacements::Of(&self.options.placements, &self.options.merge_operators), FileAccess::Follow);
        // Value files that no edit has recorded are found by the pointers in logs.
        let shared = (&self.value_memory, &self.unsynced);
        let trees = state.open_trees(&self.dir, &self.tables, shared, &numbers, &[], own)?;
        trees.iter().try_for_each(|tree| tree.placement().finish_recovery(0, 0))?;
        Ok(trees)
    }

    /// The trees after edits that have `touched` some of them. `None` if memtables do not fit the tables.
    ///
    /// # Errors
    /// As [`Follower::open_trees`].
    pub(super) fn next_trees(
        &self,
        state: &ManifestState,
        touched: &Touched,
        before: &[Arc<Tree>],
    ) -> Result<Option<Vec<Arc<Tree>>>> {
        let mut recorded = if touched.keyspaces.is_empty() { BTreeMap::new() } else { state.value_edits() };
        let mut trees = Vec::new();
        for (&id, keyspace) in &state.keyspaces {
            let next = match find(before, id) {
                Some(tree) if !touched.keyspaces.contains(&id) => Some(tree),
                before => {
                    let values = recorded.remove(&id).unwrap_or_default();
                    self.next_tree((id, keyspace), (&values, &touched.removed), before.as_deref())?
                }
            };
            let Some(next) = next else { return Ok(None) };
            trees.push(next);
        }
        Ok(Some(trees))
    }

    fn next_tree(
        &self,
        (id, keyspace): (KeyspaceId, &KeyspaceState),
        (recorded, removed): (&ValueEdit, &BTreeSet<FileId>),
        before: Option<&Tree>,
    ) -> Result<Option<Arc<Tree>>> {
        let options = KeyspaceOptions::recorded(&keyspace.options)
            .map_err(|e| Error::invalid(format!("options of keyspace `{}` in the manifest", keyspace.name), e))?;
        let view = before.map(Tree::view_to_hold);
        let Some(layers) = view.as_deref().map_or(Some(Vec::new()), |view| unflushed(view, keyspace.flushed, before))
        else {
            return Ok(None);
        };
        let empty = presets::empty_version(&options, &self.tables);
        let old = view.as_deref().map_or(&empty, |view| &*view.version);
        let change = difference(id, old, keyspace);
        let version = old.apply(&change, &mut |meta| Table::open(&self.dir, Arc::clone(meta), &self.tables))?;
        let version = presets::version_with(&version, &options);
        let numbers = Numbers::from(FileId::MAX >> 2);
        let shared = (&self.value_memory, &self.unsynced);
        let context = presets::value_home(&self.dir, id, &numbers, shared, FileAccess::Follow);
        let own = OwnPlacements::Of(&self.options.placements, &self.options.merge_operators);
        let before = view.as_deref().map(|view| (&**view.values.files(), removed));
        let values = FoundFiles { context, listed: recorded, present: &[], before, own };
        let tree = Tree::new(id, keyspace.name.clone(), options, version, keyspace.flushed, values)?;
        tree.placement().finish_recovery(0, 0)?;
        if let Some(view) = &view {
            tree.placement().large().take_over(view.values.large());
        }
        if keyspace.loses_entries {
            tree.has_lost_entries();
        }
        let mut layers = layers.into_iter();
        if let Some(active) = layers.next() {
            tree.take_layers(active, layers.collect());
        }
        Ok(Some(Arc::new(tree)))
    }
}

/// The memtables that tables do not have, newest first. `None` if tables have a part of one.
fn unflushed(view: &View, flushed: SeqNo, before: Option<&Tree>) -> Option<Vec<Arc<Layer>>> {
    let last = |layer: &&Arc<Layer>| layer.memtable.max_seqno().unwrap_or(0);
    let (stay, in_tables): (Vec<_>, Vec<_>) = view.layers().partition(|layer| last(layer) > flushed);
    let is_whole = before.is_some_and(|tree| tree.flushed() == flushed)
        || in_tables.iter().any(|layer| last(layer) == flushed)
        || stay.is_empty();
    is_whole.then(|| stay.into_iter().map(Arc::clone).collect())
}

/// What leads from `version` to the tables of `keyspace`.
fn difference(id: KeyspaceId, version: &Version, keyspace: &KeyspaceState) -> LevelEdit {
    let shape = version.shape();
    let here: BTreeMap<FileId, (u8, RunId)> =
        shape.tables().map(|(level, run, table)| (table.id, (level, run))).collect();
    let stays = |added: &&TableAdded| here.get(&added.table.id) == Some(&(added.level, added.run));
    let kept: BTreeSet<FileId> = keyspace.tables.values().filter(stays).map(|added| added.table.id).collect();
    let removed = here.iter().filter(|(table, _)| !kept.contains(table));
    let boundaries = keyspace.boundaries.iter().filter(|boundary| !shape.boundaries.contains(boundary));
    LevelEdit {
        keyspace: id,
        removed: removed.map(|(&table, &(level, run))| TableRemoved { level, run, table }).collect(),
        added: keyspace.tables.values().filter(|added| !stays(added)).cloned().collect(),
        boundaries: boundaries.cloned().collect(),
    }
}
