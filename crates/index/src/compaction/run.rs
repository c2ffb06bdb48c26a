//! The merge loop: flush, compaction and the rewrite of a key range all write a sorted stream as tables.
//!
//! Steps for every entry of the stream: start a new key, and a new table if the last one is full → find what
//! overwrites the entry → pass it to the rewriter as kept or discarded → write it if kept.
//!
//! Snapshots cut the sequence numbers into **stripes**: with snapshots 10 and 20, the stripes are 1–10, 11–20 and
//! from 21 on. Of all versions of a key in one stripe only the newest can be seen by anyone, so
//!
//! * a version is dropped if a newer one, or a newer range tombstone that spans its key, is in the same stripe;
//! * a tombstone of the lowest stripe is dropped if no older data of its range exists below the output: everything it
//!   deletes is in the stream and was dropped;
//! * range tombstones go into every output table, clipped to the keys between the neighbouring tables.
//!
//! An entry that has expired, and that no snapshot sees alive, becomes a tombstone: what it overwrites stays hidden
//! (`expired.rs`).
//!
//! Invariants: output tables do not overlap, and all versions of a key are in one of them. After an error no output
//! is left and nothing else has changed.

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{
    Entry, FileId, IoSource, Kept, Kind, RangeTombstone, Result, Rewriter, SeqNo, TableMeta, ValueEdit, expiry,
    key::MAX_SEQNO, planted,
};
use bifold_format::{names, pointer};
use bifold_io::{Dir, Together, Writer};

use self::held::weight_of;
pub use self::{expired::Times, held::Held};
use super::cut::{Cut, Limits, Open};
use crate::{
    cursor::Cursor,
    range_tombstones::{Hint, RangeTombstones},
    table::{TableOptions, TableWriter},
};

/// [`RewritePlan::progress`] is called about once for so many bytes: often enough to spread writes evenly and to stop
/// at once, seldom enough to cost nothing.
const PROGRESS_BYTES: u64 = 64 << 10;

/// Whether the output will be the oldest data of all keys in `start..=end` (`None`: no upper bound). The rewritten
/// stream itself does not count.
pub type IsBottom<'a> = dyn Fn(&[u8], Option<&[u8]>) -> bool + 'a;

/// Combines an operand of a key with what is older: a value, another operand, or nothing. `None`: it cannot be.
pub type Combine<'a> = dyn Fn(&[u8], Option<&[u8]>, &[u8]) -> Option<Vec<u8>> + 'a;

/// How to rewrite a stream.
#[derive(Clone, Copy)]
pub struct RewritePlan<'a> {
    /// The keys to rewrite: from the first one, up to the second one, exclusive. `None`: no bound. Range tombstones are
    /// clipped to them, so rewrites of neighbouring ranges are together a rewrite of both.
    pub keys: (Option<&'a [u8]>, Option<&'a [u8]>),
    /// The sequence numbers of all open snapshots, ascending.
    pub snapshots: &'a [SeqNo],
    /// Decides which entries have expired.
    pub times: Times<'a>,
    /// Decides whether a tombstone can be dropped.
    pub bottom: &'a IsBottom<'a>,
    /// End an output table at about this size, in bytes.
    pub table_bytes: u64,
    /// End an output table when it points at this many bytes of values.
    pub reach_bytes: u64,
    /// End an output table before it overlaps more than this many bytes of `grandparents`.
    pub max_overlap_bytes: u64,
    /// The tables of the level below the output.
    pub grandparents: &'a [Arc<TableMeta>],
    /// Cut before each of these keys, which ascend.
    pub cuts: &'a [Box<[u8]>],
    /// On whose behalf the rewrite reads and writes.
    pub source: IoSource,
    /// How tables are written.
    pub table: TableOptions,
    /// Combines operands.
    pub combine: &'a Combine<'a>,
    /// Called now and then with the bytes written since the last call, to slow the rewrite down or to stop it by an
    /// error.
    pub progress: &'a dyn Fn(u64) -> Result<()>,
}

/// The result of a rewrite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The tables, in key order. Durable except for their names: the caller that installs them syncs the directory.
    pub tables: Vec<TableMeta>,
    /// The changes to value files, to be installed with the tables.
    pub values: ValueEdit,
    /// Entries read.
    pub entries_in: u64,
    /// Entries written.
    pub entries_out: u64,
    /// Entries dropped because something newer overwrites them.
    pub entries_discarded: u64,
    /// Entries that had expired.
    pub entries_expired: u64,
    /// Tombstones dropped because nothing is left for them to delete.
    pub tombstones_vanished: u64,
    /// Bytes of keys and payloads read.
    pub bytes_in: u64,
    /// Bytes of all tables written.
    pub bytes_out: u64,
    /// The entries that snapshots hold in these tables.
    pub held: Vec<Held>,
}

/// Rewrites the plan's keys of `input` as tables in `dir`.
///
/// `tombstones` are the range tombstones of the inputs. `rewriter` is called for every entry that is kept or
/// discarded, in stream order, but not for tombstones dropped because nothing is left to delete. It is finished when
/// the stream ends and dropped after an error.
///
/// # Errors
/// Those of the input, the rewriter, the output and `plan.progress`. Tables written so far are then removed.
pub fn rewrite(
    mut input: impl Cursor,
    tombstones: RangeTombstones,
    plan: &RewritePlan<'_>,
    rewriter: Box<dyn Rewriter>,
    new_id: &mut dyn FnMut() -> FileId,
    dir: &Dir,
) -> Result<Output> {
    let mut tables = Tables::new(plan, &tombstones, new_id, dir);
    let done = run(&mut input, &tombstones, plan, rewriter, &mut tables);
    if done.is_err() {
        tables.give_up();
    }
    done
}

fn run(
    input: &mut impl Cursor,
    tombstones: &RangeTombstones,
    plan: &RewritePlan<'_>,
    rewriter: Box<dyn Rewriter>,
    tables: &mut Tables<'_>,
) -> Result<Output> {
    let mut run = RewriteState::new(plan, tombstones, rewriter);
    let (start, end) = plan.keys;
    match start {
        Some(start) => input.seek(start, MAX_SEQNO)?,
        None => input.first()?,
    }
    while let Some(entry) = input.entry().filter(|entry| end.is_none_or(|end| entry.key < end)) {
        run.take(&entry, tables)?;
        input.next()?;
    }
    run.end_operands(tables)?;
    tables.finish_last()?;
    let mut output = run.output;
    output.values = run.rewriter.finish()?;
    output.tables = std::mem::take(&mut tables.done);
    output.held = std::mem::take(&mut tables.done_held);
    output.bytes_out = output.tables.iter().map(|table| table.bytes).sum();
    Ok(output)
}

/// The state of a rewrite.
struct RewriteState<'a> {
    plan: &'a RewritePlan<'a>,
    rewriter: Box<dyn Rewriter>,
    /// The range tombstones of the inputs.
    covering: RangeTombstones,
    hint: Hint,
    /// The current key, and the newest version or tombstone found in the stripe of its last entry.
    key: Vec<u8>,
    newest: Option<Newest>,
    /// Operands of the current key that have not been written.
    operands: Option<operands::Pending>,
    pointer: Vec<u8>,
    output: Output,
    unreported_bytes: u64,
    unreported_bytes_out: u64,
}

#[derive(Clone, Copy)]
struct Newest {
    stripe: usize,
    seqno: SeqNo,
}

impl<'a> RewriteState<'a> {
    fn new(plan: &'a RewritePlan<'a>, tombstones: &RangeTombstones, rewriter: Box<dyn Rewriter>) -> Self {
        Self {
            plan,
            rewriter,
            covering: tombstones.clone(),
            hint: Hint::default(),
            key: Vec::new(),
            newest: None,
            operands: None,
            pointer: Vec::new(),
            output: Output::default(),
            unreported_bytes: 0,
            unreported_bytes_out: 0,
        }
    }

    fn take(&mut self, entry: &Entry<'_>, tables: &mut Tables<'_>) -> Result<()> {
        self.count_in(entry)?;
        if self.key != entry.key {
            self.end_operands(tables)?;
            if tables.begin_key(entry.key)? {
                self.rewriter.end_table()?;
            }
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            self.newest = None;
        }
        let stripe = stripe_of(self.plan.snapshots, entry.seqno);
        self.leave_stripe((stripe, entry.kind), tables)?;
        if let Some(newer) = self.overwritten_by(entry, stripe) {
            self.newest = Some(Newest { stripe, seqno: newer });
            self.output.entries_discarded += 1;
            return self.rewriter.discard(&entry.plain(), newer);
        }
        if entry.kind == Kind::Operand {
            return self.take_operand(entry, stripe, tables);
        }
        if self.combine_with_base(entry, stripe, tables)? {
            return Ok(());
        }
        let tombstone = self.tombstone_of_expired(entry, stripe)?;
        if planted!("expired_lets_older_back") && tombstone.is_some() {
            return Ok(());
        }
        let entry = tombstone.as_ref().unwrap_or(entry);
        if let Some(snapshot) = self.held_by(entry, stripe) {
            tables.hold(snapshot, weight_of(entry));
        }
        self.newest = Some(Newest { stripe, seqno: entry.seqno });
        if entry.kind == Kind::Delete && stripe == 0 && (self.plan.bottom)(entry.key, Some(entry.key)) {
            self.output.tombstones_vanished += 1;
            return Ok(());
        }
        self.keep(entry, tables)
    }

    /// The sequence number of the version or tombstone that overwrites `entry` within its stripe.
    fn overwritten_by(&mut self, entry: &Entry<'_>, stripe: usize) -> Option<SeqNo> {
        match self.newest {
            Some(newest) if newest.stripe == stripe => Some(newest.seqno),
            _ => {
                let stripe_end = self.plan.snapshots.get(stripe).copied().unwrap_or(MAX_SEQNO);
                let tombstone = self.covering.covering_near(&mut self.hint, entry.key, stripe_end);
                (tombstone > entry.seqno).then_some(tombstone)
            }
        }
    }

    /// The snapshot without which `entry` would not be needed. It must not be overwritten within its stripe.
    fn held_by(&mut self, entry: &Entry<'_>, stripe: usize) -> Option<SeqNo> {
        let snapshots = self.plan.snapshots;
        if snapshots.is_empty() {
            return None;
        }
        let mut is_overwritten = || {
            self.newest.is_some()
                || self.has_expired(entry)
                || self.covering.covering_near(&mut self.hint, entry.key, MAX_SEQNO) > entry.seqno
        };
        match snapshots.get(stripe) {
            Some(&snapshot) if is_overwritten() => Some(snapshot),
            _ if entry.kind == Kind::Delete && (self.plan.bottom)(entry.key, Some(entry.key)) => {
                stripe.checked_sub(1).map(|older| snapshots[older])
            }
            _ => None,
        }
    }

    fn keep(&mut self, entry: &Entry<'_>, tables: &mut Tables<'_>) -> Result<()> {
        let kept =
            if entry.kind.expires() { self.rewriter.keep(&entry.plain())? } else { self.rewriter.keep(entry)? };
        assert!(entry.kind != Kind::Delete || kept == Kept::Unchanged, "a tombstone has no value to move");
        let entry = match kept {
            Kept::Unchanged => *entry,
            Kept::Pointer(to) | Kept::Moved(to) => {
                if matches!(kept, Kept::Moved(_)) {
                    self.unreported_bytes_out += u64::from(to.len);
                }
                self.pointer.clear();
                let instant = entry.expires_at().filter(|_| !planted!("merge_forgets_expiry"));
                self.pointer.extend(instant.map(expiry::encode).iter().flatten());
                pointer::encode(to, &mut self.pointer);
                let kind = if instant.is_some() { Kind::PointerUntil } else { Kind::Pointer };
                Entry { kind, payload: &self.pointer, ..*entry }
            }
        };
        self.output.entries_out += 1;
        self.unreported_bytes_out += bytes_of(&entry);
        tables.add(&entry)
    }

    /// Counts an entry of the input, and reports progress when it is time.
    fn count_in(&mut self, entry: &Entry<'_>) -> Result<()> {
        let bytes = bytes_of(entry);
        self.output.entries_in += 1;
        self.output.bytes_in += bytes;
        self.unreported_bytes += bytes + reach_of(self.plan, entry);
        // Input counts as well: it must be possible to stop a rewrite that drops everything.
        if self.unreported_bytes.max(self.unreported_bytes_out) < PROGRESS_BYTES {
            return Ok(());
        }
        self.unreported_bytes = 0;
        (self.plan.progress)(std::mem::take(&mut self.unreported_bytes_out))
    }
}

/// The output tables.
struct Tables<'a> {
    plan: &'a RewritePlan<'a>,
    new_id: &'a mut dyn FnMut() -> FileId,
    dir: &'a Dir,
    /// The range tombstones that are still needed.
    surviving: RangeTombstones,
    cut: Cut<'a>,
    open: Option<(FileId, TableWriter)>,
    /// Bytes of values that the open table points at, counted where the plan bounds them.
    reach: u64,
    /// Where the open table starts: the first key after the last finished one, or the first of the plan's keys.
    start: Option<Box<[u8]>>,
    done: Vec<TableMeta>,
    /// Finished tables that no sync has covered.
    unsynced: Together<Writer>,
    /// What snapshots hold in the open table, and in the finished ones.
    held: BTreeMap<SeqNo, u64>,
    done_held: Vec<Held>,
}

impl<'a> Tables<'a> {
    fn new(
        plan: &'a RewritePlan<'a>,
        tombstones: &RangeTombstones,
        new_id: &'a mut dyn FnMut() -> FileId,
        dir: &'a Dir,
    ) -> Self {
        let surviving = surviving(tombstones, plan);
        let limits = Limits { bytes: plan.table_bytes, reach: plan.reach_bytes, overlap: plan.max_overlap_bytes };
        let cut = Cut::new(plan.grandparents, plan.cuts, limits);
        Self {
            plan,
            new_id,
            dir,
            surviving,
            cut,
            open: None,
            reach: 0,
            start: plan.keys.0.map(Box::from),
            done: Vec::new(),
            unsynced: Together::default(),
            held: BTreeMap::new(),
            done_held: Vec::new(),
        }
    }

    /// Ends the open table if it is to end: between two keys, so that none has versions in two tables. Answers
    /// whether it has.
    fn begin_key(&mut self, key: &[u8]) -> Result<bool> {
        let open = self.open.as_ref().map(|(_, writer)| Open {
            bytes: writer.bytes(),
            reach: self.reach,
            metadata: writer.metadata_bytes(),
        });
        let is_due = self.cut.is_due(key, open);
        if is_due {
            self.finish_table(Some(key))?;
            self.start = Some(key.into());
        }
        Ok(is_due)
    }

    /// Records that only this snapshot needs the next entry, which counts as so many.
    fn hold(&mut self, snapshot: SeqNo, weight: u64) {
        *self.held.entry(snapshot).or_default() += weight;
    }

    fn add(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.reach += reach_of(self.plan, entry);
        self.writer()?.add(entry)
    }

    fn writer(&mut self) -> Result<&mut TableWriter> {
        if self.open.is_none() {
            let id = (self.new_id)();
            self.open = Some((id, TableWriter::create(self.dir, id, self.plan.source, &self.plan.table)?));
        }
        match &mut self.open {
            Some((_, writer)) => Ok(writer),
            None => unreachable!("opened above"),
        }
    }

    /// Completes the table of all keys before `end`, if it has any content.
    fn finish_table(&mut self, end: Option<&[u8]>) -> Result<()> {
        let tombstones: Vec<RangeTombstone> = self.surviving.clipped(self.start.as_deref(), end);
        for tombstone in &tombstones {
            let stripe = stripe_of(self.plan.snapshots, tombstone.seqno);
            if let Some(&snapshot) = stripe.checked_sub(1).and_then(|older| self.plan.snapshots.get(older)) {
                self.hold(snapshot, 1);
            }
            self.writer()?.add_range_tombstone(tombstone)?;
        }
        self.reach = 0;
        let held: Vec<(SeqNo, u64)> = std::mem::take(&mut self.held).into_iter().collect();
        let Some((id, writer)) = self.open.take() else { return Ok(()) };
        match writer.finish_unsynced() {
            Ok((table, writer)) => {
                if !held.is_empty() {
                    let entries = table.entries + table.range_tombstones;
                    self.done_held.push(Held { table: id, entries, by: held });
                }
                self.done.push(table);
                self.unsynced.push(writer);
                if self.unsynced.is_full() { self.sync() } else { Ok(()) }
            }
            Err(error) => {
                let _left_to_recovery = self.dir.remove(&names::table(id));
                Err(error)
            }
        }
    }

    fn finish_last(&mut self) -> Result<()> {
        self.finish_table(self.plan.keys.1)?;
        if planted!("leave_last_tables_unsynced") { Ok(()) } else { self.sync() }
    }

    /// Makes the finished tables durable, without their names.
    fn sync(&mut self) -> Result<()> {
        let unsynced = self.unsynced.take();
        if planted!("skip_table_sync") { Ok(()) } else { self.dir.sync_files(&unsynced) }
    }

    /// Removes all outputs. Recovery removes those that cannot be removed now, because the manifest does not name
    /// them.
    fn give_up(self) {
        if let Some((_, writer)) = self.open {
            writer.abandon();
        }
        for table in self.done {
            let _left_to_recovery = self.dir.remove(&names::table(table.id));
        }
    }
}

/// The range tombstones that someone may still need: of each stripe the newest, and of the lowest stripe only those
/// that have older data beneath the output.
fn surviving(tombstones: &RangeTombstones, plan: &RewritePlan<'_>) -> RangeTombstones {
    if tombstones.is_empty() {
        return RangeTombstones::default();
    }
    let needed = RangeTombstones::for_rewrite(&tombstones.clipped(None, None), plan.snapshots);
    needed.filtered(|start, end, seqno| stripe_of(plan.snapshots, seqno) > 0 || !(plan.bottom)(start, end))
}

/// The stripe of a sequence number: how many snapshots are too old to see it.
fn stripe_of(snapshots: &[SeqNo], seqno: SeqNo) -> usize {
    snapshots.partition_point(|&snapshot| snapshot < seqno)
}

/// Bytes of the value that an entry points at, if the plan limits them: then the value may be moved.
fn reach_of(plan: &RewritePlan<'_>, entry: &Entry<'_>) -> u64 {
    match entry.kind.plain() {
        Kind::Pointer if plan.reach_bytes < u64::MAX => {
            pointer::decode(entry.plain().payload).map_or(0, |at| u64::from(at.len))
        }
        _ => 0,
    }
}

fn bytes_of(entry: &Entry<'_>) -> u64 {
    (entry.key.len() + entry.payload.len()) as u64
}

mod expired;
mod held;
mod operands;

#[cfg(test)]
mod tests;
