//! Your own placement: an append-only log with garbage collection, written with the public interface alone.
//!
//! ```text
//! oldest ─▶ file │ file │ … │ file ◀─ newest: commits append here
//!           GC takes the files with most garbage, looks up in the index which of their values are current, copies
//!           those to a new file, and commits their new addresses. Then the engine deletes the old files.
//! ```
//!
//! It learns what is dead from flush and compaction alone; with a `GarbageEstimate` it would know earlier.
//! `cargo run -p bifold --example own_placement` uses it; a test of `bifold-conformance` runs the battery on it.

use std::sync::{Arc, Mutex, PoisonError};

use bifold::{
    Db, Options, Result, SeqNo,
    placement::{
        CountDead, Explained, FileId, GcClaim, GcContext, GcJob, GcOutcome, Placement, Pointer, Profile, Registry,
        RewriteJob, Rewriter, Settings, SpacePressure, ValueFile, ValueFiles, ValueLog, ValueSpace, WriteOp, relocate,
    },
};

/// What the manifest calls it.
pub const NAME: &str = "append_only";

/// One GC run takes at most so many files: enough to be worth a sync.
const FILES_AT_ONCE: usize = 4;

/// GC takes no file with less garbage than this share of it, unless everything is requested.
const DEAD_SHARE_MIN: f64 = 0.1;

/// All values of at least `separate_from_bytes`, in the order of arrival.
pub struct AppendOnly {
    files: Arc<ValueFiles>,
    log: ValueLog,
    options: Settings,
    /// Files that GC reads or writes now.
    busy: Arc<Mutex<Vec<FileId>>>,
}

impl AppendOnly {
    /// Opens it over the files of a keyspace, for [`Registry::with`].
    pub fn open(files: &Arc<ValueFiles>, options: &Settings) -> Result<Box<dyn Placement>> {
        Ok(Box::new(Self {
            files: Arc::clone(files),
            log: ValueLog::new(Arc::clone(files), options),
            options: options.clone(),
            busy: Arc::default(),
        }))
    }

    /// The files that GC may take, oldest first: nothing appends to them, and they can be read.
    fn sealed(&self) -> Vec<Arc<ValueFile>> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut files, left_out) = (self.log.sealed(), self.files.left_out_files());
        files.retain(|file| !busy.contains(&file.id) && !left_out.contains(&file.id));
        files
    }

    /// What GC takes next: the files with most garbage while space exceeds its target, or the oldest if all
    /// are requested.
    fn next(&self, pressure: &SpacePressure) -> Vec<Arc<ValueFile>> {
        let (mut files, space) = (self.sealed(), self.space());
        if let Some(before) = pressure.all_before {
            files.retain(|file| file.id < before);
        } else if pressure.excess(&space) == 0 || pressure.is_pinned(&space) {
            files.clear();
        } else {
            files.retain(|file| dead_share(file) >= DEAD_SHARE_MIN);
            // Each share is read once, because merges change it. The bits of floats from 0 on are in their order.
            files.sort_by_cached_key(|file| file.valid_share().to_bits());
        }
        files.truncate(FILES_AT_ONCE);
        files
    }
}

/// How much of a file is known to be dead, 0 to 1.
fn dead_share(file: &ValueFile) -> f64 {
    1.0 - file.valid_share()
}

impl Placement for AppendOnly {
    fn profile(&self) -> Profile {
        let separates_from = Some(self.options.now().separates_from());
        Profile {
            name: NAME,
            separates_from,
            hears_of_short_values: false,
            separates_at_rewrite: false,
            learns_from_rewrites: None,
            finds_overwritten: false,
            reads_by_address: true,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    /// The value is in its file before the log record that points there is written.
    fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
        match op {
            WriteOp::Put { key, value } if value.len() >= self.options.now().separates_from() => {
                self.log.append(seqno, key, value).map(Some)
            }
            // GC looks keys up in the index, so a file need not know of deletes.
            WriteOp::Put { .. } | WriteOp::Delete { .. } | WriteOp::DeleteRange { .. } => Ok(None),
        }
    }

    /// Flush and compaction count what they drop as dead in its file; the manifest records it.
    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(CountDead::default()))
    }

    fn pick(&self, pressure: &SpacePressure, _running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        let sources = self.next(pressure);
        let live_bytes = sources.iter().map(|file| file.len() - file.dead()).collect();
        let claim = GcClaim::alone(sources.iter().map(|file| file.id).collect());
        let (files, busy) = (Arc::clone(&self.files), Arc::clone(&self.busy));
        let job = Relocate { claim, live_bytes, file_bytes: self.options.now().file_bytes, files, busy };
        (!sources.is_empty()).then(|| Box::new(job) as _)
    }

    fn space(&self) -> ValueSpace {
        let (files, total_bytes, drained_bytes) = self.files.sizes();
        let left_out_bytes = self.files.left_out_bytes();
        let live_bytes = (total_bytes - drained_bytes).saturating_sub(self.files.dead_bytes()).max(left_out_bytes);
        ValueSpace { files, total_bytes, live_bytes, drained_bytes, left_out_bytes }
    }

    fn explain(&self, pressure: &SpacePressure) -> Vec<Explained> {
        let (next, files, space) = (self.next(pressure), self.sealed(), self.space());
        let explain = |(at, file): (usize, &Arc<ValueFile>)| Explained {
            unit: format!("file {}", file.id),
            files: vec![file.id],
            total_bytes: file.len(),
            live_bytes: file.len() - file.dead(),
            age_bytes: files[at..].iter().map(|later| later.len()).sum(),
            score: dead_share(file),
            held: next.iter().all(|taken| taken.id != file.id).then(|| pressure.reason(&space)),
        };
        files.iter().enumerate().map(explain).chain(self.files.explain_left_out()).collect()
    }

    /// A checkpoint links the files: the next value goes to a new one.
    fn seal(&self, _files: &ValueFiles) {
        self.log.seal();
    }
}

/// A GC run: moves what is current out of some files.
struct Relocate {
    claim: GcClaim,
    /// Of each file, at most how much is copied.
    live_bytes: Vec<u64>,
    file_bytes: u64,
    files: Arc<ValueFiles>,
    busy: Arc<Mutex<Vec<FileId>>>,
}

impl GcJob for Relocate {
    fn claim(&self) -> &GcClaim {
        &self.claim
    }

    fn run(&self, gc: &dyn GcContext) -> Result<GcOutcome> {
        // The files whose copies the disk has room for.
        let sources = &self.claim.files[..gc.fit(&self.live_bytes)?];
        let done = relocate(&self.files, &self.busy, (sources, self.file_bytes), gc)?;
        Ok(GcOutcome::freed(done.map_or(0, |done| done.freed_bytes)))
    }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("bifold-own-placement-{}", std::process::id()));
    let mut options = Options { memtable_bytes: 256 << 10, ..Options::default() };
    options.placements = Registry::default().with(NAME, AppendOnly::open)?;
    options.keyspace.placement = bifold::PlacementKind::own(NAME)?;
    (options.keyspace.values.file_bytes, options.keyspace.values.space_target) = (256 << 10, 1.5);
    let db = Db::open_with(&dir, options.clone())?;

    let put = |key: u32, round: u32| db.put(format!("key {key:05}"), vec![round as u8; 500 + key as usize % 100]);
    (0..4000).try_for_each(|key| put(key, 0))?;
    print_space(&db, "written once");
    (1..5).try_for_each(|round| (0..4000).step_by(round as usize).try_for_each(|key| put(key, round)))?;
    db.wait_idle()?;
    print_space(&db, "overwritten, with GC whenever the space target is exceeded");
    for unit in db.explain_garbage() {
        println!("  {}: {:.0} % dead, {}", unit.unit, 100.0 * unit.score, unit.held.unwrap_or("taken next"));
    }
    db.compact()?;
    print_space(&db, "compacted: merges found the rest of what is dead, and GC took every file");
    assert!(db.stats().space.dead_values_estimate * 10 < db.stats().space.values_bytes);
    db.close()?;

    println!("without the placement: {:?}", Db::open(&dir).err().map(|error| error.to_string()));
    assert_eq!(Db::open_with(&dir, options)?.get("key 00001")?.as_deref(), Some(&[1; 501][..]));
    std::fs::remove_dir_all(dir).ok();
    Ok(())
}

fn print_space(db: &Db, when: &str) {
    let (space, gc) = (db.stats().space, db.stats().gc);
    let [all, live] = [space.values_bytes, space.live_values_estimate].map(|bytes| bytes >> 10);
    println!("{when}: {} files of {all} KiB, {live} KiB of it live; {} GC runs", space.value_files, gc.jobs);
}
