//! Ingests: sorted entries become tables and value files without the log, and visible as one commit. Page:
//! `docs/ingest.md`.
//!
//! ```text
//! put ─▶ entries in memory ─▶ full: values ─▶ value files ─┐
//!                                   keys   ─▶ tables ──────┴─▶ finish: one edit ([`finish`])
//! ```
//!
//! **Numbers.** The entries get consecutive sequence numbers, which are in tables and value files before they are
//! anybody's: they are taken far ahead of the commits. At the end the log skips over them, so that all earlier commits
//! have smaller numbers, and all later ones larger ones. So nothing that reads files has to know of ingests.
//!
//! **Invariants.** Until its edit is durable nobody finds anything of an ingest. What it has written is deleted when it
//! is abandoned, or by the next opening. Only one ingest is open in a database: of two numbers ahead, the larger
//! might be reached first.

mod finish;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold_contract::{
    Entry, Error, FileId, IoSource, Kind, Result, Rewriter, SeqNo, ValueEdit, expiry, key::MAX_SEQNO, planted,
};
use bifold_format::names;
use bifold_index::{
    compaction::{
        parts,
        run::{self, Output, RewritePlan, Times},
    },
    entries::SortedEntries,
    range_tombstones::RangeTombstones,
    table::Table,
};
use bifold_io::Dir;
use bifold_values::placement::{Kept, RewriteJob};

use crate::{
    api::{options::Compaction, stats::counters::Counters},
    background::{compact::count_of_parts, flush::Flusher, outcome::Outcomes, waits::Waits, work::Work},
    commit::{
        op::{Act, Op},
        room::{Means, Room},
        syncs::Syncs,
        wal::Wal,
        write::Committer,
    },
    state::{
        health::Health,
        install::State,
        numbers::Numbers,
        tree::{Tree, Values, View},
    },
    waiting::sync::{FairLock, LockExt},
};

/// So many operations may be committed while an ingest is open.
const AHEAD: SeqNo = 1 << 32;

/// And so many while one is finished that has written nothing yet.
const SHORTLY_AHEAD: SeqNo = 1 << 24;

/// Entries are written when they take so many bytes of memory, or as many as a memtable.
pub(crate) const GATHERED_BYTES: u64 = 32 << 20;

/// Writes ingests.
pub(crate) struct Ingests {
    pub dir: Dir,
    pub numbers: Numbers,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub room: Arc<Room>,
    pub wal: Arc<FairLock<Wal>>,
    pub work: Arc<Work>,
    pub waits: Arc<Waits>,
    pub state: Arc<State>,
    pub syncs: Arc<Syncs>,
    pub flusher: Arc<Flusher>,
    pub outcomes: Arc<Outcomes>,
    pub committer: Arc<Committer>,
    /// Entries are written when they take so many bytes.
    pub gathered_bytes: u64,
    /// A memtable is full with so many bytes.
    pub memtable_bytes: u64,
    /// The keyspace of the open ingest.
    pub open: Mutex<Option<String>>,
}

/// One ingest.
pub(crate) struct IngestRun {
    tree: Arc<Tree>,
    /// Where its values go. The keyspace may be dropped meanwhile.
    values: Arc<Values>,
    /// The placement's hooks, once something is written.
    rewriter: Option<Arc<Mutex<Box<dyn Rewriter>>>>,
    /// The number of its first entry, once something is written.
    first_seqno: Option<SeqNo>,
    entries: SortedEntries,
    first: Vec<u8>,
    last: Vec<u8>,
    /// Its tables, in key order.
    tables: BTreeMap<FileId, Arc<Table>>,
    /// Its value files, once all are written.
    value_edit: Option<ValueEdit>,
    count: u64,
    bytes: u64,
    /// A call has failed, so that some entries may be missing.
    has_failed: bool,
    /// The manifest may name its files.
    is_recorded: bool,
}

impl Ingests {
    /// Begins an ingest.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while another one is open, and every reason to refuse writes.
    pub fn begin(&self, tree: &Arc<Tree>) -> Result<IngestRun> {
        self.health.takes_writes()?;
        tree.readable(&self.health)?;
        if self.wal.hold().keeps_changes() {
            let reason =
                "the change feed would not have it: use puts, or open the database with `retain_changes` of 0 bytes";
            return Err(Error::invalid("ingest", reason));
        }
        let mut open = self.open.hold();
        if let Some(keyspace) = &*open {
            let reason = format!("one into keyspace `{keyspace}` is open: finish it or drop it first");
            return Err(Error::invalid("ingest", reason));
        }
        *open = Some(tree.name.clone());
        Ok(IngestRun {
            tree: Arc::clone(tree),
            values: tree.placement(),
            rewriter: None,
            first_seqno: None,
            entries: SortedEntries::default(),
            first: Vec::new(),
            last: Vec::new(),
            tables: BTreeMap::new(),
            value_edit: None,
            count: 0,
            bytes: 0,
            has_failed: false,
            is_recorded: false,
        })
    }

    /// Adds an entry, which is a put.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for keys that do not ascend and for what may not be put; nothing is changed then.
    /// After any other error the ingest can only be abandoned.
    pub fn put(&self, run: &mut IngestRun, key: &[u8], act: Act<'_>) -> Result<()> {
        run.is_whole()?;
        Op { tree: &run.tree, key, act }.check()?;
        if run.count > 0 && *key <= *run.last && !planted!("ingest_takes_any_order") {
            let (key, last) = (key.escape_ascii(), run.last.escape_ascii());
            return Err(Error::invalid("key", format!("`{key}` comes after `{last}`: keys of an ingest must ascend")));
        }
        self.committer.prepare_expiring(&[Op { tree: &run.tree, key, act }])?;
        let value_bytes = match act {
            Act::PutUntil(value, instant) => {
                run.entries.push(key, Kind::InlineUntil, &[&expiry::encode(instant), value]);
                value.len()
            }
            Act::Put(value) => {
                run.entries.push(key, Kind::Inline, &[value]);
                value.len()
            }
            _ => unreachable!("only puts are ingested"),
        };
        if run.count == 0 {
            run.first = key.to_vec();
        }
        run.last.clear();
        run.last.extend_from_slice(key);
        run.count += 1;
        run.bytes += (key.len() + value_bytes) as u64;
        if run.entries.bytes() as u64 >= self.gathered_bytes { self.write_gathered(run, AHEAD) } else { Ok(()) }
    }

    /// Writes what is gathered. If it is the first, its numbers are `ahead` of the next commit.
    fn write_gathered(&self, run: &mut IngestRun, ahead: SeqNo) -> Result<()> {
        let written = self.write_tables(run, ahead);
        run.has_failed |= written.is_err();
        written
    }

    fn write_tables(&self, run: &mut IngestRun, ahead: SeqNo) -> Result<()> {
        self.health.takes_writes()?;
        run.tree.readable(&self.health)?;
        let bytes = run.entries.bytes() as u64;
        let paced = Op { tree: &run.tree, key: &run.first, act: Act::Put(&[]) };
        let _has_waited = self.committer.throttle.pace(&[paced], bytes, 0)?;
        self.room.ensure_to_flush(bytes, Means::Free)?;
        let first_seqno = match run.first_seqno {
            Some(first) => first,
            None => *run.first_seqno.insert(self.number(ahead)?),
        };
        check_number(first_seqno.saturating_add(run.count))?;
        let seqno = first_seqno + run.count - run.entries.len() as u64;
        let again = RefCell::new(&mut *run);
        let write = || self.room.with_room(Means::Free, || self.rewrite(&mut again.borrow_mut(), seqno));
        let output = self.health.watch(self.health.guard("an ingest", write))?;
        for table in output.tables {
            let id = table.id;
            let opened = self.state.open_table(&Arc::new(table));
            run.tables.insert(id, self.health.watch(opened)?);
        }
        run.entries.clear(self.gathered_bytes as usize * 2);
        Ok(())
    }

    /// A number that no commit has for a while.
    fn number(&self, ahead: SeqNo) -> Result<SeqNo> {
        let number = self.wal.hold().next_seqno().saturating_add(ahead);
        check_number(number).map(|()| number)
    }

    /// Writes the gathered entries as tables, and their values as the placement has it. The first has this number.
    fn rewrite(&self, run: &mut IngestRun, seqno: SeqNo) -> Result<Output> {
        let view = run.tree.view_to_hold();
        let levels = &run.tree.shape(&view).levels;
        let deepest = deepest(&view, levels.deepest());
        let rewriter = match &run.rewriter {
            Some(rewriter) => rewriter,
            None => {
                let job = RewriteJob { from: None, to: deepest, deepest, moving: Vec::new() };
                run.rewriter.insert(Arc::new(Mutex::new(run.values.ingester(&job)?)))
            }
        };
        let cuts = parts::cuts_of_merges(levels, count_of_parts(&run.tree, self.memtable_bytes));
        run::rewrite(
            run.entries.cursor(seqno),
            RangeTombstones::default(),
            &RewritePlan {
                keys: (None, None),
                snapshots: &[],
                times: Times::default(),
                // No key comes twice.
                combine: &|_key, _older, _newer| None,
                bottom: &|_start, _end| false,
                table_bytes: view.settings.options.table_bytes,
                reach_bytes: u64::MAX,
                max_overlap_bytes: u64::MAX,
                grandparents: &[],
                cuts: &cuts,
                source: IoSource::Flush,
                table: run.tree.table_options(deepest),
                progress: &|_bytes| self.health.open(),
            },
            Box::new(Lent(Arc::clone(rewriter))),
            &mut || self.numbers.take(),
            &self.dir,
        )
    }

    /// Deletes what an ingest has written, unless the manifest names it, and lets another one begin.
    pub fn end(&self, run: &mut IngestRun) {
        // Before the values that it has written are given up.
        run.rewriter = None;
        if !run.is_recorded {
            for &id in run.tables.keys() {
                let _recovery_deletes_leftovers = self.dir.remove(&names::table(id));
            }
            if let Some(edit) = run.value_edit.take() {
                run.values.give_up(&edit);
            }
        }
        run.tables.clear();
        *self.open.hold() = None;
    }
}

impl IngestRun {
    /// # Errors
    /// [`Error::InvalidArgument`] after a call that has failed.
    fn is_whole(&self) -> Result<()> {
        match self.has_failed {
            true => Err(Error::invalid("ingest", "an earlier call has failed, and nothing was ingested: begin again")),
            false => Ok(()),
        }
    }
}

/// Commits must not run out of numbers.
fn check_number(number: SeqNo) -> Result<()> {
    match number < MAX_SEQNO / 2 {
        true => Ok(()),
        false => {
            let reason = "no sequence numbers are left for ingests: copy the database by export and import";
            Err(Error::invalid("ingest", reason))
        }
    }
}

/// The deepest level that a tree may have: by its options, or because it has tables there.
fn deepest(view: &View, filled: u8) -> u8 {
    let by_options = match &view.settings.options.compaction {
        Compaction::Leveled(options) => options.levels - 1,
        Compaction::Tiered(options) => options.levels - 1,
        Compaction::TwoLayer(_) => 1,
    };
    filled.max(by_options).max(1)
}

/// The rewriter of an ingest, for one rewrite of many.
struct Lent(Arc<Mutex<Box<dyn Rewriter>>>);

impl Rewriter for Lent {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        self.0.hold().keep(entry)
    }

    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()> {
        self.0.hold().discard(entry, newer)
    }

    fn end_table(&mut self) -> Result<()> {
        self.0.hold().end_table()
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        Ok(ValueEdit::default())
    }
}
