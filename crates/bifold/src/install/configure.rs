//! Changing the options of a keyspace.
//!
//! ```text
//! set_options ─▶ check ─▶ manifest: Configured, synced ─▶ in force: View::settings, options of the placement
//! ```
//!
//! A crash before the sync leaves the old options or the new ones, whichever the manifest has; nobody has seen the new
//! ones then. Everything that is written obeys both, since files describe themselves: only later jobs and commits are
//! different. The placement and the hash index decide how present files are read, and the merge operator what is
//! in them, so they cannot change.

use std::sync::Arc;

use bifold_contract::{Edit, Error, KeyspaceEdit, Result, planted};

use crate::{
    install::State,
    settings::{
        merge::MergeOperator,
        options::{HashIndex, KeyspaceOptions},
    },
    state::tree::Tree,
    waiting::sync::LockExt,
};

impl State {
    /// Changes the options of a keyspace. They are durable and in force when this returns. Returns whether they differ
    /// from those it had; then work may be due.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options, and for another placement or hash index than the keyspace has;
    /// I/O errors, and every reason to refuse writes. Nothing is changed then, unless the database is poisoned: after
    /// it is opened again, it has the old options or the new ones.
    pub fn set_options(&self, tree: &Arc<Tree>, options: &KeyspaceOptions) -> Result<bool> {
        self.health.takes_writes()?;
        let options = self.merge_operators.resolve(&tree.name, options)?;
        {
            let mut manifest = self.manifest.hold();
            tree.readable(&self.health)?;
            let stored = tree.options();
            let options = &options.resolved_for(&stored);
            options.check()?;
            can_become(&tree.name, &stored, options)?;
            if stored == *options {
                return Ok(false);
            }
            if planted!("options_before_durable") {
                self.put_in_force(tree, options);
            }
            let configured = KeyspaceEdit::Configured { id: tree.keyspace, options: options.record() };
            let mut edit = Edit { keyspaces: vec![configured], ..Edit::default() };
            self.record(&mut manifest, &mut edit)?;
            self.put_in_force(tree, options);
            self.keep_short_without_jobs(&mut manifest)?;
        }
        self.pace.update_of(&[tree.keyspace]);
        Ok(true)
    }

    /// No worker chooses a compaction meanwhile: what it chooses belongs to the old options or to the new ones.
    fn put_in_force(&self, tree: &Tree, options: &KeyspaceOptions) {
        let changing = self.changing([tree.keyspace]);
        self.work.change(tree.keyspace, |_| tree.configure(options, &changing));
    }

    /// Gives an existing keyspace the options that it was opened with: default options stand for those it has. Returns
    /// whether they differ.
    ///
    /// # Errors
    /// As [`State::set_options`]; [`Error::InvalidArgument`] when they differ and the database is open read-only.
    pub fn open_with_options(&self, tree: &Arc<Tree>, options: &KeyspaceOptions) -> Result<bool> {
        let stored = tree.options();
        if *options == KeyspaceOptions::default() {
            return Ok(false);
        }
        let resolved = options.resolved_for(&stored);
        if resolved == stored {
            return Ok(false);
        }
        resolved.check()?;
        can_become(&tree.name, &stored, &resolved)?;
        if !self.access.writes() {
            let reason = format!(
                "keyspace `{}` has other options, and a database that is open read-only cannot change them: leave \
                 them out, or open it for writing",
                tree.name
            );
            return Err(Error::invalid("options", reason));
        }
        // As they were given: another thread may have changed what they leave open.
        self.set_options(tree, options)
    }
}

/// Checks that `stored` and `given` have what cannot change in common.
fn can_become(keyspace: &str, stored: &KeyspaceOptions, given: &KeyspaceOptions) -> Result<()> {
    let (had, wanted) = (stored.placement.name(), given.placement.name());
    if had != wanted {
        let reason = format!(
            "keyspace `{keyspace}` has placement `{had}`, which cannot be changed to `{wanted}` in place: give the one \
             it has, give no options of the keyspace at all, or copy the database with `bifold convert SRC DST \
             --placement {wanted}`"
        );
        return Err(Error::invalid("option `placement`", reason));
    }
    if stored.hash_index != given.hash_index {
        let (had, wanted) = (shown(stored.hash_index), shown(given.hash_index));
        let reason = format!(
            "keyspace `{keyspace}` has {had}, which cannot be changed to {wanted} in place: give the one it has, give \
             no options of the keyspace at all, or copy the database with `bifold convert SRC DST --placement {} \
             --set keyspace.hash_index.NAME=VALUE`",
            given.placement.name()
        );
        return Err(Error::invalid("option `hash_index`", reason));
    }
    if stored.merge != given.merge {
        let name = |operator: &Option<MergeOperator>| match operator {
            Some(operator) => format!("the merge operator `{}`", operator.name()),
            None => "no merge operator".to_owned(),
        };
        let reason = format!(
            "keyspace `{keyspace}` has {}, which cannot be changed to {}: give the one it has, give no options of the \
             keyspace at all, or create another keyspace",
            name(&stored.merge),
            name(&given.merge)
        );
        return Err(Error::invalid("option `merge`", reason));
    }
    Ok(())
}

fn shown(index: Option<HashIndex>) -> String {
    let text = |index| toml::to_string(&index).unwrap_or_default().trim().replace('\n', ", ");
    index.map_or_else(|| "no hash index".to_owned(), |index| format!("the hash index `{}`", text(index)))
}
