//! Changes of what readers and writers see: whoever makes one cannot forget to notify those who wait for it.

use bifold_contract::KeyspaceId;

/// Who is told that a change has ended. Trees know no more of pace and work than this.
pub(crate) trait NotesChanges {
    /// What readers and writers see of these keyspaces has changed.
    fn have_changed(&self, keyspaces: &[KeyspaceId]);
}

/// A change of the trees or of one of their views. It ends when this is dropped, also by a panic: then what the pace
/// has noted about these trees is out of date, and waiting threads look again. [`Tree::change`] and [`Trees::set`]
/// require one.
///
/// [`Tree::change`]: crate::state::tree::Tree::change
/// [`Trees::set`]: crate::log::trees::Trees::set
pub(crate) struct Changing<'a> {
    notes: &'a dyn NotesChanges,
    keyspaces: Vec<KeyspaceId>,
}

impl<'a> Changing<'a> {
    /// Begins a change of what readers and writers see of these keyspaces, or of whether they exist.
    pub fn of(notes: &'a dyn NotesChanges, keyspaces: impl IntoIterator<Item = KeyspaceId>) -> Self {
        Self { notes, keyspaces: keyspaces.into_iter().collect() }
    }

    /// Whether it changes this keyspace.
    pub fn is_of(&self, keyspace: KeyspaceId) -> bool {
        self.keyspaces.contains(&keyspace)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.notes.have_changed(&self.keyspaces);
    }
}
