//! What a rewrite does with operands.
//!
//! ```text
//! stripe 2   operand 9 │ operand 8           one operand 9: the snapshot below sees neither
//! stripe 1   operand 5 │ operand 4 │ value 3  one value 5
//! ```
//!
//! An operand overwrites nothing. Those of one stripe become one operand with the number of the newest, as a newer
//! version stands for the older ones of its stripe. It becomes a value when its base is inline or a tombstone and in
//! the same stripe, or when nothing older exists. Over a separated value it stays an operand: both are in the output.
//! If they cannot be combined, they stay as they are.
//!
//! Equally many are combined with each other, as far as that goes: n operands that are appended are copied log n times,
//! not n times.

use bifold_contract::{Entry, Kind, Result, SeqNo, planted};

use super::{Newest, RewriteState, Tables};

/// Operands of one stripe, as far as they were combined.
pub(super) struct Pending {
    stripe: usize,
    /// The newest first. Each stands for more than the next.
    parts: Vec<Combined>,
}

/// Operands that were combined.
struct Combined {
    /// The number of the newest.
    seqno: SeqNo,
    operand: Vec<u8>,
    /// How many they are.
    count: u64,
}

impl RewriteState<'_> {
    /// Takes an operand that nothing overwrites.
    pub(super) fn take_operand(&mut self, entry: &Entry<'_>, stripe: usize, tables: &mut Tables<'_>) -> Result<()> {
        if planted!("operands_overwrite") {
            self.newest = Some(Newest { stripe, seqno: entry.seqno });
        }
        let mut pending = self.operands.take().unwrap_or(Pending { stripe, parts: Vec::new() });
        pending.parts.push(Combined { seqno: entry.seqno, operand: entry.payload.to_vec(), count: 1 });
        while let [.., newer, older] = &pending.parts[..]
            && newer.count == older.count
            && self.combine_last(&mut pending, tables)?
        {}
        self.operands = Some(pending);
        Ok(())
    }

    /// Combines the last two parts. If that cannot be, what is newer than the last one is written. Returns whether
    /// there may be more to combine.
    fn combine_last(&mut self, pending: &mut Pending, tables: &mut Tables<'_>) -> Result<bool> {
        let [.., newer, older] = &pending.parts[..] else { return Ok(false) };
        let Some(operand) = (self.plan.combine)(&self.key, Some(&older.operand), &newer.operand) else {
            let last = pending.parts.len() - 1;
            for newer in pending.parts.drain(..last).skip(usize::from(planted!("merge_drops_what_fails"))) {
                self.keep_operand(&newer, tables)?;
            }
            return Ok(false);
        };
        self.output.entries_discarded += 1;
        let both = Combined { seqno: newer.seqno, operand, count: newer.count + older.count };
        pending.parts.truncate(pending.parts.len() - 2);
        pending.parts.push(both);
        Ok(true)
    }

    /// One operand that stands for all that are pending, or for the oldest if others were written.
    fn combine_pending(&mut self, mut pending: Pending, tables: &mut Tables<'_>) -> Result<Option<Combined>> {
        while self.combine_last(&mut pending, tables)? {}
        Ok(pending.parts.pop())
    }

    /// Writes what is left of a newer stripe. The next entry is of this stripe and kind.
    pub(super) fn leave_stripe(&mut self, (stripe, kind): (usize, Kind), tables: &mut Tables<'_>) -> Result<()> {
        let newer = self.operands.take_if(|newer| newer.stripe != stripe && !planted!("operands_cross_snapshots"));
        let Some(newer) = newer else { return Ok(()) };
        // Without the snapshot in between, both would be one entry.
        if let Some(&snapshot) = self.plan.snapshots.get(stripe)
            && matches!(kind, Kind::Operand | Kind::Inline | Kind::Delete)
        {
            tables.hold(snapshot, 1);
        }
        match self.combine_pending(newer, tables)? {
            Some(newer) => self.keep_operand(&newer, tables),
            None => Ok(()),
        }
    }

    /// Combines the operands with `entry`, their base. Returns whether a value has taken the place of both. The
    /// operands are written in any case.
    pub(super) fn combine_with_base(
        &mut self,
        entry: &Entry<'_>,
        stripe: usize,
        tables: &mut Tables<'_>,
    ) -> Result<bool> {
        let Some(pending) = self.operands.take() else { return Ok(false) };
        let Some(above) = self.combine_pending(pending, tables)? else { return Ok(false) };
        let value = match entry.kind {
            Kind::Inline => (self.plan.combine)(entry.key, Some(entry.payload), &above.operand),
            Kind::Delete => (self.plan.combine)(entry.key, None, &above.operand),
            _ => None,
        };
        let Some(value) = value else { return self.keep_operand(&above, tables).map(|()| false) };
        self.keep_value(&above, &value, tables)?;
        self.newest = Some(Newest { stripe, seqno: above.seqno });
        self.output.entries_discarded += 1;
        self.rewriter.discard(entry, above.seqno)?;
        Ok(true)
    }

    /// The versions of the key have ended.
    pub(super) fn end_operands(&mut self, tables: &mut Tables<'_>) -> Result<()> {
        let Some(pending) = self.operands.take() else { return Ok(()) };
        let stripe = pending.stripe;
        let Some(above) = self.combine_pending(pending, tables)? else { return Ok(()) };
        let is_all = stripe == 0 && (self.plan.bottom)(&self.key, Some(&self.key));
        let value = if is_all || planted!("operands_without_base") {
            (self.plan.combine)(&self.key, None, &above.operand)
        } else {
            None
        };
        match value {
            Some(value) => self.keep_value(&above, &value, tables),
            None => self.keep_operand(&above, tables),
        }
    }

    fn keep_operand(&mut self, above: &Combined, tables: &mut Tables<'_>) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        let kept = self.keep(&Entry::operand(&key, above.seqno, &above.operand), tables);
        self.key = key;
        kept
    }

    fn keep_value(&mut self, above: &Combined, value: &[u8], tables: &mut Tables<'_>) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        let kept = self.keep(&Entry::inline(&key, above.seqno, value), tables);
        self.key = key;
        kept
    }
}
