//! Keyspaces of the database that a driver runs: created, dropped, given other options.

use bifold::Error;

use super::{Driver, Watcher};
use crate::{
    model::{NAMES, Name, Variant},
    read::Trouble,
};

impl<W: Watcher> Driver<W> {
    pub(super) fn create(&mut self, name: Name) -> Result<(), Trouble> {
        let there = self.model.current(name).is_some();
        if !there {
            self.model.begin_create(name);
        }
        let options = self.set.variant(name, self.model.options(name).first().copied().unwrap_or(0));
        let made = self.db().keyspace(NAMES[name as usize], options);
        self.watcher.before_acknowledge(&self.model)?;
        self.trees[name as usize] = Some(made?);
        self.model.acknowledge_change();
        Ok(())
    }

    pub(super) fn configure(&mut self, name: Name, variant: Variant) -> Result<(), Trouble> {
        let Some(tree) = self.trees[name as usize].clone() else { return Ok(()) };
        self.model.begin_configure(name, variant);
        let options = self.set.variant(name, variant);
        let done = tree.set_options(options.clone());
        self.watcher.before_acknowledge(&self.model)?;
        done?;
        self.model.acknowledge_change();
        match tree.options() == options.resolved() {
            true => Ok(()),
            false => Err(Trouble::wrong("options that were set are not in force")),
        }
    }

    pub(super) fn drop_tree(&mut self, name: Name) -> Result<(), Trouble> {
        let Some(tree) = self.trees[name as usize].take() else { return Ok(()) };
        self.model.begin_drop(name);
        let dropped = self.db().drop_keyspace(NAMES[name as usize]);
        self.watcher.before_acknowledge(&self.model)?;
        dropped?;
        self.model.acknowledge_change();
        match tree.get("any") {
            Err(Error::Closed { .. }) => Ok(()),
            other => Err(Trouble::wrong(format!("a dropped keyspace answers {other:?}"))),
        }
    }
}
