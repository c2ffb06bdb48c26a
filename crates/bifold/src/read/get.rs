//! Point reads.
//!
//! ```text
//! view (one atomic load) ─▶ active memtable ─▶ sealed memtables ─▶ level 0, newest run first ─▶ level 1 … n
//! ```
//!
//! The first layer that has the key decides, because layers are ordered by age. A range tombstone found on the way
//! deletes everything older in the layers below, so the read carries along the newest one that covers the key.
//!
//! **Order of the two loads.** A read without a snapshot loads the view first and `visible` second. Whatever a flush
//! or compaction dropped before the view was made is then overwritten by something that the read can see. In the
//! other order a version that the older number still needs could already be dropped.
//!
//! **Operands that are newer than the view.** An ingest puts tables below a memtable that commits go on in. A view from
//! before it has that memtable, so it finds later operands without the value that the ingest has put below them. A read
//! that has found operands therefore asks whether an ingest has come since, and looks again if one has.

#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use bifold_contract::{IoSource, Kind, Millis, Pointer, Result, SeqNo, Value, expiry, planted};
use bifold_format::{filter::key_hash, pointer};
use bifold_index::{lookup::Lookup, table::TableContext, visible::without_instant};
use bifold_io::{Clock, Dir, fs::FileLock};

use super::{large::Gone, operands::Operands, scan::Wanted};
use crate::{
    counts::counters::Counters,
    settings::options::CachedValues,
    state::{
        health::Health,
        time::{ReadTime, Sight, Time},
        tree::{Tree, Values, View},
        work::Work,
    },
    waiting::visible::LastVisible,
};

/// Point reads and iterators of one database. It takes no lock, and of commits and jobs it knows only where to say that
/// one is due.
pub(crate) struct Reader {
    pub clock: Arc<dyn Clock>,
    pub time: Arc<Time>,
    pub dir: Dir,
    /// With the block cache.
    pub tables: Arc<TableContext>,
    pub counters: Arc<Counters>,
    pub health: Arc<Health>,
    pub work: Arc<Work>,
    /// The last sequence number that reads may see.
    pub visible: Arc<LastVisible>,
    /// An iterator may outlive the handles. No other process opens the database before it has ended.
    pub _lock: Arc<dyn FileLock>,
}

/// The outcome of a read.
pub(super) enum Looked {
    /// The value, if there is one.
    Answer(Option<Value>),
    /// The value is no longer there: it has moved since its pointer was found, or its entry was dropped.
    Moved(Gone),
}

/// How often a value may move while it is read. Each move takes a whole GC run.
pub(super) const MOVES_MAX: u32 = 100;

/// The longest value file takes 40 bits and a value, which leaves room for more epochs than a file can see.
const EPOCH_BITS: u32 = 20;

/// The cache keeps a whole record if the record is larger than its value by no more than this, in bytes.
const RECORD_OVERHEAD_MAX: usize = 128;

/// A version that is not a deletion, with its value not read yet.
pub(super) enum Live<'v> {
    /// The value, in a memtable of the view.
    InMemtable(&'v [u8]),
    /// The value, sharing the buffer of its block.
    InBlock(Value),
    /// An encoded pointer, in a memtable of the view, and the version's number.
    PointerInMemtable(&'v [u8], SeqNo),
    /// An encoded pointer, sharing the buffer of its block, and the version's number.
    PointerInBlock(Value, SeqNo),
    /// What the version says of the file that has its value, encoded.
    Large(Value),
    /// Operands, and what they are combined with.
    Operands(Box<Operands<'v>>),
}

impl Live<'_> {
    pub(super) fn encoded_pointer(&self) -> Option<&[u8]> {
        match self {
            Live::InMemtable(_) | Live::InBlock(_) | Live::Large(_) => None,
            Live::PointerInMemtable(pointer, _) => Some(pointer),
            Live::PointerInBlock(pointer, _) => Some(pointer),
            Live::Operands(operands) => operands.encoded_pointer(),
        }
    }

    /// The same, unless what it points at is only a part of the value.
    pub(super) fn lone_pointer(&self) -> Option<&[u8]> {
        if matches!(self, Live::Operands(_)) { None } else { self.encoded_pointer() }
    }

    /// Whether these are operands, found in `view`, and an ingest may have come below them since the view was made. The
    /// view that has an ingest is there before anything newer is.
    pub(super) fn may_lack_ingest(&self, tree: &Tree, view: &View) -> bool {
        matches!(self, Live::Operands(_))
            && tree.view().ingested != view.ingested
            && !planted!("operands_overlook_ingest")
    }
}

impl Reader {
    /// The newest value of `key`, at `snapshot` or now.
    ///
    /// # Errors
    /// I/O errors, corruption, [`Error::Closed`](bifold_contract::Error::Closed).
    pub fn get(&self, tree: &Tree, key: &[u8], snapshot: Option<Sight>) -> Result<Option<Value>> {
        let begin = self.counters.sample_get(|| self.clock.now());
        let value = self.find_now(tree, key, || snapshot.unwrap_or_else(|| Sight::now(self.visible())))?;
        if begin.is_some() {
            self.ask_for_work(tree, &tree.view().values);
        }
        self.counters.got(value.as_ref().map(|v| v.len()), || self.clock.now(), begin);
        Ok(value)
    }

    /// Wakes the workers if readers have lost much time to where these values are.
    pub(super) fn ask_for_work(&self, tree: &Tree, values: &Values) {
        if values.readers_ask() {
            self.work.look_at(&[tree.keyspace]);
        }
    }

    /// Whether `key` has a value, at `snapshot` or now. Copies and fetches no value.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn contains(&self, tree: &Tree, key: &[u8], snapshot: Option<Sight>) -> Result<bool> {
        let begin = self.counters.sample_get(|| self.clock.now());
        let found = {
            let view = self.present(tree)?;
            let sight = snapshot.unwrap_or_else(|| Sight::now(self.visible()));
            self.newest_for(Wanted::Keys, &view, key, sight, &mut None)?.is_some()
        };
        self.counters.got(found.then_some(0), || self.clock.now(), begin);
        Ok(found)
    }

    /// The value of a version that was found in `view` and that `snapshot`, which is open, sees. The view may be out of
    /// date: if the value has moved since, this looks it up in a newer view.
    pub(super) fn find_in(
        &self,
        tree: &Tree,
        view: &View,
        (key, live): (&[u8], Live<'_>),
        sight: Sight,
    ) -> Result<Option<Value>> {
        match self.value_of(tree, (view, &view.values), key, live)? {
            Looked::Answer(value) => Ok(value),
            Looked::Moved(_) => self.find_moved(tree, &view.values, key, sight),
        }
    }

    /// The value of `key` in a view that an iterator holds, at its snapshot, and when it expires.
    pub(super) fn find_pinned(
        &self,
        tree: &Tree,
        (view, values): (&View, &Arc<Values>),
        (key, sight): (&[u8], Sight),
        expires_at: &mut Option<Millis>,
    ) -> Result<Option<Value>> {
        let Some(live) = self.newest(view, key, sight, expires_at)? else { return Ok(None) };
        match self.value_of(tree, (view, values), key, live)? {
            Looked::Answer(value) => Ok(value),
            Looked::Moved(_) => self.find_moved(tree, values, key, sight),
        }
    }

    /// The newest value of `key` that `sight()` sees. If the value moves before it is read, the
    /// pointer is out of date and this looks up the key again.
    pub(super) fn find_now(&self, tree: &Tree, key: &[u8], sight: impl Fn() -> Sight) -> Result<Option<Value>> {
        let mut tries = 0;
        loop {
            let view = self.present(tree)?;
            let Some(live) = self.newest(&view, key, sight(), &mut None)? else { return Ok(None) };
            if live.may_lack_ingest(tree, &view) {
                continue;
            }
            match self.value_of(tree, (&view, &view.values), key, live)? {
                Looked::Answer(value) => return Ok(value),
                Looked::Moved(gone) if tries == MOVES_MAX => return Err(self.lost(tree, gone)),
                Looked::Moved(_) => tries += 1,
            }
        }
    }

    /// The same for a reader of an older view with these `values`. Such a reader may continue after the tree is
    /// dropped.
    pub(super) fn find_moved(
        &self,
        tree: &Tree,
        values: &Arc<Values>,
        key: &[u8],
        sight: Sight,
    ) -> Result<Option<Value>> {
        let mut tries = 0;
        loop {
            let now = tree.view();
            let view = if Arc::ptr_eq(&now.values, values) { Some(&**now) } else { values.last() };
            match self.look(tree, (view.unwrap_or(&now), values), key, sight)? {
                Looked::Answer(value) => return Ok(value),
                Looked::Moved(gone) if tries == MOVES_MAX => return Err(self.lost(tree, gone)),
                Looked::Moved(_) => tries += 1,
            }
        }
    }

    /// The last sequence number that reads may see.
    pub fn visible(&self) -> SeqNo {
        self.visible.seqno()
    }

    /// Whether `tree` can be read.
    ///
    /// # Errors
    /// [`Error::Closed`](bifold_contract::Error::Closed).
    pub fn readable(&self, tree: &Tree) -> Result<()> {
        tree.readable(&self.health)
    }

    /// The current view of a tree that is not dropped.
    ///
    /// # Errors
    /// [`Error::Closed`](bifold_contract::Error::Closed).
    pub(super) fn present(&self, tree: &Tree) -> Result<arc_swap::Guard<Arc<View>>> {
        // The view first: a tree is marked as dropped before its view becomes empty, and the empty view must not pass
        // for its contents.
        let view = tree.view();
        self.readable(tree)?;
        Ok(view)
    }

    fn look(&self, tree: &Tree, (view, values): (&View, &Values), key: &[u8], sight: Sight) -> Result<Looked> {
        match self.newest(view, key, sight, &mut None)? {
            None => Ok(Looked::Answer(None)),
            Some(live) => self.value_of(tree, (view, values), key, live),
        }
    }

    /// The value of a version found in `view`.
    #[inline]
    pub(super) fn value_of(
        &self,
        tree: &Tree,
        (view, values): (&View, &Values),
        key: &[u8],
        live: Live<'_>,
    ) -> Result<Looked> {
        let (pointer, seqno) = match live {
            Live::InMemtable(value) => return Ok(Looked::Answer(Some(Value::copy_of(value)))),
            Live::InBlock(value) => return Ok(Looked::Answer(Some(value))),
            Live::PointerInMemtable(pointer, seqno) => (decode_pointer(tree, pointer)?, seqno),
            Live::PointerInBlock(pointer, seqno) => (decode_pointer(tree, &pointer)?, seqno),
            Live::Large(named) => return self.value_of_large(tree, values, key, &named),
            Live::Operands(operands) => return self.fold(tree, (view, values), key, *operands),
        };
        let value = match self.caches_values(view) {
            true => self.read_through_cache(values, (key, seqno), pointer)?,
            false => values.read(key, seqno, pointer, IoSource::Get)?,
        };
        Ok(value.map_or(Looked::Moved(Gone::Value(pointer)), |value| Looked::Answer(Some(value))))
    }

    /// Whether gets keep separated values in the block cache.
    pub(super) fn caches_values(&self, view: &View) -> bool {
        match view.settings.options.values.cache {
            CachedValues::Auto => self.dir.reads_directly(),
            CachedValues::None => false,
            CachedValues::Gets => true,
        }
    }

    /// The value at `pointer`, from the block cache; on a miss reads it and caches it. The bytes behind a pointer never
    /// change, and value files and tables share one sequence of file numbers, so keys in the cache are unique.
    fn read_through_cache(
        &self,
        values: &Values,
        (key, seqno): (&[u8], SeqNo),
        pointer: Pointer,
    ) -> Result<Option<Value>> {
        let cache = self.tables.cache();
        // No value file is that long, so the high bits of the offset have room for the epoch.
        let place = pointer.offset ^ u64::from(pointer.epoch).rotate_right(EPOCH_BITS);
        if let Some(value) = cache.get(pointer.file, place) {
            return Ok(Some(value));
        }
        let Some(value) = values.read(key, seqno, pointer, IoSource::Get)? else { return Ok(None) };
        // A value keeps its whole record in memory, but the cache counts only the value: do not keep a long key with
        // it.
        let with_record = pointer.len as usize <= value.len() + RECORD_OVERHEAD_MAX;
        let kept = if with_record { value.clone() } else { Value::copy_of(&value) };
        cache.insert(pointer.file, place, kept);
        Ok(Some(value))
    }

    /// The newest version of `key` in `view` that `sight` sees, unless that is a deletion or has expired. `expires_at`
    /// becomes its instant if it expires.
    #[inline]
    pub(super) fn newest<'v>(
        &self,
        view: &'v View,
        key: &[u8],
        sight: Sight,
        expires_at: &mut Option<Millis>,
    ) -> Result<Option<Live<'v>>> {
        self.newest_for(Wanted::All, view, key, sight, expires_at)
    }

    /// The same. Operands are looked for only if all is wanted.
    #[inline]
    fn newest_for<'v>(
        &self,
        wanted: Wanted,
        view: &'v View,
        key: &[u8],
        sight: Sight,
        expires_at: &mut Option<Millis>,
    ) -> Result<Option<Live<'v>>> {
        let (snapshot, key_hash) = (sight.seqno, key_hash(key));
        let mut covered_by: SeqNo = 0;
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, snapshot));
            if let Some(entry) = layer.memtable.get_hashed(key, key_hash, snapshot) {
                return Ok(match entry.kind {
                    _ if entry.seqno < covered_by => None,
                    Kind::Delete => None,
                    Kind::Inline => Some(Live::InMemtable(entry.payload)),
                    Kind::Pointer => Some(Live::PointerInMemtable(entry.payload, entry.seqno)),
                    Kind::Large => Some(Live::Large(Value::copy_of(entry.payload))),
                    Kind::Operand if wanted == Wanted::Keys => Some(Live::InMemtable(entry.payload)),
                    Kind::Operand => self.operands(view, key, sight, expires_at)?.into_live(),
                    Kind::InlineUntil | Kind::PointerUntil => {
                        let (instant, rest) = expiry::split(entry.payload);
                        let is_inline = entry.kind == Kind::InlineUntil;
                        self.is_alive(instant, sight, expires_at).then_some(match is_inline {
                            true => Live::InMemtable(rest),
                            false => Live::PointerInMemtable(rest, entry.seqno),
                        })
                    }
                });
            }
        }
        let lookup = lookup_of(view, (key, key_hash), snapshot, covered_by);
        if view.settings.options.merge.is_some() && wanted == Wanted::All {
            let mut found = Operands::default();
            self.walk_tables(view, &lookup, sight, (&mut found, expires_at))?;
            return Ok(found.into_live());
        }
        let Some(found) = view.version.get(&lookup, &self.counters.lookups)? else { return Ok(None) };
        Ok(match found.kind {
            Kind::Delete => None,
            Kind::Inline => Some(Live::InBlock(found.payload)),
            Kind::Pointer => Some(Live::PointerInBlock(found.payload, found.seqno)),
            Kind::Large => Some(Live::Large(found.payload)),
            Kind::Operand if wanted == Wanted::Keys => Some(Live::InBlock(found.payload)),
            Kind::Operand => self.operands(view, key, sight, expires_at)?.into_live(),
            Kind::InlineUntil | Kind::PointerUntil => {
                let instant = expiry::split(&found.payload).0;
                let is_inline = found.kind == Kind::InlineUntil;
                self.is_alive(instant, sight, expires_at).then(|| match is_inline {
                    true => Live::InBlock(without_instant(&found.payload)),
                    false => Live::PointerInBlock(without_instant(&found.payload), found.seqno),
                })
            }
        })
    }

    /// Whether an entry with this instant has not expired to `sight`. Then it becomes `expires_at`.
    #[cold]
    pub(super) fn is_alive(&self, instant: Millis, sight: Sight, expires_at: &mut Option<Millis>) -> bool {
        let is_alive = match sight.time {
            ReadTime::Now => self.time.now() < instant,
            ReadTime::At(time) => time < instant,
            ReadTime::Never => true,
        };
        if is_alive {
            *expires_at = Some(instant);
        }
        is_alive
    }

    /// When `key` expires, as `sight()` sees it; `Some(None)` if it has a value and does not expire.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn expires_at(&self, tree: &Tree, key: &[u8], sight: impl Fn() -> Sight) -> Result<Option<Option<Millis>>> {
        let early = planted!("ttl_takes_number_first").then(&sight);
        let view = self.present(tree)?;
        let (sight, mut expires_at) = (early.unwrap_or_else(sight), None);
        Ok(self.newest_for(Wanted::Keys, &view, key, sight, &mut expires_at)?.map(|_| expires_at))
    }

    /// The newest value of `key` whatever the snapshots: for conditions, which are checked under the commit lock, where
    /// everything is visible, and perhaps once before. Before, what is not visible must not be read: the values of an
    /// ingest can be found only after its entries.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn current(&self, tree: &Arc<Tree>, key: &[u8]) -> Result<Option<Value>> {
        self.find_now(tree, key, || Sight::now(self.visible()))
    }

    /// The value that `key` had at `snapshot`, which is open. Unlike [`Reader::get`] it is not counted as a read of the
    /// user's.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn seen_at(&self, tree: &Tree, key: &[u8], snapshot: Sight) -> Result<Option<Value>> {
        self.find_now(tree, key, || snapshot)
    }

    /// The pointer to the newest value of `key`, if that is a separated value. It may have expired, and operands may be
    /// above it.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn current_pointer(&self, tree: &Tree, key: &[u8]) -> Result<Option<Pointer>> {
        Ok(self.chain(tree, key, |_| Ok(false))?.map(|chain| chain.pointer))
    }

    /// The value behind an encoded pointer that an open snapshot sees.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn resolve(
        &self,
        (tree, values): (&Tree, &Arc<Values>),
        (key, seqno): (&[u8], SeqNo),
        encoded: &[u8],
        source: IoSource,
    ) -> Result<Value> {
        let pointer = decode_pointer(tree, encoded)?;
        if let Some(value) = values.read(key, seqno, pointer, source)? {
            return Ok(value);
        }
        if planted!("trust_old_views") {
            return Err(self.lost(tree, Gone::Value(pointer)));
        }
        // A merge has moved it since. The version still exists, and nothing as old overwrites it.
        let sight = Sight { seqno, time: ReadTime::Never };
        self.find_moved(tree, values, key, sight)?.ok_or_else(|| self.lost(tree, Gone::Value(pointer)))
    }

    /// As [`Reader::resolve`], but the value is only shown to `see`.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn show(
        &self,
        (tree, values): (&Tree, &Arc<Values>),
        (key, seqno): (&[u8], SeqNo),
        encoded: &[u8],
        source: IoSource,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let pointer = decode_pointer(tree, encoded)?;
        if !values.show((key, seqno), pointer, source, see)? {
            see(&self.resolve((tree, values), (key, seqno), encoded, source)?);
        }
        Ok(())
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("dir", &self.dir).field("visible", &self.visible()).finish_non_exhaustive()
    }
}

/// A lookup in the tables of `view`.
#[inline]
pub(super) fn lookup_of<'a>(
    view: &'a View,
    (key, key_hash): (&'a [u8], u64),
    snapshot: SeqNo,
    covered_by: SeqNo,
) -> Lookup<'a> {
    Lookup { key, key_hash, snapshot, covered_by, after: 0, source: IoSource::Get, locator: view.version.locator() }
}

/// # Errors
/// Corruption.
pub(super) fn decode_pointer(tree: &Tree, encoded: &[u8]) -> Result<Pointer> {
    pointer::decode(encoded).map_err(|damage| damage.of(format!("keyspace {}", tree.name)))
}
