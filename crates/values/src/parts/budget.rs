//! Memory with a cap, shared by several keyspaces.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// What all keyspaces of a database share.
#[derive(Clone, Debug)]
pub struct Memory {
    /// For filters, handles and indexes of value files.
    pub filters: Arc<Budget>,
    /// For what rewrites and GC of values hold while they run.
    pub buffers: Arc<Budget>,
}

impl Memory {
    /// A memory with so many bytes for each use.
    #[must_use]
    pub fn new(filters: u64, buffers: u64) -> Self {
        Self { filters: Budget::new(filters), buffers: Budget::new(buffers) }
    }

    /// The same; filters, handles and indexes may borrow more.
    #[must_use]
    pub fn with_lender(filters: u64, buffers: u64, lender: Arc<dyn Lender>) -> Self {
        let filters = Budget { lender: Some(lender), ..Budget::with_cap(filters) };
        Self { filters: Arc::new(filters), buffers: Budget::new(buffers) }
    }
}

/// Somebody with memory that others may have while they need it more: the block cache.
pub trait Lender: Send + Sync + fmt::Debug {
    /// Lends so many bytes; `false` if those are too many, and nothing is lent.
    fn lend(&self, bytes: u64) -> bool;

    /// Has so many bytes back.
    fn take_back(&self, bytes: u64);
}

/// A cap, and how much of it is taken.
#[derive(Debug)]
pub struct Budget {
    bytes_max: u64,
    used_bytes: AtomicU64,
    lender: Option<Arc<dyn Lender>>,
}

/// Some bytes of a budget, until it is dropped.
#[derive(Debug)]
pub struct Taken {
    from: Arc<Budget>,
    bytes: u64,
}

/// Some bytes that a budget has borrowed, until it is dropped.
#[derive(Debug)]
pub struct Borrowed {
    from: Arc<dyn Lender>,
    bytes: u64,
}

/// Bytes that somebody has, until it is dropped.
#[derive(Debug)]
pub enum Granted {
    /// Of a budget.
    Own(Taken),
    /// Lent to it.
    Lent(Borrowed),
}

impl Granted {
    /// How many of them are the budget's own.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        match self {
            Self::Own(taken) => taken.bytes(),
            Self::Lent(_) => 0,
        }
    }
}

impl Budget {
    /// A budget of which nothing is taken.
    #[must_use]
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self::with_cap(bytes_max))
    }

    fn with_cap(bytes_max: u64) -> Self {
        Self { bytes_max, used_bytes: AtomicU64::new(0), lender: None }
    }

    /// Borrows so many bytes beyond the cap, if somebody lends them.
    #[must_use]
    pub fn borrow(&self, bytes: u64) -> Option<Borrowed> {
        let from = self.lender.as_ref().filter(|lender| lender.lend(bytes))?;
        Some(Borrowed { from: Arc::clone(from), bytes })
    }

    /// The cap.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// How much is taken.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// How much is left.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used_bytes())
    }

    /// Takes so many bytes, if they are left.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Taken> {
        let grown = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.bytes_max);
        self.used_bytes.fetch_update(Relaxed, Relaxed, grown).ok()?;
        Some(Taken { from: Arc::clone(self), bytes })
    }

    /// Takes so many bytes whether or not they are left: they are in use already.
    #[must_use]
    pub fn take_anyway(self: &Arc<Self>, bytes: u64) -> Taken {
        self.used_bytes.fetch_add(bytes, Relaxed);
        Taken { from: Arc::clone(self), bytes }
    }
}

impl Taken {
    /// How many.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the amount to so many in all, whether or not they are left.
    pub fn change_anyway(&mut self, bytes: u64) {
        self.from.used_bytes.fetch_add(bytes, Relaxed);
        self.from.used_bytes.fetch_sub(self.bytes, Relaxed);
        self.bytes = bytes;
    }

    /// Joins other bytes of the same budget to these.
    pub fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.from, &other.from), "bytes of another budget");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes so many more whether or not they are left.
    pub fn grow_anyway(&mut self, bytes: u64) {
        self.from.used_bytes.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.from.take_back(self.bytes);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.from.used_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_comes_back() {
        let budget = Budget::new(100);
        let taken = budget.take(60).unwrap();
        assert!(budget.take(41).is_none() && budget.take(u64::MAX).is_none());
        let rest = budget.take(40).unwrap();
        assert_eq!((budget.used_bytes(), budget.free_bytes(), rest.bytes()), (100, 0, 40));
        drop(taken);
        assert_eq!(budget.free_bytes(), 60);
        let mut joined = budget.take(10).unwrap();
        joined.join(rest);
        assert_eq!((joined.bytes(), budget.used_bytes()), (50, 50));
        drop(joined);
        assert_eq!(budget.used_bytes(), 0);
    }
}
