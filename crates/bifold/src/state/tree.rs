//! One tree: the memtables and tables of a keyspace, and what readers see of it. Its key ranges with compactions of
//! their own, which UniKV calls partitions, are in [`TreeShape`].
//!
//! ```text
//! reads ──▶ View ─┬─ active   the memtable that commits go to
//!                 ├─ sealed   full memtables waiting to be written, newest first
//!                 └─ version  the tables
//! ```
//!
//! A [`View`] is immutable except for the active memtable, which only gains entries. Readers load it with one atomic
//! step and hold it as long as they like. Only `install` replaces it.
//!
//! **Invariant:** for each key `active` is newer than `sealed`, which is ordered by age, and both are newer than
//! `version`. Only an ingest puts tables there that are newer than other keys of the memtables. A view
//! loaded after a commit was acknowledged contains that commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Deref,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bifold_contract::{Busy, CompactionJob, CompactionPolicy, Error, FileId, KeyspaceId, Result, SeqNo, planted};
use bifold_index::{
    compaction::{by_partition::TreeShape, run::Held},
    memtable::Memtable,
    table::TableOptions,
    version::Version,
};
use bifold_values::store::ValueStore;

use crate::{
    settings::options::KeyspaceOptions,
    state::{
        changing::Changing,
        filter::TreeFilter,
        habits::Habits,
        health::Health,
        left_out::LeftOut,
        overwrites::Overwrites,
        presets::{self, FoundFiles},
    },
    waiting::sync::LockExt,
};

/// One tree.
pub(crate) struct Tree {
    /// Its keyspace.
    pub keyspace: KeyspaceId,
    /// The keyspace's name.
    pub name: String,
    /// Commits pass their operations to the placement, which may separate values.
    pub routes: bool,
    /// They pass it those with short values, too.
    pub hears_of_short_values: bool,
    /// Some values are separated, by commits or by rewrites.
    pub separates: bool,
    /// Estimates how much its commits overwrite, for a placement that learns this from rewrites alone.
    pub overwrites: Option<Overwrites>,
    /// What its compactions did.
    pub history: Mutex<CompactionHistory>,
    /// Which entries its user lets stay.
    pub filter: TreeFilter,
    /// What recent scans were like.
    pub scans: Habits,
    /// When to check its values for garbage.
    pub looks: Looks,
    /// Tables with something unreadable in them.
    pub unreadable: LeftOut,
    /// What snapshots hold in its tables, by table.
    pub held: Mutex<BTreeMap<FileId, Held>>,
    /// Tables of earlier sessions that may have older versions of a key: nothing says what snapshots held there.
    pub found: Mutex<BTreeSet<FileId>>,
    view: ArcSwap<View>,
    change: Mutex<()>,
    /// The options of values that the placement reads.
    value_options: bifold_values::placements::Settings,
    /// Commits separate values of this length and above.
    separates_from: AtomicUsize,
    /// Compactions that another policy chose may still be running: the new one chooses nothing before they have ended.
    is_changing_policy: AtomicBool,
    /// A scan has met a shape in debt to scans, and no compaction has paid it yet.
    scans_ask: AtomicBool,
    flushed: AtomicU64,
    dropped: AtomicBool,
    /// See [`super::expires`].
    pub(super) loses_entries: AtomicBool,
    /// No GC runs any more that does not know of that.
    pub takes_expiring: AtomicBool,
}

/// Sums over the compactions of one tree since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompactionHistory {
    /// Compactions that merged tables.
    pub merges: u64,
    /// Compactions that only moved tables.
    pub moves: u64,
    /// Sum of the α of each compaction that has one, times the bytes of the upper level: see
    /// [`crate::background::compact::alpha`].
    pub alpha_sum: f64,
    /// Sum of these bytes.
    pub alpha_bytes: u64,
    /// Entries read by merges.
    pub entries_in: u64,
    /// Entries written by merges.
    pub entries_out: u64,
    /// Merges that moved values, and the time they took.
    pub value_merges: u64,
    pub value_merge_time: Duration,
}

/// When to check a tree's values for garbage, and the outcome of the last check.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Bytes that commits have written.
    pub written: AtomicU64,
    /// The value of `written` at which the next check is due.
    pub due_at: AtomicU64,
    /// How much of the slack of its space target is taken, in thousandths, if that slows writers; else 0.
    pub fullness: AtomicU64,
    /// The bytes that the space target allows beyond live values.
    pub slack_bytes: AtomicU64,
}

/// The options of a tree in force, and what follows from them.
pub(crate) struct Settings {
    /// The keyspace's options.
    pub options: KeyspaceOptions,
    /// What it compacts next.
    pub policy: Box<dyn CompactionPolicy>,
}

impl Settings {
    fn new(options: KeyspaceOptions) -> Arc<Self> {
        Arc::new(Self { policy: presets::policy(&options), options })
    }
}

/// What readers see of a tree.
#[derive(Clone)]
pub(crate) struct View {
    /// The options in force.
    pub settings: Arc<Settings>,
    /// The memtable that commits go to.
    pub active: Arc<Layer>,
    /// Memtables waiting to be written, newest first.
    pub sealed: Vec<Arc<Layer>>,
    /// The tables.
    pub version: Arc<Version>,
    /// Where separated values live.
    pub values: Arc<Values>,
    /// The largest number of an ingest in `version` since the database was opened; 0 if there was none. Its tables are
    /// newer than other keys of the memtables may be.
    pub ingested: SeqNo,
    /// The shape of the tables, with what the policy of `settings` says of it.
    shape: OnceLock<Arc<TreeShape>>,
}

/// The values of a tree. Only views own it, and nothing that lives as long as a handle. It is dropped with the last
/// view of a dropped tree, which is with its last reader, together with its files, filters and buffers.
pub(crate) struct Values {
    store: ValueStore,
    /// The tables at the time the tree was dropped: readers of older views look there for values that have moved
    /// since.
    last: OnceLock<Arc<View>>,
}

impl Values {
    fn new(store: ValueStore) -> Arc<Self> {
        Arc::new(Self { store, last: OnceLock::new() })
    }

    /// The tables at the time the tree was dropped, if values are separated.
    pub fn last(&self) -> Option<&View> {
        self.last.get().map(|view| &**view)
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Values").field(&self.profile().name).finish()
    }
}

impl Deref for Values {
    type Target = ValueStore;

    fn deref(&self) -> &Self::Target {
        &self.store
    }
}

/// A memtable and the oldest log that holds an entry of it.
pub(crate) struct Layer {
    /// The entries.
    pub memtable: Arc<Memtable>,
    /// Id of the log that holds its first entry; 0 while it is empty.
    first_log: AtomicU64,
    /// Bytes of the large values that its entries name, overwritten ones included.
    pub large_bytes: AtomicU64,
}

impl Layer {
    /// An empty memtable.
    pub fn empty() -> Arc<Self> {
        let (first_log, large_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { memtable: Arc::new(Memtable::new()), first_log, large_bytes })
    }

    /// Notes that entries from `log` come in. Only the first note counts: log numbers only grow. Returns whether this
    /// was the first.
    pub fn fed_by(&self, log: FileId) -> bool {
        self.first_log.compare_exchange(0, log, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The oldest log that must stay until this memtable is written.
    pub fn first_log(&self) -> Option<FileId> {
        Some(self.first_log.load(Ordering::Acquire)).filter(|&log| log != 0)
    }
}

impl View {
    /// This view with the tables of `version`, without the memtable that was `written`.
    pub fn with(&self, written: Option<&Arc<Layer>>, version: Arc<Version>) -> Self {
        let stays = |layer: &&Arc<Layer>| written.is_none_or(|w| !Arc::ptr_eq(w, layer));
        let sealed = self.sealed.iter().filter(stays).cloned().collect();
        Self { sealed, version, shape: OnceLock::new(), ..self.clone() }
    }

    /// This view with other options in force.
    fn with_settings(&self, settings: Arc<Settings>) -> Self {
        let version = presets::version_with(&self.version, &settings.options);
        Self { settings, version: Arc::new(version), shape: OnceLock::new(), ..self.clone() }
    }

    /// The empty view that replaces this one.
    fn nothing(&self) -> Self {
        Self::of_tables(Arc::clone(&self.settings), Arc::default(), Values::new(self.values.for_dropped()))
    }

    fn of_tables(settings: Arc<Settings>, version: Arc<Version>, values: Arc<Values>) -> Self {
        let (active, sealed) = (Layer::empty(), Vec::new());
        Self { settings, active, sealed, version, values, ingested: 0, shape: OnceLock::new() }
    }

    /// Combines an operand with what is older, if the operator can.
    pub fn combine(&self, key: &[u8], older: Option<&[u8]>, newer: &[u8]) -> Option<Vec<u8>> {
        self.settings.options.merge.as_ref()?.combine(key, older, newer).ok()
    }

    /// All memtables, newest first.
    pub fn layers(&self) -> impl Iterator<Item = &Arc<Layer>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }
}

impl Tree {
    /// A tree that begins with the tables of `version`, which hold all commits up to `flushed`.
    ///
    /// # Errors
    /// Unusable options, a placement that is not registered; the errors of opening value files.
    pub fn new(
        keyspace: KeyspaceId,
        name: String,
        options: KeyspaceOptions,
        version: Version,
        flushed: SeqNo,
        values: FoundFiles<'_>,
    ) -> Result<Self> {
        let options = values.own.resolve(&name, options)?;
        let value_options = bifold_values::placements::Settings::new(options.values);
        let store = presets::values(&options, &value_options, values)?;
        let profile = store.profile();
        let entries = version.tables().map(|table| table.meta().entries).sum();
        Ok(Self {
            keyspace,
            name,
            routes: profile.separates_from.is_some(),
            hears_of_short_values: profile.hears_of_short_values,
            separates: profile.separates(),
            overwrites: Overwrites::of(&profile, store.space().live_bytes, entries),
            history: Mutex::default(),
            scans: Habits::default(),
            looks: Looks::default(),
            unreadable: LeftOut::default(),
            held: Mutex::default(),
            found: Mutex::new(found(&version)),
            view: ArcSwap::from_pointee(View::of_tables(Settings::new(options), Arc::new(version), Values::new(store))),
            change: Mutex::new(()),
            value_options,
            separates_from: AtomicUsize::new(profile.separates_from.unwrap_or(usize::MAX)),
            is_changing_policy: AtomicBool::new(false),
            scans_ask: AtomicBool::new(false),
            flushed: AtomicU64::new(flushed),
            dropped: AtomicBool::new(false),
            filter: TreeFilter::default(),
            loses_entries: AtomicBool::new(false),
            takes_expiring: AtomicBool::new(false),
        })
    }

    /// The options in force.
    pub fn options(&self) -> KeyspaceOptions {
        self.view().settings.options.clone()
    }

    /// Commits separate values of this length and above. Another length may be in force a moment later.
    pub fn separates_from(&self) -> usize {
        self.separates_from.load(Ordering::Relaxed)
    }

    /// Puts `options` in force, which are durable and have the placement and hash index that the tree has. The caller
    /// keeps workers from choosing compactions meanwhile.
    pub fn configure(&self, options: &KeyspaceOptions, changing: &Changing<'_>) {
        self.value_options.replace(options.values);
        let profile = self.placement().profile();
        self.separates_from.store(profile.separates_from.unwrap_or(usize::MAX), Ordering::Relaxed);
        if let (Some(overwrites), Some(separated_from)) = (&self.overwrites, profile.learns_from_rewrites) {
            overwrites.are_separated_from(separated_from);
        }
        let settings = Settings::new(options.clone());
        self.change(changing, |view| {
            if view.settings.options.compaction != settings.options.compaction {
                self.is_changing_policy.store(true, Ordering::Release);
            }
            (view.with_settings(settings), ())
        });
    }

    /// What readers see now, for one read.
    pub fn view(&self) -> arc_swap::Guard<Arc<View>> {
        self.view.load()
    }

    /// What readers see now, to be held longer.
    pub fn view_to_hold(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// What readers see now but for the memtables, to be held by a job: that takes as long as several memtables take to
    /// fill, and would keep those in memory that are written meanwhile.
    pub fn tables_to_hold(&self) -> View {
        let view = self.view();
        View { active: Layer::empty(), sealed: Vec::new(), ..View::clone(&view) }
    }

    /// Where its values live; empty once the tree is dropped. To be held for as long as a piece of work takes.
    pub fn placement(&self) -> Arc<Values> {
        Arc::clone(&self.view().values)
    }

    /// Empties a dropped tree. Returns its last view, which is freed with its last reader.
    pub fn take_view(&self, changing: &Changing<'_>) -> Arc<View> {
        debug_assert!(changing.is_of(self.keyspace), "no waiter would look at this keyspace");
        let _alone = self.change.hold();
        let old = self.view_to_hold();
        if old.values.profile().separates() {
            // Readers of older views reach it through the placement, so it must not keep the placement in turn. Some
            // placements move values without a commit, and then these readers need it.
            let last = View { version: Arc::clone(&old.version), ..old.nothing() };
            let _it_is_dropped_once = old.values.last.set(Arc::new(last));
        }
        let nothing = match planted!("handle_pins_files") {
            true => View { values: Arc::clone(&old.values), ..old.nothing() },
            false => old.nothing(),
        };
        self.view.store(Arc::new(nothing));
        old
    }

    /// Replaces the view by `next(view)`. Changes exclude each other; readers are not held up. Waiters are notified.
    pub fn change<T>(&self, changing: &Changing<'_>, next: impl FnOnce(&View) -> (View, T)) -> T {
        debug_assert!(changing.is_of(self.keyspace), "no waiter would look at this keyspace");
        let _alone = self.change.hold();
        let (view, answer) = next(&self.view.load());
        self.view.store(Arc::new(view));
        answer
    }

    /// Commits go on in a new memtable; the active one waits to be written. The caller keeps commits out.
    pub fn seal(&self, changing: &Changing<'_>) {
        self.change(changing, |view| {
            let mut sealed = vec![Arc::clone(&view.active)];
            sealed.extend(view.sealed.iter().cloned());
            (View { active: Layer::empty(), sealed, ..view.clone() }, ())
        });
    }

    /// Begins with these memtables. Nobody reads it yet.
    pub fn take_layers(&self, active: Arc<Layer>, sealed: Vec<Arc<Layer>>) {
        self.view.store(Arc::new(View { active, sealed, ..View::clone(&self.view()) }));
    }

    /// The shape of the tables of `view`, which is a view of this tree.
    pub fn shape<'v>(&self, view: &'v View) -> &'v TreeShape {
        view.shape.get_or_init(|| Arc::new(TreeShape::new(view.version.shape(), view.settings.policy.as_ref())))
    }

    /// How far the tree is from its shape; from 1.0 on a compaction is due. It is 0 if no compaction can help because
    /// some of its tables cannot be read.
    pub fn debt(&self) -> f64 {
        let view = self.view();
        let shape = self.shape(&view);
        let debt = if self.do_scans_ask(&view) { shape.debt().max(shape.debt_to_scans()) } else { shape.debt() };
        let is_stuck = debt >= 1.0 && self.unreadable.any() && self.choose_among(&Busy::default()).is_none();
        if is_stuck { 0.0 } else { debt }
    }

    /// The most useful compaction without busy or unreadable tables. All running jobs of the tree have taken `busy`.
    pub fn choose(&self, busy: &Busy) -> Option<CompactionJob> {
        if self.is_changing_policy.load(Ordering::Acquire) {
            if !busy.tables.is_empty() || !busy.outputs.is_empty() {
                return None;
            }
            self.is_changing_policy.store(false, Ordering::Release);
        }
        self.choose_among(busy)
    }

    fn choose_among(&self, busy: &Busy) -> Option<CompactionJob> {
        let view = self.view();
        let busy = Busy { scans_ask: self.do_scans_ask(&view), ..self.unreadable.and(busy) };
        self.shape(&view).choose(view.settings.policy.as_ref(), &busy)
    }

    /// A scan begins on `view`. Returns whether that makes a compaction due which was not.
    pub fn note_scan(&self, view: &View) -> bool {
        self.shape(view).debt_to_scans() >= 1.0 && !self.scans_ask.load(Ordering::Relaxed) && {
            !self.scans_ask.swap(true, Ordering::AcqRel)
        }
    }

    /// Whether the debt to scans counts: a scan has asked for it to be paid, or there is no memory for a hash index,
    /// and point reads suffer as scans do.
    fn do_scans_ask(&self, view: &View) -> bool {
        let is_in_debt = self.shape(view).debt_to_scans() >= 1.0;
        if !is_in_debt && self.scans_ask.load(Ordering::Relaxed) {
            self.scans_ask.store(false, Ordering::Release);
        }
        is_in_debt && (self.scans_ask.load(Ordering::Acquire) || view.version.hash_index().is_none())
    }

    /// The options for writing tables of a level.
    pub fn table_options(&self, level: u8) -> TableOptions {
        presets::table_options(&self.view().settings.options, level)
    }

    /// All commits of the tree up to this number are in tables; replay of the log skips them.
    pub fn flushed(&self) -> SeqNo {
        self.flushed.load(Ordering::Acquire)
    }

    /// Raises [`Tree::flushed`]. Only `install` and recovery call this.
    pub fn note_flushed(&self, seqno: SeqNo) {
        self.flushed.fetch_max(seqno, Ordering::AcqRel);
    }

    /// Whether the keyspace was dropped.
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Whether it can be read in this `health`.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn readable(&self, health: &Health) -> Result<()> {
        if self.is_dropped() {
            return Err(Error::Closed { what: format!("keyspace `{}`", self.name) });
        }
        health.open()
    }

    /// Marks the keyspace dropped: later reads and writes through old handles fail.
    pub fn mark_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }
}

/// The tables of earlier sessions that may have older versions of a key. Versions of one key have different numbers.
fn found(version: &Version) -> BTreeSet<FileId> {
    let metas = version.tables().map(|table| table.meta());
    metas.filter(|meta| meta.entries > 1 && meta.min_seqno < meta.max_seqno).map(|meta| meta.id).collect()
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("keyspace", &self.keyspace).field("name", &self.name).finish_non_exhaustive()
    }
}
