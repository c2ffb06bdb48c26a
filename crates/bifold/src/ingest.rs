//! Ingests: sorted entries become tables and value files without the log, and visible as one commit. Page:
//! `docs/ingest.md`.
//!
//! ```text
//! put ─▶ a piece in memory ─▶ full ┬─▶ values ─▶ value files ─┐
//!                                  ├─▶ keys   ─▶ tables ──────┼─▶ finish: one edit ([`finish`])
//!                                  └─▶ both for the feed ([`for_feed`]) if changes are kept
//! ```
//!
//! **Threads.** Full pieces are written by idle workers ([`pieces`](crate::state::pieces)) while the next one gathers,
//! and by the caller when no memory is left for that. Where callers do all work, there is one piece.
//!
//! **Numbers.** The entries get consecutive sequence numbers, which are in tables and value files before they are
//! anybody's: they are taken far ahead of the commits. At the end the log skips over them, so that all earlier commits
//! have smaller numbers, and all later ones larger ones. So nothing that reads files has to know of ingests.
//!
//! **Invariants.** Until its edit is durable nobody finds anything of an ingest. What it has written is deleted when it
//! is abandoned, or by the next opening. Only one ingest is open in a database: of two numbers ahead, the larger
//! might be reached first.

mod finish;
mod for_feed;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold_contract::{Error, FileId, Kind, Result, SeqNo, ValueEdit, expiry, key::MAX_SEQNO, planted};
use bifold_format::names;
use bifold_index::{entries::SortedEntries, table::Table};
use bifold_io::{Clock, Dir};

use self::for_feed::FeedFile;
use crate::{
    background::{flush::Flusher, outcome::Outcomes},
    commit::{syncs::Syncs, write::Committer},
    counts::counters::Counters,
    install::State,
    limits::{
        room::{Means, Room},
        waits::Waits,
    },
    log::wal::Wal,
    settings::options::Workers,
    state::{
        health::Health,
        numbers::Numbers,
        op::{Act, Op},
        pieces::{IngestPiece, Pieces},
        tree::Tree,
        work::Work,
    },
    waiting::{
        signal::Signal,
        sync::{FairLock, LockExt},
    },
};

/// So many operations may be committed while an ingest is open.
const AHEAD: SeqNo = 1 << 32;

/// And so many while one is finished that has written nothing yet.
const SHORTLY_AHEAD: SeqNo = 1 << 24;

/// All pieces together take so many bytes of memory, or as many as a memtable.
pub(crate) const GATHERED_BYTES: u64 = 32 << 20;

/// Pieces that are in memory where workers write some of them: one gathers meanwhile.
const PIECES: usize = 4;

/// What an ingest has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestReport {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Tables with their keys.
    pub tables: u64,
    /// The level that these tables went to: the deepest if the keyspace had nothing between the first key and the
    /// last one, else 0.
    pub level: u8,
}

/// Writes ingests.
pub(crate) struct Ingests {
    pub clock: Arc<dyn Clock>,
    pub signal: Arc<Signal>,
    pub workers: Workers,
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
    /// All pieces together take so many bytes of memory.
    pub gathered_bytes: u64,
    /// A memtable is full with so many bytes.
    pub memtable_bytes: u64,
    /// The keyspace of the open ingest.
    pub open: Mutex<Option<String>>,
}

/// One ingest.
pub(crate) struct IngestRun {
    tree: Arc<Tree>,
    /// What was gathered before, and what has become of it.
    pieces: Arc<Pieces>,
    /// The number of its first entry, once a piece is full.
    first_seqno: Option<SeqNo>,
    /// What gathers now.
    entries: SortedEntries,
    first: Vec<u8>,
    last: Vec<u8>,
    /// Its tables, once all are written.
    tables: BTreeMap<FileId, Arc<Table>>,
    /// Its value files, once all are written.
    value_edit: Option<ValueEdit>,
    /// Its entries for the change feed, if changes are kept and a piece is full.
    for_feed: Option<FeedFile>,
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
        let mut open = self.open.hold();
        if let Some(keyspace) = &*open {
            let reason = format!("one into keyspace `{keyspace}` is open: finish it or drop it first");
            return Err(Error::invalid("ingest", reason));
        }
        *open = Some(tree.name.clone());
        Ok(IngestRun {
            tree: Arc::clone(tree),
            pieces: Arc::new(Pieces::of(tree, self.piece_bytes())),
            first_seqno: None,
            entries: SortedEntries::default(),
            first: Vec::new(),
            last: Vec::new(),
            tables: BTreeMap::new(),
            value_edit: None,
            for_feed: None,
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
        if run.pieces.have_failed() {
            run.has_failed = true;
            return run.pieces.outcome();
        }
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
        if run.entries.bytes() as u64 >= self.piece_bytes() { self.pass_on(run, AHEAD) } else { Ok(()) }
    }

    /// How many pieces are in memory.
    fn pieces_max(&self) -> usize {
        if self.workers == Workers::Caller { 1 } else { PIECES }
    }

    /// A piece is full with so many bytes.
    fn piece_bytes(&self) -> u64 {
        self.gathered_bytes / self.pieces_max() as u64
    }

    /// Lets what is gathered be written, and waits until there is memory for more. If it is the first, its numbers are
    /// `ahead` of the next commit.
    fn pass_on(&self, run: &mut IngestRun, ahead: SeqNo) -> Result<()> {
        let passed = self.add_piece(run, ahead).and_then(|()| {
            if self.pieces_max() > 1 {
                self.show(&run.pieces);
            }
            self.write_until(run, self.pieces_max() - 1)
        });
        run.has_failed |= passed.is_err();
        passed
    }

    fn add_piece(&self, run: &mut IngestRun, ahead: SeqNo) -> Result<()> {
        self.health.takes_writes()?;
        run.tree.readable(&self.health)?;
        let bytes = run.entries.bytes() as u64;
        let paced = Op { tree: &run.tree, key: &run.first, act: Act::Put(&[]) };
        let _has_waited = self.committer.throttle.pace(&[paced], bytes, 0)?;
        let keeps_changes = self.wal.hold().keeps_changes();
        let bytes_for_feed = if keeps_changes { bytes } else { 0 };
        self.room.ensure_to_flush(bytes + bytes_for_feed + run.pieces.unwritten_bytes(), Means::Free)?;
        let first_seqno = match run.first_seqno {
            Some(first) => first,
            None => *run.first_seqno.insert(self.number(ahead)?),
        };
        check_number(first_seqno.saturating_add(run.count))?;
        let seqno = first_seqno + run.count - run.entries.len() as u64;
        if keeps_changes {
            let file = match &mut run.for_feed {
                Some(file) => file,
                None => run.for_feed.insert(FeedFile::create(&self.dir, self.numbers.take(), run.tree.keyspace)?),
            };
            file.append(&run.entries, seqno)?;
        }
        let empty = run.pieces.spare();
        run.pieces.add(IngestPiece { entries: std::mem::replace(&mut run.entries, empty), seqno });
        Ok(())
    }

    /// Lets idle workers find pieces.
    fn show(&self, pieces: &Arc<Pieces>) {
        // Notifies.
        self.work.change(pieces.tree.keyspace, |state| state.ingest = Some(Arc::clone(pieces)));
    }

    /// Writes pieces that nobody else writes, until at most `most` are unwritten.
    ///
    /// # Errors
    /// That of any piece.
    fn write_until(&self, run: &IngestRun, most: usize) -> Result<()> {
        while run.pieces.are_more_than(most) {
            match run.pieces.take() {
                Some(piece) => self.write(&piece),
                None => run.pieces.wait_for_less(&self.signal, self.clock.now()),
            }
        }
        run.pieces.outcome()
    }

    /// A number that no commit has for a while.
    fn number(&self, ahead: SeqNo) -> Result<SeqNo> {
        let number = self.wal.hold().next_seqno().saturating_add(ahead);
        check_number(number).map(|()| number)
    }

    /// Deletes what an ingest has written, unless the manifest names it, and lets another one begin.
    pub fn end(&self, run: &mut IngestRun) {
        self.work.take(|state| state.ingest = None);
        // In a forked child nobody ends what a thread of the parent was writing.
        if !self.health.is_in_child() {
            run.pieces.give_up(&self.signal, self.clock.now());
        }
        // Before the values that it has written are given up.
        drop(run.pieces.take_rewriters());
        run.tables.append(&mut run.pieces.take_tables());
        if !run.is_recorded {
            for &id in run.tables.keys() {
                let _recovery_deletes_leftovers = self.dir.remove(&names::table(id));
            }
            if let Some(edit) = run.value_edit.take() {
                run.pieces.values.give_up(&edit);
            }
        }
        run.tables.clear();
        if let Some(mut file) = run.for_feed.take().filter(|_| run.is_recorded) {
            file.keep();
        }
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
