//! What a change feed tells: every commit that changes anything, in order.

use std::sync::Arc;

use super::{Change, CommitNo, Life, Model, NAMES, TreeId, is_nothing};

/// The changes of one commit.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its number.
    pub commit: CommitNo,
    /// What it changes, and in which tree. There is at least one.
    pub changes: Vec<(TreeId, Change)>,
}

impl Change {
    /// The keyspace's name.
    #[must_use]
    pub fn name(&self) -> super::Name {
        match self {
            Self::Put(name, ..)
            | Self::PutUntil(name, ..)
            | Self::Merge(name, ..)
            | Self::Delete(name, _)
            | Self::DeleteRange(name, _) => *name,
        }
    }
}

impl Model {
    /// Notes the last commit, unless it changes nothing.
    pub(super) fn tell(&mut self, changes: &[Change]) {
        let is_none = |change: &Change| matches!(change, Change::DeleteRange(_, bounds) if is_nothing(bounds));
        let within = |change: &Change| Some((self.current(change.name())?, change.clone()));
        let changes: Vec<_> = changes.iter().filter(|change| !is_none(change)).filter_map(within).collect();
        if !changes.is_empty() {
            self.told.push(Arc::new(Told { commit: self.head, changes }));
        }
    }

    /// All commits that changed anything.
    #[must_use]
    pub fn told(&self) -> &[Arc<Told>] {
        &self.told
    }

    /// The name of a tree, unless it was dropped.
    #[must_use]
    pub fn name_of(&self, tree: TreeId) -> Option<&'static str> {
        let tree = &self.trees[tree.0];
        (tree.life != Life::Dropped).then(|| NAMES[tree.name as usize])
    }
}
