//! What an ingest has gathered, in pieces that several threads write.
//!
//! ```text
//! the caller     gather ─▶ piece ─▶ gather ─▶ piece ─▶ no memory left? write a piece, or wait ─▶ finish: wait for all
//! idle workers              └─▶ write ─┐       └─▶ write ─┐
//!                                      └─▶ tables ◀───────┘
//! ```
//!
//! **Invariants.** A piece has its keys and its numbers before anybody can take it, so it does not matter who writes it
//! and when. Pieces are taken in key order, and a rewriter is with one piece at a time: the keys that it sees ascend.
//! After an error in one piece no more are taken, and nothing of the others is used. The ingest does not end before
//! everybody who writes for it has.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold_contract::{Error, FileId, Result, Rewriter, SeqNo, planted};
use bifold_index::{entries::SortedEntries, table::Table};

use crate::{
    state::{
        overwrites::{IngestSamples, SampledEntry},
        tree::{Tree, Values},
    },
    waiting::{
        signal::{PATIENCE, Signal},
        sync::{LockExt, wait_for},
    },
};

/// Entries that are written together.
pub(crate) struct IngestPiece {
    pub entries: SortedEntries,
    /// The number of the first.
    pub seqno: SeqNo,
}

/// The pieces of one ingest.
pub(crate) struct Pieces {
    pub tree: Arc<Tree>,
    /// Where its values go. The keyspace may be dropped meanwhile.
    pub values: Arc<Values>,
    progress: Mutex<PieceProgress>,
    changed: Condvar,
    has_failed: AtomicBool,
    /// Memory that serves again has at most so many bytes.
    spare_bytes: usize,
}

#[derive(Default)]
struct PieceProgress {
    /// Pieces that nobody has taken, in key order.
    waiting: VecDeque<IngestPiece>,
    /// How many are being written.
    writing: usize,
    /// The bytes of all these.
    unwritten_bytes: u64,
    /// The placement's hooks that nobody uses now.
    rewriters: Vec<UsedRewriter>,
    tables: BTreeMap<FileId, Arc<Table>>,
    /// Some entries of written pieces, which say how much the ingest overwrites.
    samples: IngestSamples,
    /// Written pieces, whose memory serves again.
    spare: Vec<SortedEntries>,
    /// Why one could not be written. No more are begun then.
    failed: Option<Error>,
}

/// The placement's hooks, and the number of the first entry of the last piece that they have seen.
type UsedRewriter = (Box<dyn Rewriter>, SeqNo);

/// What was written of a piece.
pub(crate) struct Written {
    pub tables: Vec<Arc<Table>>,
    pub rewriter: Option<Box<dyn Rewriter>>,
    pub samples: Vec<SampledEntry>,
}

/// A piece that one thread writes. Its end is noted when this is dropped, also by a panic: the ingest must not wait
/// forever.
pub(crate) struct TakenPiece {
    pieces: Arc<Pieces>,
    piece: IngestPiece,
    /// The placement's hooks that an earlier piece has used. They come with the piece: those that nobody uses have seen
    /// no piece after it yet.
    rewriter: Cell<Option<UsedRewriter>>,
    has_ended: Cell<bool>,
}

impl Pieces {
    /// None yet, for an ingest into this tree. They have `piece_bytes`.
    pub fn of(tree: &Arc<Tree>, piece_bytes: u64) -> Self {
        Self {
            tree: Arc::clone(tree),
            values: tree.placement(),
            progress: Mutex::default(),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            spare_bytes: piece_bytes as usize * 2,
        }
    }

    /// Adds a piece, whose keys and numbers are larger than all before it.
    pub fn add(&self, piece: IngestPiece) {
        let mut progress = self.progress.hold();
        progress.unwritten_bytes += piece.entries.bytes() as u64;
        progress.waiting.push_back(piece);
    }

    /// Whether there is a piece that nobody has taken.
    pub fn has_more(&self) -> bool {
        let progress = self.progress.hold();
        !progress.waiting.is_empty() && progress.failed.is_none()
    }

    /// Takes the next piece.
    pub fn take(self: &Arc<Self>) -> Option<TakenPiece> {
        let mut progress = self.progress.hold();
        if progress.failed.is_some() {
            return None;
        }
        let piece = progress.waiting.pop_front()?;
        progress.writing += 1;
        let rewriter = if planted!("ingest_lends_late") { None } else { progress.rewriters.pop() };
        let (pieces, has_ended) = (Arc::clone(self), Cell::new(false));
        Some(TakenPiece { pieces, piece, rewriter: Cell::new(rewriter), has_ended })
    }

    /// Whether more than `most` pieces are unwritten. After an error, only those that are being written count.
    pub fn are_more_than(&self, most: usize) -> bool {
        let progress = self.progress.hold();
        let waiting = if progress.failed.is_some() { 0 } else { progress.waiting.len() };
        let writing = if planted!("ingest_leaves_pieces_behind") { 0 } else { progress.writing };
        waiting + writing > most
    }

    /// The bytes of all unwritten pieces.
    pub fn unwritten_bytes(&self) -> u64 {
        self.progress.hold().unwritten_bytes
    }

    /// Waits until one of those who write has ended. Nobody must be adding pieces. Every one of them ends, also when
    /// the database fails or is closed: it asks while it writes.
    pub fn wait_for_less(&self, signal: &Signal, since: Duration) {
        let mut progress = self.progress.hold();
        let (writing, mut waiting) = (progress.writing, None);
        while progress.writing > 0 && progress.writing >= writing {
            waiting.get_or_insert_with(|| signal.waiting("an ingest", "pieces that others write", since));
            // The end of each piece wakes this thread. If that ever fails, this looks again all the same.
            progress = wait_for(&self.changed, progress, PATIENCE).0;
        }
    }

    /// Begins no more pieces, and waits until nobody writes.
    pub fn give_up(&self, signal: &Signal, since: Duration) {
        self.progress.hold().waiting.clear();
        while self.progress.hold().writing > 0 && !planted!("ingest_ends_before_its_writers") {
            self.wait_for_less(signal, since);
        }
    }

    /// Whether a piece could not be written. Cheap.
    pub fn have_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// # Errors
    /// Why a piece could not be written.
    pub fn outcome(&self) -> Result<()> {
        match &self.progress.hold().failed {
            Some(error) if !planted!("ingest_swallows_errors") => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn fail(&self, progress: &mut PieceProgress, error: Error) {
        progress.failed.get_or_insert(error);
        self.has_failed.store(true, Relaxed);
    }

    /// Memory for the next piece.
    pub fn spare(&self) -> SortedEntries {
        self.progress.hold().spare.pop().unwrap_or_default()
    }

    /// The placement's hooks of all pieces.
    pub fn take_rewriters(&self) -> Vec<Box<dyn Rewriter>> {
        let used = std::mem::take(&mut self.progress.hold().rewriters);
        used.into_iter().map(|(rewriter, _)| rewriter).collect()
    }

    /// The tables of all pieces.
    pub fn take_tables(&self) -> BTreeMap<FileId, Arc<Table>> {
        std::mem::take(&mut self.progress.hold().tables)
    }

    /// The samples of all pieces.
    pub fn take_samples(&self) -> IngestSamples {
        std::mem::take(&mut self.progress.hold().samples)
    }
}

impl TakenPiece {
    /// Whose it is.
    pub fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }

    /// The entries, and the number of the first.
    pub fn piece(&self) -> &IngestPiece {
        &self.piece
    }

    /// The placement's hooks that an earlier piece has used.
    pub fn rewriter(&self) -> Option<Box<dyn Rewriter>> {
        let late = || planted!("ingest_lends_late").then(|| self.pieces.progress.hold().rewriters.pop()).flatten();
        let (rewriter, last) = self.rewriter.take().or_else(late)?;
        debug_assert!(last < self.piece.seqno, "its keys would not ascend: {last} and {}", self.piece.seqno);
        Some(rewriter)
    }

    /// What has become of it. The ingest learns of an error.
    pub fn end(&self, outcome: Result<Written>) {
        let mut progress = self.pieces.progress.hold();
        match outcome {
            Ok(Written { tables, rewriter, samples }) => {
                samples.into_iter().for_each(|sample| progress.samples.add(sample));
                progress.tables.extend(tables.into_iter().map(|table| (table.meta().id, table)));
                progress.rewriters.extend(rewriter.map(|rewriter| (rewriter, self.piece.seqno)));
            }
            Err(error) => self.pieces.fail(&mut progress, error),
        }
        self.has_ended.set(true);
    }
}

impl Drop for TakenPiece {
    fn drop(&mut self) {
        let mut entries = std::mem::take(&mut self.piece.entries);
        let bytes = entries.bytes() as u64;
        entries.clear(self.pieces.spare_bytes);
        let mut progress = self.pieces.progress.hold();
        progress.writing -= 1;
        progress.unwritten_bytes -= bytes;
        progress.spare.push(entries);
        if !self.has_ended.get() && !planted!("ingest_forgets_panics") {
            let message = "a thread ended before it had written its piece".to_owned();
            self.pieces.fail(&mut progress, Error::Panicked { what: "an ingest", message });
        }
        drop(progress);
        self.pieces.changed.notify_all();
    }
}
