//! What a GC job asks of a store.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use bifold_contract::{Error, Pointer, Result, SeqNo, ValueEdit};
use bifold_values::placement::{Commits, GcContext, IndexView, Moved, RewrittenTables};

use crate::{
    core::{Core, Upto, hold},
    index::{Entry, ForeignIndex},
    log::Log,
};

/// This many moves are compared with the index and committed under one hold of the commit lock.
const CHECKED_AT_ONCE: usize = 256;

/// Room that stays free for logs and the index when copies are made, in bytes.
const KEPT_FREE_BYTES: u64 = 16 << 20;

/// What a store does for one GC job.
pub(crate) struct Verbs<'a, I> {
    pub core: &'a Core<I>,
}

impl<I: ForeignIndex> IndexView for Verbs<'_, I> {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        self.core.counters.lookups.fetch_add(1, Relaxed);
        let newest = self.core.newest(key)?;
        Ok(if let Some(Entry::Separated(pointer)) = newest { Some(pointer) } else { None })
    }
}

impl<I: ForeignIndex> GcContext for Verbs<'_, I> {
    fn fit(&self, copies: &[u64]) -> Result<usize> {
        let Some(free_bytes) = self.core.dir.free_bytes() else { return Ok(copies.len()) };
        let room = free_bytes.saturating_sub(KEPT_FREE_BYTES);
        let mut needed = 0;
        let fits = copies.iter().take_while(|&&copy| {
            needed += copy;
            needed <= room
        });
        match fits.count() {
            0 if !copies.is_empty() => {
                let path = self.core.dir.path().to_path_buf();
                Err(Error::Full { path, free_bytes, needed_bytes: copies[0] + KEPT_FREE_BYTES })
            }
            count => Ok(count),
        }
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        let core = self.core;
        let mut last = {
            // What overwrote the other values may be a commit under way.
            let _commits_wait = hold(&core.log);
            core.visible.load(Acquire)
        };
        for (at, chunk) in moves.chunks(CHECKED_AT_ONCE).enumerate() {
            let moved = {
                let mut log = hold(&core.log);
                let moved = core.health.well().and_then(|()| core.commit_current(&mut log, chunk, refused));
                last = core.visible.load(Acquire);
                moved
            };
            if moved.is_err() {
                // The files they come from stay in use, so nobody needs these copies.
                moves[at * CHECKED_AT_ONCE..].iter().for_each(&mut *refused);
            }
            moved?;
        }
        Ok(Some(last))
    }

    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        let mut log = hold(&self.core.log);
        self.core.health.well()?;
        self.core.health.watch(act(&mut Held { core: self.core, log: &mut log }))?;
        Ok(true)
    }

    /// No placement of ours asks for it: a foreign index does not say what it rewrites.
    fn rewrite(&self, _tables: RewrittenTables<'_>) -> Result<u64> {
        Err(Error::invalid("placement", "it needs rewrites of tables, which a foreign index does not have"))
    }

    fn install(
        &self,
        copied: Option<SeqNo>,
        edit: &mut dyn FnMut() -> ValueEdit,
        in_force: &mut dyn FnMut(),
    ) -> Result<()> {
        if let Some(copied) = copied {
            self.core.sync(Upto::Commit(copied))?;
        }
        self.core.install(edit, in_force)
    }
}

/// The commit lock, held for a GC job.
struct Held<'a, I> {
    core: &'a Core<I>,
    log: &'a mut Log,
}

impl<I: ForeignIndex> Commits for Held<'_, I> {
    fn commit(&mut self, moves: &[Moved], _refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo> {
        self.core.commit_moves(self.log, &moves.iter().collect::<Vec<_>>())?;
        Ok(self.core.visible.load(Acquire))
    }
}
