//! The bound on what open transactions hold.
//!
//! Each takes what it needs before it grows and gives it back at its end. The block cache lends it meanwhile.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use bifold_contract::{Error, Result};
use bifold_index::table::TableContext;

use crate::limits::memory::MemoryPlan;

/// What all open transactions hold.
pub(crate) struct TransactionMemory {
    bytes: AtomicU64,
    bytes_max: u64,
    tables: Arc<TableContext>,
}

impl TransactionMemory {
    /// No transaction is open.
    pub fn of(plan: &MemoryPlan, tables: &Arc<TableContext>) -> Self {
        Self { bytes: AtomicU64::new(0), bytes_max: plan.transactions, tables: Arc::clone(tables) }
    }

    /// Bytes that all open transactions hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn take(&self, more: u64) -> Result<()> {
        let grown = |bytes: u64| bytes.checked_add(more).filter(|&sum| sum <= self.bytes_max);
        match self.bytes.fetch_update(AcqRel, Relaxed, grown) {
            Ok(_) => {
                self.tables.cache().lend(more);
                Ok(())
            }
            Err(bytes) => {
                Err(Error::TransactionTooLarge { bytes: bytes.saturating_add(more), bytes_max: self.bytes_max })
            }
        }
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, AcqRel);
        self.tables.cache().take_back(bytes);
    }
}

impl fmt::Debug for TransactionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionMemory").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// What one transaction holds. Its drop gives that back.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<TransactionMemory>,
    bytes: AtomicU64,
}

impl Charge {
    /// Nothing yet.
    pub fn on(memory: &Arc<TransactionMemory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: AtomicU64::new(0) }
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`]; nothing is taken then.
    pub fn take(&self, bytes: u64) -> Result<()> {
        self.memory.take(bytes)?;
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Gives back some of what was taken.
    pub fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.memory.give_back(bytes);
    }

    /// What it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::options::Options;

    #[test]
    fn the_bound_holds_for_all_together_and_the_cache_gives_up_as_much() {
        let options = Options { memory_limit: 64 << 20, ..Options::default() };
        let plan = MemoryPlan::of(&options);
        let tables = Arc::new(TableContext::new(plan.cache, 0));
        let memory = Arc::new(TransactionMemory::of(&plan, &tables));
        let fill = || (0..200_000).for_each(|n| tables.cache().insert(1, n, vec![0; 1000].into()));
        let (first, second) = (Charge::on(&memory), Charge::on(&memory));
        first.take(3 << 20).unwrap();
        let refused = second.take((1 << 20) + 1).unwrap_err();
        assert!(matches!(refused, Error::TransactionTooLarge { bytes_max, .. } if bytes_max == 4 << 20), "{refused}");
        second.take(1 << 20).unwrap();
        fill();
        assert!(tables.cache().bytes() + memory.bytes() <= plan.rest, "{}", tables.cache().bytes());
        second.give_back(1 << 19);
        drop((first, second));
        assert_eq!(memory.bytes(), 0);
        fill();
        assert!(tables.cache().bytes() > plan.cache - (4 << 20), "all of its share again: {}", tables.cache().bytes());
    }
}
