//! Changes of what readers and writers see: whoever makes one cannot forget to notify those who wait for it.

use bifold_contract::KeyspaceId;

use crate::{background::work::Work, commit::pace::Pace};

/// A change of the trees or of one of their views. It ends when this is dropped, also by a panic: then what the pace
/// has noted about these trees is out of date, and waiting threads look again. [`Tree::change`] and [`Trees::set`]
/// require one.
///
/// [`Tree::change`]: crate::state::tree::Tree::change
/// [`Trees::set`]: crate::state::trees::Trees::set
pub(crate) struct Changing<'a> {
    pace: &'a Pace,
    work: &'a Work,
    keyspaces: Vec<KeyspaceId>,
}

impl<'a> Changing<'a> {
    /// Begins a change of what readers and writers see of these keyspaces, or of whether they exist.
    pub fn of(pace: &'a Pace, work: &'a Work, keyspaces: impl IntoIterator<Item = KeyspaceId>) -> Self {
        Self { pace, work, keyspaces: keyspaces.into_iter().collect() }
    }

    /// Whether it changes this keyspace.
    pub fn is_of(&self, keyspace: KeyspaceId) -> bool {
        self.keyspaces.contains(&keyspace)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.pace.forget(&self.keyspaces);
        self.work.look_at(&self.keyspaces);
    }
}
