//! Which options each keyspace has. They change by a durable record of their own: while such a call is running, the old
//! options and the new ones are both right.

use super::{Life, Model, Name, Variant};

impl Model {
    /// Begins to change the options of a keyspace.
    pub fn begin_configure(&mut self, name: Name, variant: Variant) {
        if let Some(tree) = self.current(name) {
            self.trees[tree.0].changing_to = Some(variant);
            self.has_changed_options = true;
        }
    }

    /// Whether options of any keyspace have ever been changed. If not, each has those it was created with.
    #[must_use]
    pub fn has_changed_options(&self) -> bool {
        self.has_changed_options
    }

    /// The options that a keyspace which was found may have: those it had and those it was getting.
    #[must_use]
    pub fn options(&self, name: Name) -> Vec<Variant> {
        let tree = self.trees.iter().rev().find(|t| t.name == name && t.life != Life::Dropped);
        tree.map_or(Vec::new(), |tree| [Some(tree.options), tree.changing_to].into_iter().flatten().collect())
    }

    /// Decides which options a keyspace has: those that were found.
    pub fn resolve_options(&mut self, name: Name, found: Variant) {
        if let Some(tree) = self.current(name) {
            self.trees[tree.0].options = found;
            self.trees[tree.0].changing_to = None;
        }
    }
}
