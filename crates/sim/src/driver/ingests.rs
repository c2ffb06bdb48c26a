//! Ingests of the database that a driver runs. One can be open at a time, and other operations go on meanwhile.

use bifold::{Durability, Error, Ingest, Keyspace};

use super::{Driver, Watcher};
use crate::{
    history::{End, Write},
    model::{Change, Name, TreeId},
    read::Trouble,
};

/// An ingest that is open.
pub(super) struct HeldIngest {
    ingest: Ingest,
    name: Name,
    tree: TreeId,
    changes: Vec<Change>,
}

impl<W: Watcher> Driver<W> {
    /// Begins an ingest of these puts in place of the open one, which is dropped.
    pub(super) fn begin_ingest(&mut self, name: Name, writes: &[Write]) -> Result<(), Trouble> {
        self.ingest = None;
        let (Some(keyspace), Some(tree)) = (&self.trees[name as usize], self.model.current(name)) else {
            return Ok(());
        };
        let begun = begin(keyspace, writes);
        self.watcher.before_acknowledge(&self.model)?;
        let changes = writes.iter().map(Write::change).collect();
        self.ingest = Some(HeldIngest { ingest: begun?, name, tree, changes });
        Ok(())
    }

    /// Ends the open ingest, if there is one.
    pub(super) fn end_ingest(&mut self, end: End) -> Result<(), Trouble> {
        let Some(HeldIngest { ingest, name, tree, changes }) = self.ingest.take() else { return Ok(()) };
        if end == End::Drop {
            drop(ingest);
            return self.watcher.before_acknowledge(&self.model);
        }
        if self.model.current(name) != Some(tree) {
            return match ingest.finish() {
                // Without entries there is nothing to be refused.
                Ok(report) if report.entries == 0 && changes.is_empty() => Ok(()),
                Err(Error::Closed { .. }) => Ok(()),
                other => Err(Trouble::wrong(format!("an ingest into a dropped keyspace answers {other:?}"))),
            };
        }
        let (count, is_empty) = (changes.len() as u64, changes.is_empty());
        if !is_empty {
            self.model.begin(&changes);
        }
        let finished = ingest.finish();
        let entries = finished.as_ref().map_or(count, |report| report.entries);
        self.acknowledge(finished.map(drop), if is_empty { Durability::Memory } else { Durability::Sync })?;
        match entries == count {
            true => Ok(()),
            false => Err(Trouble::wrong(format!("an ingest of {count} entries says that it had {entries}"))),
        }
    }
}

fn begin(keyspace: &Keyspace, writes: &[Write]) -> bifold::Result<Ingest> {
    let mut ingest = keyspace.ingest()?;
    writes.iter().try_for_each(|write| write.add_to_ingest(&mut ingest))?;
    Ok(ingest)
}
