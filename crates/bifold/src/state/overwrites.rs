//! Estimates how many bytes of separated values commits overwrite, for placements that would learn this only from
//! rewrites, and late.
//!
//! ```text
//! put, delete ─▶ sampled? ─▶ does it overwrite a separated value in the memtables,
//!                            or (by the filters in memory) a key in the tables? ─▶ Placement::note_overwritten
//! ```
//!
//! * **Sampling** depends on number and length: a record of 1000 bytes is sampled once in 33 times and then stands
//!   for 32 KiB, one of 32 KiB and more is sampled each time and stands for itself. So the lookups cost little
//!   compared with the bytes that are written, and the sum is off by √n of n such pieces at most: 100 MiB are 3200, ±
//!   1.8 %.
//! * **Short values** that stay inline may overwrite long ones, and long ones short ones. So short puts are sampled,
//!   too, by the mean length, in which short values count as nothing: where long ones are rare, so are lookups. What
//!   they overwrite in memtables says itself how much it is, and so does a record of the tables if the placement looks
//!   it up. If it does not, only long values count for what they overwrite in tables, as much as they have themselves:
//!   about as many of them overwrite short values as short ones overwrite long values.
//! * **The lookup** uses memory only, and does not ask whether the value is live: any version of the key, deleted or
//!   not, is one that some rewrite will drop. A filter that is not in memory says yes.
//! * **Ingests** are sampled when they are written, and looked up when they have arrived (`overwrites/ingested.rs`).

mod ingested;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bifold_contract::{Entry, Error, IoSource, Kind, Pointer, SeqNo, planted};
use bifold_format::{filter::key_hash, pointer};
use bifold_index::lookup::{Lookup, LookupCounters};
use bifold_values::placement::Profile;

pub(crate) use self::ingested::{IngestSamples, SampledEntry};
use crate::state::{
    op::{Act, Op},
    tree::{Tree, View},
};

/// A sampled record stands for two to the power of this many bytes, or for itself if it is longer.
const SAMPLE_BITS: u32 = 15;

/// 2 to the power of 64 divided by the golden ratio: its multiples are spread evenly, over any sequence of numbers.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// In the mean length of records this many puts count as much as all before them.
const MEAN_OVER: u64 = 64;

/// Statistics of a tree's puts.
#[derive(Debug)]
pub(crate) struct Overwrites {
    /// Values of this length and above are separated, at once or when their memtable is written.
    separated_from: AtomicUsize,
    /// Recent mean length of their records, in bytes: a delete does not say how much it overwrites.
    mean_bytes: AtomicU64,
    /// Samples whose older version could not be read.
    unread: AtomicU64,
    /// The placement looks up where the overwritten record of a sample is.
    are_found: bool,
}

impl Overwrites {
    /// For a tree with this many bytes of live values and this many entries; `None` if its placement need not know.
    pub fn of(profile: &Profile, live_bytes: u64, entries: u64) -> Option<Self> {
        Some(Self {
            separated_from: AtomicUsize::new(profile.learns_from_rewrites?),
            mean_bytes: AtomicU64::new(live_bytes / entries.max(1)),
            unread: AtomicU64::new(0),
            are_found: profile.finds_overwritten,
        })
    }

    /// From now on values of this length and above are separated.
    pub fn are_separated_from(&self, separated_from: usize) {
        self.separated_from.store(separated_from, Relaxed);
    }

    /// Whether no value of this length that stays inline is sampled: none was separated so far that it might overwrite.
    pub fn ignore(&self, len: usize) -> bool {
        len < self.separated_from.load(Relaxed) && self.mean_bytes.load(Relaxed) == 0
    }

    fn separates(&self, len: usize) -> bool {
        len >= self.separated_from.load(Relaxed)
    }

    /// How many samples could not be read.
    pub fn unread(&self) -> u64 {
        self.unread.load(Relaxed)
    }

    /// An ingest of so many entries has brought so many bytes of separated values, which short ones may overwrite.
    pub fn ingested(&self, bytes: u64, entries: u64) {
        self.mean_bytes.fetch_max(bytes.div_ceil(entries.max(1)), Relaxed);
    }

    fn put(&self, bytes: u64) {
        let mean = self.mean_bytes.load(Relaxed);
        let new = if mean == 0 { bytes } else { (mean * (MEAN_OVER - 1) + bytes).div_ceil(MEAN_OVER) };
        self.mean_bytes.store(new, Relaxed);
    }
}

/// How many bytes the operation with this number and length stands for; `None` if it is not sampled. Pure.
fn sampled_bytes(seqno: SeqNo, bytes: u64) -> Option<u64> {
    let stands_for = bytes.max(1 << SAMPLE_BITS);
    (seqno.wrapping_mul(GOLDEN) >> (u64::BITS - SAMPLE_BITS) < bytes).then_some(stands_for)
}

/// A sampled operation.
pub(crate) struct Sampled<'a> {
    tree: &'a Tree,
    key: &'a [u8],
    seqno: SeqNo,
    /// The length that it was sampled by, not 0, and what that stands for.
    own_bytes: u64,
    bytes: u64,
    /// It is a value that stays inline.
    is_short: bool,
}

/// The version that an operation overwrites.
enum Older {
    /// A separated value in the memtables, or one that its flush separates, of this many bytes.
    Long(u64),
    /// Something else in the memtables.
    Other,
    /// There is none in the memtables.
    Below,
}

impl Op<'_> {
    /// Decides whether to sample it, after its value was written to `pointer`.
    pub fn sample(&self, seqno: SeqNo, pointer: Option<Pointer>) -> Option<Sampled<'_>> {
        let overwrites = self.tree.overwrites.as_ref()?;
        let mut is_short = false;
        let bytes = match (self.act, pointer) {
            (_, Some(pointer)) => {
                overwrites.put(u64::from(pointer.len));
                u64::from(pointer.len)
            }
            // It will be separated when its memtable is written.
            (Act::Put(value) | Act::PutUntil(value, _), None) if overwrites.separates(value.len()) => {
                let bytes = self.bytes();
                overwrites.put(bytes);
                bytes
            }
            (Act::Delete | Act::Large(..), None) => overwrites.mean_bytes.load(Relaxed),
            (Act::Put(_) | Act::PutUntil(..), None) if !planted!("short_values_overwrite_nothing") => {
                is_short = true;
                overwrites.put(0);
                overwrites.mean_bytes.load(Relaxed)
            }
            _ => return None,
        };
        let (tree, key, own_bytes) = (self.tree, self.key, bytes);
        sampled_bytes(seqno, bytes).map(|bytes| Sampled { tree, key, seqno, own_bytes, bytes, is_short })
    }
}

impl Sampled<'_> {
    /// Reports to the placement how much it overwrites. Its memtable has it already, and no other commit is under
    /// way.
    pub fn report(&self) {
        let Some(overwrites) = &self.tree.overwrites else { return };
        // One view for both questions: a flush between two would make this its own older version.
        let (view, key_hash) = (self.tree.view(), key_hash(self.key));
        let bytes = match self.older(overwrites, &view, key_hash) {
            Older::Long(len) => self.stands_for(len),
            Older::Other => return,
            Older::Below if self.is_short && !overwrites.are_found => return,
            // What the older version overwrote was counted when that one was written.
            Older::Below if view.version.may_contain_as_held(self.key, key_hash) => self.bytes,
            Older::Below => return,
        };
        let found = || self.find_older(overwrites).map(|older| (older, self.stands_for(u64::from(older.len))));
        self.tree.placement().note_overwritten(bytes, &found);
    }

    /// How many overwritten bytes it stands for, if it overwrites so many itself.
    fn stands_for(&self, len: u64) -> u64 {
        len.saturating_mul(self.bytes) / self.own_bytes
    }

    /// Where the record of the version that it overwrites stands; `None` too if that cannot be read. Then an estimate
    /// is less exact, and the failure is counted.
    fn find_older(&self, overwrites: &Overwrites) -> Option<Pointer> {
        let (view, snapshot, key_hash) = (self.tree.view(), self.seqno - 1, key_hash(self.key));
        let in_memtables = view.layers().find_map(|layer| layer.memtable.get_hashed(self.key, key_hash, snapshot));
        if let Some(entry) = in_memtables {
            return address_in(&entry);
        }
        let lookup = Lookup {
            key: self.key,
            key_hash,
            snapshot,
            covered_by: 0,
            after: 0,
            source: IoSource::Gc,
            locator: view.version.locator(),
        };
        let count = |_: &Error| {
            overwrites.unread.fetch_add(1, Relaxed);
        };
        let found = view.version.get(&lookup, &LookupCounters::default()).inspect_err(count).ok()??;
        address_in(&Entry { key: self.key, seqno: found.seqno, kind: found.kind, payload: &found.payload })
    }

    fn older(&self, overwrites: &Overwrites, view: &View, key_hash: u64) -> Older {
        let older = view.layers().enumerate().find_map(|(layers_above, layer)| {
            let entry = layer.memtable.get_hashed(self.key, key_hash, self.seqno - 1)?;
            // What is below an operand is overwritten only now.
            (entry.kind != Kind::Operand).then(|| match address_in(&entry) {
                Some(address) => Older::Long(u64::from(address.len)),
                // A value overwritten within one memtable is dropped before it is separated.
                None if entry.kind.plain() == Kind::Inline
                    && layers_above > 0
                    && overwrites.separates(entry.payload.len()) =>
                {
                    Older::Long(entry.payload.len() as u64)
                }
                None => Older::Other,
            })
        });
        older.unwrap_or(Older::Below)
    }
}

/// Where the value of an entry is, if it is separated.
fn address_in(entry: &Entry<'_>) -> Option<Pointer> {
    let entry = entry.plain();
    (entry.kind == Kind::Pointer).then(|| pointer::decode(entry.payload).ok())?
}

#[cfg(test)]
mod tests {
    use bifold_io::{Env, memory::MemoryFs};

    use super::*;
    use crate::{Db, KeyspaceOptions, Options, PlacementKind, settings::options::Values};

    #[test]
    fn samples_stand_for_all_records_whatever_the_lengths_and_the_order() {
        let lengths: [fn(u64) -> u64; 5] = [|_| 100, |_| 1000, |n| 1 + n * 37 % 5000, |_| 40_000, |n| 30 << (n % 12)];
        for (case, length) in lengths.into_iter().enumerate() {
            for step in [1, 2, 3, 64, 100] {
                let rows = || (0..40_000).map(|n| (7 + n * step, length(n)));
                let all: u64 = rows().map(|(_, bytes)| bytes).sum();
                let sampled: u64 = rows().filter_map(|(seqno, bytes)| sampled_bytes(seqno, bytes)).sum();
                let off = sampled.abs_diff(all) as f64 / all as f64;
                assert!(off < 0.05, "case {case}, each {step}th: {sampled} for {all}");
            }
        }
        assert!((0..1000).all(|seqno| sampled_bytes(seqno, 1 << SAMPLE_BITS) == Some(1 << SAMPLE_BITS)));
        assert!((0..1000).all(|seqno| sampled_bytes(seqno, 0).is_none()));
    }

    fn open(fs: &MemoryFs, placement: PlacementKind) -> Db {
        let values = Values { space_target: 100.0, ..Values::default() };
        let keyspace = KeyspaceOptions { placement, values, ..KeyspaceOptions::default() };
        let env = Env { fs: std::sync::Arc::new(fs.clone()), ..Env::system() };
        let options = Options { workers: crate::Workers::Caller, keyspace, ..Options::default() };
        Db::open_in(env, "/db", options).unwrap()
    }

    /// The stale estimate, in values of 1000 bytes.
    fn stale(db: &Db) -> u64 {
        let tree = db.default_keyspace().tree();
        tree.placement().stale_bytes(&db.engine().space.pressure(tree)) / 1040
    }

    /// Not in step with the numbers that are sampled.
    fn mixed(n: u64) -> u64 {
        (n ^ n << 13).wrapping_mul(0xC2B2_AE3D_27D4_EB4F) >> 40
    }

    fn near(found: u64, expected: u64) {
        assert!(found.abs_diff(expected) <= 150 + expected / 16, "{found} values are estimated stale, not {expected}");
    }

    #[test]
    fn the_placement_knows_what_commits_overwrite_before_a_merge_finds_it() {
        let fs = MemoryFs::new();
        let db = open(&fs, PlacementKind::NovKv);
        let key = |n: u64| n.wrapping_mul(GOLDEN).to_be_bytes();
        let put = |db: &Db, keys: std::ops::Range<u64>| keys.for_each(|n| db.put(key(n), [1; 1000]).unwrap());
        put(&db, 0..4000);
        db.flush().unwrap();
        put(&db, 4000..8000);
        assert!(stale(&db) < 100, "new keys overwrite nothing: {}", stale(&db));
        put(&db, 6000..8000);
        near(stale(&db), 2000);
        db.flush().unwrap();
        assert!(stale(&db) < 150, "the flush has found both: {}", stale(&db));
        put(&db, 0..2000);
        (2000..3000).for_each(|n| db.delete(key(n)).unwrap());
        near(stale(&db), 3000);
        db.flush().unwrap();
        near(stale(&db), 3000);
        drop(db);
        let db = open(&fs, PlacementKind::NovKv);
        assert!(stale(&db) >= 3000, "after opening as much as possible: {}", stale(&db));
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        assert_eq!(stale(&db), 0);
        (3000..4000).for_each(|n| db.delete(key(n)).unwrap());
        near(stale(&db), 1000);
        assert_eq!(db.stats().gc.index_lookups, 0);
    }

    /// A flush finds all of it, and what it finds is subtracted from the estimate.
    #[test]
    fn what_short_values_overwrite_in_memtables_counts_until_the_flush() {
        let db = open(&MemoryFs::new(), PlacementKind::NovKv);
        let put = |n: u64, len: usize| db.put(n.wrapping_mul(GOLDEN).to_be_bytes(), vec![1; len]).unwrap();
        let half_of_them_short = |round: u64| {
            (0..8000).for_each(|n| put(n, if mixed(n + round * 1_000_003).is_multiple_of(2) { 10 } else { 1000 }));
        };
        half_of_them_short(0);
        half_of_them_short(1);
        near(stale(&db), 4000);
        db.flush().unwrap();
        assert!(stale(&db) < 400, "the flush has found them: {}", stale(&db));
        // In tables, what long values overwrite stands for what short ones do.
        half_of_them_short(2);
        near(stale(&db), 4000);
    }

    /// Each sample costs a lookup in the index.
    #[test]
    fn short_values_are_sampled_as_rarely_as_long_ones_are_put() {
        let profile = Profile {
            name: "finds",
            separates_from: Some(192),
            hears_of_short_values: false,
            separates_at_rewrite: false,
            learns_from_rewrites: Some(192),
            finds_overwritten: true,
            reads_by_address: true,
            copies_percent: 25,
        };
        let overwrites = Overwrites::of(&profile, 0, 0).unwrap();
        let mut sampled = 0;
        for seqno in 0..100_000 {
            overwrites.put(if seqno % 1000 == 0 { 100_000 } else { 0 });
            sampled += u64::from(sampled_bytes(seqno, overwrites.mean_bytes.load(Relaxed)).is_some());
        }
        assert!((100..1000).contains(&sampled), "{sampled} of 100000, of which 100 are long");
    }

    /// Right after the ingest: no commit has said how long values are.
    #[test]
    fn what_short_values_overwrite_of_an_ingest_is_estimated() {
        let db = open(&MemoryFs::new(), PlacementKind::Streams);
        let mut ingest = db.default_keyspace().ingest().unwrap();
        (0..4000u64).for_each(|n| ingest.put(n.to_be_bytes(), [1; 1000]).unwrap());
        ingest.finish().unwrap();
        let live = || db.default_keyspace().tree().placement().space().live_bytes;
        let before = live();
        assert!(before >= 4000 * 1000, "{before}");
        (0..3000u64).for_each(|n| db.put(n.to_be_bytes(), "short").unwrap());
        assert!(live().abs_diff(before / 4) < before / 8, "{} of {before}", live());
    }

    /// Half of its entries are new. Filters do not say which: they know all its keys once it has arrived.
    #[test]
    fn what_an_ingest_overwrites_is_estimated() {
        let mut told = 0;
        for placement in PlacementKind::ALL {
            let db = open(&MemoryFs::new(), placement);
            if db.default_keyspace().tree().overwrites.is_none() {
                continue;
            }
            told += 1;
            (0..4000u64).for_each(|n| db.put(n.to_be_bytes(), [1; 1000]).unwrap());
            db.flush().unwrap();
            db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
            assert_eq!(stale(&db), 0, "{placement:?}");
            let live = || db.default_keyspace().tree().placement().space().live_bytes / 1040 - stale(&db);
            let expect =
                |values: u64| assert!(live().abs_diff(values) < 300, "{placement:?}: {}, not {values}", live());
            expect(4000);
            let mut ingest = db.default_keyspace().ingest().unwrap();
            (2000..6000u64).for_each(|n| ingest.put(n.to_be_bytes(), [2; 1000]).unwrap());
            assert_eq!(ingest.finish().unwrap().level, 0, "{placement:?}");
            expect(6000);
        }
        assert_eq!(told, 3);
    }

    /// Half of the updates are short, whatever they overwrite.
    #[test]
    fn what_short_values_overwrite_is_estimated_by_its_length() {
        let db = open(&MemoryFs::new(), PlacementKind::Streams);
        let put = |n: u64, len: u64| db.put((n % 10_000).to_be_bytes(), vec![1; len as usize]).unwrap();
        let len = |n: u64| if mixed(n).is_multiple_of(2) { 10 } else { 500 + mixed(n) % 2000 };
        for n in 0..30_000 {
            put(n, len(n));
            if n == 9_999 {
                db.flush().unwrap();
            }
        }
        let live = (20_000..30_000).map(len).filter(|&len| len > 10).map(|len| len + 45).sum::<u64>();
        let estimated = db.default_keyspace().tree().placement().space().live_bytes;
        assert!(estimated.abs_diff(live) < live / 8, "{estimated} of {live}");
    }
}
