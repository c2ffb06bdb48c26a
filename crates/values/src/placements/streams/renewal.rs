//! Addresses of values that GC has moved are written anew: by each rewrite those that it meets, and all at once when
//! forwarding tables have grown, or readers have followed many of their rows.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bifold_contract::{Entry, FileId, Kind, Pointer, PointerChanges, Result, Rewriter, SeqNo, ValueEdit};
use bifold_format::pointer;

use super::Shared;
use crate::placement::{GcClaim, GcContext, GcJob, GcOutcome, Kept, RewrittenTables};

/// A rewrite that writes the addresses of moved values anew and notes what it drops.
///
/// The rows that lead to a newer address are counted as they are met: rows never change, and none goes before what it
/// leads on. Where a dropped version stands is known only when the edit is recorded: GC may move it until then.
pub struct Renew {
    shared: Arc<Shared>,
    dropped: Vec<Pointer>,
    /// Rows met, by forwarding file.
    led_by: BTreeMap<FileId, u64>,
}

impl Renew {
    /// It has met nothing yet.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), dropped: Vec::new(), led_by: BTreeMap::new() }
    }
}

impl Rewriter for Renew {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        if entry.kind == Kind::Pointer
            && let Ok(old) = pointer::decode(entry.payload)
        {
            let led_by = &mut self.led_by;
            let new = self.shared.forwarding.follow(old, |unit| *led_by.entry(unit).or_default() += 1);
            if new != old {
                return Ok(Kept::Pointer(new));
            }
        }
        Ok(Kept::Unchanged)
    }

    fn discard(&mut self, entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        if entry.kind == Kind::Pointer
            && let Ok(old) = pointer::decode(entry.payload)
        {
            self.dropped.push(old);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        let Self { mut dropped, led_by, .. } = *self;
        // They come by key. In the order of their rows most of these are found in the processor's caches.
        dropped.sort_unstable_by_key(|at| (at.file, at.offset));
        let led_by = led_by.into_iter().collect();
        let pointers = PointerChanges { dropped, led_by, ..PointerChanges::default() };
        Ok(ValueEdit { pointers, ..ValueEdit::default() })
    }
}

/// Writes memtables to tables and rewrites all of them, so that no address needs forwarding.
pub struct RenewAll {
    claim: GcClaim,
    shared: Arc<Shared>,
}

impl RenewAll {
    /// Of these values.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        // Merges and GC of files may run at the same time, and so may this.
        let claim = GcClaim { rewrites: true, ..GcClaim::of(Vec::new()) };
        Self { claim, shared: Arc::clone(shared) }
    }
}

impl GcJob for RenewAll {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        // Memtables may lead to values that have moved, too: their rows would be followed forever.
        let renewed = gc.rewrite(RewrittenTables::Everything);
        // What readers followed meanwhile asks for no second one. What fails is not due again at once.
        self.shared.followed.renewed();
        renewed?;
        self.shared.renewed_bytes.store(self.shared.forwarding.own_memory_bytes(), Relaxed);
        // Nothing came free, so its time says nothing about how fast GC frees space.
        Ok(GcOutcome::Looked)
    }
}
