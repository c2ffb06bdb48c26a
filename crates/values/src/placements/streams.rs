//! `streams`: values in append files by update frequency, survivors of GC by age. Ours.
//!
//! ```text
//! put ─▶ sketch: how often recently? ─▶ one of 5 files ─▶ log and memtable: its address
//!                                                       └─ a merge drops it ─▶ counted in its file
//! GC: files with most dead/live × age ─▶ live values ─▶ one of 4 files by age
//!                                        └─▶ a forwarding file says where: readers follow it,
//!                                            merges write the new address, nothing is committed
//! ```
//!
//! | idea | source |
//! |---|---|
//! | values are written once, before the log | WiscKey, as HashKV §2.2 describes it |
//! | compaction reports what is dead | NovKV §III-B, DiffKV §3.5 |
//! | values that die at different times go to different files | HashKV §3.4; by a frequency sketch and by age: ours |
//! | victims by dead/live × age | cost-benefit cleaning of log-structured file systems |
//! | GC writes nothing to the index | NovKV §III-C; by forwarding files: ours |
//!
//! **Liveness.** A version that leaves the index is known exactly (`dead.rs`). What is overwritten and not merged yet
//! is estimated for each file, from a sample of the commits: that is enough to choose files. GC asks only about records
//! of the chosen files that have not left the index, and only what is above the last run: whatever is not overwritten
//! there is live.
//!
//! **Space.** Forwarding files count as garbage until all their rows are used.

mod clock;
mod dead;
mod followed;
mod heads;
mod moving;
mod renewal;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{
    Error, FileId, IoSource, Pointer, PointerChanges, Result, Rewriter, SeqNo, Value, ValueEdit, planted,
};
use bifold_format::forward::ROW_BYTES;

use self::{
    clock::Clock,
    dead::Dead,
    followed::Followed,
    heads::Heads,
    moving::Move,
    renewal::{Renew, RenewAll},
};
use super::{Settings, ValueOptions};
use crate::{
    parts::{
        dead_counts::DeadCounts,
        forwarding::{self, Forwarding},
        hash_map::HashMap,
        ingested::{IngestedFiles, IngestedLog},
        value_files::{COLLECTED, FORWARDS, Stretches, ValueFile, ValueFiles},
    },
    placement::{
        Explained, GcClaim, GcContext, GcJob, NewestAbove, Placement, Profile, RewriteJob, SpacePressure, ValueSpace,
        WriteOp,
    },
};

/// Files have about this share of all data, where `file_bytes` allows it: larger ones mix more of what dies at
/// different times (simulated: 1 % more copies than with files a fourth as large).
const FILES: u64 = 640;

/// Files are not made smaller than this because there is little data: creating files of 1.6 MB took 6 % of the
/// processor time of updates.
const FILE_BYTES_MIN: u64 = 4 << 20;

/// Nor smaller than so many values: creating and removing a file costs as much as writing some of them. With files of 4
/// MiB, values of 16 KiB were updated at three quarters of the rate.
const FILE_VALUES_MIN: u64 = 1 << 10;

/// Nor larger than this, whatever `file_bytes` says: rows of forwarding files have offsets of 32 bits.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// A GC run takes files until as many bytes of them are dead as so many full files have.
const FREED_FILES: u64 = 1;

/// And at most so many.
const SOURCES_MAX: usize = 32;

/// A GC run that reads no more than this is short: with large files flushes would wait for it.
const SHORT_BYTES: u64 = 128 << 20;

/// GC leaves files alone of which less than this share is dead.
const DEAD_SHARE: u64 = 32;

/// GC starts when all but this share of the space target's slack is taken: a GC run of so few files makes few copies.
const COPIES_PERCENT: u8 = 10;

/// Values in streams by update frequency and age.
pub struct Streams {
    heads: Heads,
    shared: Arc<Shared>,
}

/// What commits, rewriters and GC share.
struct Shared {
    options: Settings,
    files: Arc<ValueFiles>,
    forwarding: Forwarding,
    dead: Dead,
    clock: Clock,
    followed: Followed,
    /// Memory of the forwarding tables that was not borrowed after all addresses were renewed the last time.
    renewed_bytes: AtomicU64,
}

/// The length at which files are cut.
fn file_bytes(options: &ValueOptions, files: &ValueFiles, clock: &Clock) -> u64 {
    let least = FILE_BYTES_MIN.max(FILE_VALUES_MIN * clock.mean_bytes());
    let share = (files.sizes().1 / FILES).max(least);
    options.file_bytes.min(share).min(FILE_BYTES_MAX)
}

impl Streams {
    /// Opens it with the existing files.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Result<Self> {
        let (forwarding, dead, clock) = (Forwarding::default(), Dead::of(files), Clock::of(files));
        let followed = Followed::new();
        let is_unit = |file: &&Arc<ValueFile>| file.description.class == FORWARDS && file.is_recorded();
        for unit in files.in_use().iter().filter(is_unit) {
            let values = clock.values_in(files.sizes().1);
            if let Some(why) = forwarding.adopt(unit, files.filters(), values)? {
                leave_out_copies(files, unit.id, &why);
            }
            followed.count_values(values);
        }
        // Their sources may still exist: what had overwritten the rest of them was not durable.
        for source in forwarding.sources().into_iter().filter_map(|source| files.get(source)) {
            dead.was_emptied(&source);
        }
        let (options, files) = (options.clone(), Arc::clone(files));
        let renewed_bytes = AtomicU64::new(0);
        let shared = Arc::new(Shared { options, files, forwarding, dead, clock, followed, renewed_bytes });
        Ok(Self { heads: Heads::new(Arc::clone(&shared.files), &shared.options), shared })
    }

    /// The files that GC may pick, oldest first. Nothing leads to what a run has written before its edit is installed.
    fn sealed(&self) -> Vec<Arc<ValueFile>> {
        let shared = &self.shared;
        // The files are listed first: one that a commit begins after that is not among them.
        let mut files = shared.files.in_use();
        let (open, left_out) = (self.heads.open(), shared.files.left_out_files());
        files.retain(|file| {
            let is_installed = file.description.class != COLLECTED || file.is_recorded();
            is_installed
                && file.description.class != FORWARDS
                && !open.contains(&file.id)
                && !left_out.contains(&file.id)
        });
        files
    }

    /// These files with their scores, best first.
    fn ranked(&self, files: Vec<Arc<ValueFile>>) -> Vec<Ranked> {
        let ages = self.shared.clock.ages(files.iter().map(|file| file.id));
        let look = self.shared.dead.look();
        let rank = |(file, age): (Arc<ValueFile>, u64)| {
            let dead = look.bytes(&file);
            let live = (file.len() - file.start() - dead).max(1);
            Ranked { score: dead as f64 / live as f64 * age.max(1) as f64, file, dead, age }
        };
        let mut ranked: Vec<Ranked> = files.into_iter().zip(ages).map(rank).collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.file.id.cmp(&b.file.id)));
        ranked
    }

    /// The files that a GC run takes next while others have `taken` files.
    fn next(&self, pressure: &SpacePressure, taken: &[FileId]) -> Vec<Ranked> {
        let mut ranked = self.ranked(self.sealed());
        let freeing: u64 = ranked.extract_if(.., |unit| taken.contains(&unit.file.id)).map(|unit| unit.dead).sum();
        if let Some(before) = pressure.all_before {
            ranked.retain(|unit| unit.file.id < before);
            ranked.truncate(SOURCES_MAX);
            return ranked;
        }
        let space = self.shared.space();
        if pressure.excess(&space) <= freeing || pressure.is_pinned(&space) {
            return Vec::new();
        }
        let enough = FREED_FILES * file_bytes(&self.shared.options.now(), &self.shared.files, &self.shared.clock);
        ranked.retain(|unit| unit.dead * DEAD_SHARE >= unit.file.len());
        let mut freed = 0;
        let before = |unit: &Ranked| {
            freed += unit.dead;
            freed - unit.dead
        };
        let count = ranked.iter().map(before).take_while(|&freed| freed < enough).count();
        ranked.truncate(count.min(SOURCES_MAX));
        ranked
    }

    /// Whether forwarding tables take so much memory that all addresses are to be renewed.
    fn has_many_rows(&self) -> bool {
        let budget = self.shared.files.filters();
        // Addresses in memtables are renewed by their flush only.
        let bound = forwarding::own_bytes_max(budget).max(2 * self.shared.renewed_bytes.load(Relaxed));
        self.shared.forwarding.own_memory_bytes() > bound
    }
}

/// Rows of a forwarding file cannot be read. They led to copies that earlier GC runs have made, and nobody can tell to
/// which, so none of these is moved or freed: to GC a copy is dead if the index does not lead there.
fn leave_out_copies(files: &ValueFiles, unit: FileId, why: &Error) {
    let is_copy = |class| class == COLLECTED && !planted!("lost_rows_keep_no_copies");
    for file in files.in_use().iter().filter(|file| file.id == unit || is_copy(file.description.class)) {
        let _is_new = files.leave_out(file.id, why);
    }
}

/// A file that GC may take.
struct Ranked {
    file: Arc<ValueFile>,
    dead: u64,
    age: u64,
    score: f64,
}

impl Shared {
    fn space(&self) -> ValueSpace {
        let (files, total_bytes, drained_bytes) = self.files.sizes();
        let left_out_bytes = self.files.left_out_bytes();
        let in_use = self.files.in_use();
        let look = self.dead.look();
        let live = |file: &Arc<ValueFile>| match file.description.class {
            FORWARDS => 0,
            _ => look.live_bytes(file),
        };
        let live_bytes = in_use.iter().map(live).sum::<u64>().saturating_sub(self.dead.elsewhere_bytes());
        let live_bytes = live_bytes.max(left_out_bytes);
        ValueSpace { files, total_bytes, live_bytes, drained_bytes, left_out_bytes }
    }

    /// Whether the version whose record is at `place` is in the index and no newer one is `above` it. It must not be
    /// among those that are known to have left the index.
    fn is_current(&self, key: &[u8], place: Pointer, above: NewestAbove, gc: &dyn GcContext) -> Result<bool> {
        let leads_here = |known: Pointer| known == place || self.forwarding.resolve(known) == place;
        Ok(match above {
            NewestAbove::Separated(known) => leads_here(known),
            NewestAbove::Other => false,
            NewestAbove::Nothing if self.dead.knows_all(place.file) || planted!("forget_who_left_before") => true,
            NewestAbove::Nothing => gc.look_up(key)?.is_some_and(leads_here),
        })
    }

    /// GC has emptied a file, in which it has found so many bytes overwritten. What commits overwrote while it copied
    /// counts where the copies are.
    fn emptied(&self, source: FileId, found_bytes: u64) {
        self.dead.moved(source, |offset| {
            let at = Pointer { file: source, epoch: 0, offset: offset.into(), len: 0 };
            let (to, _) = self.forwarding.next(at)?;
            Some((to.file, u32::try_from(to.offset).ok()?)).filter(|_| !planted!("samples_stay_behind"))
        });
        self.dead.emptied(source, found_bytes);
    }

    /// The versions whose records stand at these places leave the index with the edit that counts this garbage. A file
    /// may be deleted: GC had found what overwrote them.
    fn count_dead(&self, places: &[Pointer], garbage: &mut DeadCounts) {
        let mut offsets: HashMap<FileId, (bool, Vec<u32>)> = HashMap::default();
        for &place in places {
            let of_file = offsets.entry(place.file);
            let (is_there, of_file) = of_file.or_insert_with(|| (self.files.get(place.file).is_some(), Vec::new()));
            if let Ok(offset) = u32::try_from(place.offset) {
                of_file.push(offset);
                if *is_there {
                    garbage.add(place);
                }
            }
        }
        self.dead.left_index(offsets.into_iter().map(|(file, (is_there, offsets))| (file, is_there, offsets)));
    }
}

impl Placement for Streams {
    fn profile(&self) -> Profile {
        let separates_from = Some(self.shared.options.now().separates_from());
        Profile {
            name: "streams",
            separates_from,
            hears_of_short_values: false,
            separates_at_rewrite: false,
            learns_from_rewrites: separates_from,
            finds_overwritten: true,
            reads_by_address: true,
            copies_percent: COPIES_PERCENT,
        }
    }

    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        let shared = &self.shared;
        match op {
            WriteOp::Put { key, value } if value.len() >= shared.options.now().separates_from() => {
                let live_values = || shared.clock.values_in(shared.space().live_bytes);
                self.heads.append((seqno, key, value), &shared.clock, live_values).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Renew::new(&self.shared)))
    }

    fn ingester(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        let (shared, options) = (Arc::clone(&self.shared), self.shared.options.now());
        let files = IngestedFiles::new(&shared.files, options.file_bytes.min(FILE_BYTES_MAX), options.compression);
        Ok(Box::new(IngestedLog::new(files, options.separates_from(), move |bytes| shared.clock.ingested(bytes))))
    }

    fn pick(&self, pressure: &SpacePressure, running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let is_renewing = running.iter().any(|claim| claim.rewrites);
        if pressure.all_before.is_none() && !is_renewing && (self.has_many_rows() || self.shared.followed.is_much()) {
            return Some(Box::new(RenewAll::new(&self.shared)));
        }
        let taken: Vec<FileId> = running.iter().flat_map(|claim| claim.files.iter().copied()).collect();
        let next = self.next(pressure, &taken);
        if next.is_empty() {
            return None;
        }
        let is_short = next.iter().map(|unit| unit.file.len()).sum::<u64>() <= SHORT_BYTES;
        let claim = GcClaim { is_short, ..GcClaim::of(next.iter().map(|unit| unit.file.id).collect()) };
        let live_bytes = next.iter().map(|unit| unit.file.len() - unit.dead).collect();
        Some(Box::new(Move { claim, live_bytes, shared: Arc::clone(&self.shared) }))
    }

    fn space(&self) -> ValueSpace {
        self.shared.space()
    }

    fn read(
        &self,
        files: &ValueFiles,
        (key, _seqno): (&[u8], SeqNo),
        mut pointer: Pointer,
        source: IoSource,
    ) -> Result<Option<Value>> {
        loop {
            if let Some(value) = files.read(key, pointer, source)? {
                return Ok(Some(value));
            }
            match self.follow(pointer) {
                Some(next) => pointer = next,
                None => return Ok(None),
            }
        }
    }

    fn follow(&self, pointer: Pointer) -> Option<Pointer> {
        let (next, _) = self.shared.forwarding.next(pointer)?;
        self.shared.followed.note();
        Some(next)
    }

    fn readers_ask(&self) -> bool {
        self.shared.followed.is_much_for_a_reader()
    }

    fn prefetch(&self, files: &ValueFiles, pointers: &[Pointer]) -> Option<Stretches> {
        if self.shared.forwarding.is_empty() {
            return files.prefetch(pointers);
        }
        files.prefetch(&pointers.iter().map(|&at| self.shared.forwarding.resolve(at)).collect::<Vec<_>>())
    }

    fn count_pointers(&self, edit: &mut ValueEdit) {
        let PointerChanges { dropped, led_by, .. } = std::mem::take(&mut edit.pointers);
        let mut garbage = DeadCounts::default();
        led_by.into_iter().for_each(|(unit, rows)| garbage.add_all(unit, rows * ROW_BYTES, rows));
        let used = |unit| garbage.add_bytes(unit, ROW_BYTES);
        let places = self.shared.forwarding.follow_all(&dropped, used);
        self.shared.count_dead(&places, &mut garbage);
        edit.garbage.extend(garbage.into_garbage());
    }

    fn drained_by(&self, edit: &ValueEdit) -> Vec<(FileId, u64)> {
        self.shared.forwarding.used_up(&edit.garbage)
    }

    fn comes_into_force(&self, edit: &ValueEdit) {
        let Shared { forwarding, clock, files, .. } = &*self.shared;
        edit.removed.iter().for_each(|&file| forwarding.remove(file));
        let added = edit.added.iter().map(|meta| meta.id).filter(|_| !planted!("ingests_do_not_age"));
        clock.came_into_force(added.filter(|id| !edit.removed.contains(id) && files.get(*id).is_some()));
    }

    fn files_were_deleted(&self, files: &ValueFiles) {
        self.shared.dead.forget(files);
        self.shared.clock.forget(|file| files.get(file).is_some());
    }

    fn give_up(&self, files: &ValueFiles, edit: &ValueEdit) {
        edit.added.iter().for_each(|meta| files.remove(meta.id));
    }

    fn note_overwritten(&self, _bytes: u64, find: &dyn Fn() -> Option<(Pointer, u64)>) {
        let found = find().map(|(known, bytes)| (self.shared.forwarding.resolve(known), bytes));
        if let Some((place, bytes)) = found
            && let Ok(offset) = u32::try_from(place.offset)
            && self.shared.files.get(place.file).is_some()
        {
            self.shared.dead.overwrote(place.file, offset, bytes);
        }
    }

    fn memory_bytes(&self) -> u64 {
        let Shared { forwarding, dead, .. } = &*self.shared;
        forwarding.memory_bytes() + dead.memory_bytes() + self.heads.memory_bytes()
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let space = self.shared.space();
        let next: Vec<FileId> = self.next(pressure, &[]).iter().map(|unit| unit.file.id).collect();
        let explain = |unit: Ranked| Explained {
            unit: format!("file {}", unit.file.id),
            files: vec![unit.file.id],
            total_bytes: unit.file.len(),
            live_bytes: unit.file.len() - unit.dead,
            age_bytes: unit.age,
            score: unit.score,
            held: (!next.contains(&unit.file.id)).then(|| pressure.reason(&space)),
        };
        self.ranked(self.sealed()).into_iter().map(explain).chain(self.shared.files.explain_left_out()).collect()
    }

    fn seal(&self, _files: &ValueFiles) {
        self.heads.seal(&self.shared.clock);
    }
}
