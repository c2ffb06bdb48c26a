//! How much of a sequence of value files is dead, from a sample of their records that is looked up in the index.
//!
//! ```text
//! log   oldest ─▶ ┃      ·       ·   ┃  ·      ·    ┃ ·     ·      · ┃ ◀─ newest that is sealed
//!                        points; for each the next whole record: is its address still the current one?
//! ```
//!
//! * **Points** are the multiples of the golden ratio, modulo the log's length: any number of consecutive ones is
//!   spread evenly over the log, and no two looks sample the same ones.
//! * **Error.** A share `p` estimated from `n` records has a standard deviation of √(p(1 - p) / n): with 512 at most
//!   2.2 % of the log. Records are weighted by their length.
//! * **Cost.** A look makes at most `POINTS_MAX` lookups, and reads at most a 64th of the log (or 4 MiB, and a record).
//! * **Between looks** what GC frees is subtracted, and what is written is taken to replace values at the same rate as
//!   before. [`GarbageEstimate::dead_at_most`] takes all of it to replace something.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{IoSource, Pointer, Result};
use bifold_format::{
    frame::{self, HEADER_BYTES},
    value::ValueKind,
};

use super::{
    scan::{Met, Scan},
    sync::LockExt,
    value_files::ValueFile,
};
use crate::placement::IndexView;

/// Records of one look.
const POINTS_MAX: u64 = 512;

/// Records are searched for in pieces of this size. A log has one point for each of them, if it is short.
const PIECE_BYTES: usize = 1 << 10;

/// A look reads at most this share of the log.
const READ_SHARE: u64 = 64;

/// It may always read this much, for logs of long values.
const READ_BYTES_MIN: u64 = 4 << 20;

/// A deleted key counts as at most so many possibly dead bytes: a look is never due after a few deletes.
const DELETED_BYTES_MAX: u64 = 16 << 10;

/// 2 to the power of 64, by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The rate is averaged over the looks in which this share of the log was written.
const RATE_SHARE: u64 = 8;

/// What is known of the garbage in sealed files.
#[derive(Debug, Default)]
pub struct GarbageEstimate {
    /// Bytes that were written or deleted, ever.
    written: AtomicU64,
    last: Mutex<LookResult>,
}

/// The result of a look.
#[derive(Debug, Default)]
struct LookResult {
    /// Dead bytes, without those freed since.
    dead: u64,
    /// Bytes that died for each byte written.
    rate: f64,
    /// [`GarbageEstimate::written`] when it began, and the bytes that GC took since.
    written: u64,
    collected: u64,
    /// Mean length of the records.
    mean: u64,
    /// The first point of the next look.
    next_point: u64,
}

impl GarbageEstimate {
    /// An estimate for files with so many bytes, of which nothing is known.
    #[must_use]
    pub fn of_unknown(bytes: u64) -> Self {
        Self { written: AtomicU64::new(bytes), last: Mutex::default() }
    }

    /// The estimated dead bytes.
    #[must_use]
    pub fn dead(&self) -> u64 {
        let last = self.last.hold();
        last.dead + (last.rate * self.written.load(Relaxed).saturating_sub(last.written) as f64) as u64
    }

    /// At most how many bytes may be dead: everything changed since the last look.
    #[must_use]
    pub fn dead_at_most(&self) -> u64 {
        let changed = self.changed();
        self.last.hold().dead.saturating_add(changed)
    }

    /// Bytes that were written, deleted or garbage-collected since the last look.
    #[must_use]
    pub fn changed(&self) -> u64 {
        let last = self.last.hold();
        self.written.load(Relaxed).saturating_sub(last.written) + last.collected
    }

    /// Notes that so many more bytes may be dead: as many were written.
    pub fn change(&self, bytes: u64) {
        self.written.fetch_add(bytes, Relaxed);
    }

    /// Notes that a range delete may have covered so many bytes, which are all that there are. Several count once: the
    /// sum would overflow one day, and then nothing would seem to have changed any more.
    pub fn may_cover(&self, bytes: u64) {
        let covered = self.last.hold().written.saturating_add(bytes);
        self.written.fetch_max(covered, Relaxed);
    }

    /// Notes that a key was deleted.
    pub fn delete(&self) {
        let bytes = self.last.hold().mean.min(DELETED_BYTES_MAX);
        self.change(bytes);
    }

    /// Notes that GC has read so many bytes and freed some of them: nothing is known of the others any more.
    pub fn collect(&self, read: u64, freed: u64) {
        let mut last = self.last.hold();
        last.collected += read;
        last.dead = last.dead.saturating_sub(freed);
    }

    /// Asks the index about a sample of `files`.
    ///
    /// # Errors
    /// I/O errors. Damage is skipped: GC reports it.
    pub fn look(&self, files: &[Arc<ValueFile>], index: &dyn IndexView) -> Result<()> {
        let written = self.written.load(Relaxed);
        let first = self.last.hold().next_point;
        let sample = Sample::take(files, first, index)?;
        let (dead, mut last) = (sample.dead_bytes(), self.last.hold());
        let new = written.saturating_sub(last.written).max(1) as f64;
        let rate = (dead as f64 - last.dead as f64) / new;
        let weight = new / (new + (sample.all / RATE_SHARE) as f64);
        let rate = (last.rate + (rate - last.rate) * weight).clamp(0.0, 1.0);
        *last = LookResult { dead, rate, written, collected: 0, mean: sample.mean(), next_point: first + POINTS_MAX };
        Ok(())
    }
}

/// Records that were asked about.
#[derive(Default)]
struct Sample {
    /// Bytes of all files.
    all: u64,
    /// Records, their bytes, and the bytes of those that are dead.
    records: u64,
    bytes: u64,
    dead: u64,
    /// Bytes read to find them.
    read: u64,
}

impl Sample {
    fn take(files: &[Arc<ValueFile>], first: u64, index: &dyn IndexView) -> Result<Self> {
        let ends: Vec<u64> = files
            .iter()
            .scan(0, |end, file| {
                *end += file.len();
                Some(*end)
            })
            .collect();
        let all = ends.last().copied().unwrap_or(0);
        let mut sample = Self { all, ..Self::default() };
        let points = all.div_ceil(PIECE_BYTES as u64).min(POINTS_MAX);
        for point in first..first + points {
            let at = ((u128::from(point.wrapping_mul(GOLDEN)) * u128::from(all)) >> u64::BITS) as u64;
            let nth = ends.partition_point(|&end| end <= at);
            if let Some(file) = files.get(nth) {
                sample.ask(file, at - (ends[nth] - file.len()), index)?;
            }
            if sample.read > (all / READ_SHARE).max(READ_BYTES_MIN) {
                break;
            }
        }
        Ok(sample)
    }

    /// Asks about the first record that begins at `offset` or behind it.
    fn ask(&mut self, file: &ValueFile, offset: u64, index: &dyn IndexView) -> Result<()> {
        let Some((offset, span)) = self.find(file, offset)? else { return Ok(()) };
        let end = offset.saturating_add(span).min(file.len());
        self.read += end - offset;
        let mut scan = Scan::new(file, offset, end, IoSource::Gc);
        let Met::Record(record, len) = scan.step()? else { return Ok(()) };
        let pointer = Pointer { file: file.id, epoch: 0, offset, len };
        let current = match index.look_up(record.key) {
            // It stays unknown; GC reports the damage.
            Err(error) if error.is_unreadable() => return Ok(()),
            current => current?,
        };
        let is_live = record.kind == ValueKind::Value && current == Some(pointer);
        self.records += 1;
        self.bytes += u64::from(len);
        self.dead += if is_live { 0 } else { u64::from(len) };
        Ok(())
    }

    /// Where that record begins, and how long it says it is.
    fn find(&mut self, file: &ValueFile, offset: u64) -> Result<Option<(u64, u64)>> {
        let mut piece = [0; PIECE_BYTES];
        let mut at = offset.max(file.start());
        while at + (HEADER_BYTES as u64) < file.len() {
            let len = usize::try_from(file.len() - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            let bytes = &mut piece[..len];
            file.reader().read_at(bytes, at, IoSource::Gc)?;
            self.read += len as u64;
            if let Some((skip, span)) = frame::find_header(bytes, file.id, at) {
                return Ok(Some((at + skip as u64, span)));
            }
            // A header may begin at the end of this piece.
            at += (len - HEADER_BYTES + 1) as u64;
        }
        Ok(None)
    }

    /// Dead bytes of all files.
    fn dead_bytes(&self) -> u64 {
        (self.all as f64 * self.dead as f64 / self.bytes.max(1) as f64) as u64
    }

    fn mean(&self) -> u64 {
        self.bytes / self.records.max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bifold_format::value::{self, Stored};
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::parts::value_files::{ValueFiles, scratch::value_files};

    /// An index that knows all addresses except those of keys that begin with `d`.
    struct Index<'a> {
        files: &'a ValueFiles,
        asked: Cell<u64>,
    }

    impl IndexView for Index<'_> {
        fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
            self.asked.set(self.asked.get() + 1);
            let place = |at: usize| u64::from_be_bytes(*key[at..].first_chunk().unwrap());
            let (file, offset) = (place(1), place(9));
            let len = u32::from_be_bytes(*key[17..].first_chunk().unwrap());
            assert!(self.files.get(file).is_some());
            Ok((key[0] != b'd').then_some(Pointer { file, epoch: 0, offset, len }))
        }
    }

    fn files() -> (MemoryFs, ValueFiles) {
        let fs = MemoryFs::new();
        let files = value_files(&fs, 100);
        (fs, files)
    }

    /// Appends a record whose key says where it is and whether it is dead.
    fn append(files: &ValueFiles, file: &Arc<ValueFile>, bytes: usize, is_dead: bool) -> u64 {
        let mut record = Vec::new();
        let mut key = vec![if is_dead { b'd' } else { b'l' }];
        key.extend(file.id.to_be_bytes());
        key.extend(file.len().to_be_bytes());
        key.extend([0; 4]);
        let encode = |record: &mut Vec<u8>, key: &[u8]| {
            record.clear();
            let body = vec![7; bytes];
            value::encode(record, (file.id, file.len()), ValueKind::Value, 1, key, Stored::plain(&body));
        };
        encode(&mut record, &key);
        let len = record.len() as u32;
        key[17..].copy_from_slice(&len.to_be_bytes());
        encode(&mut record, &key);
        files.append(file, &record).unwrap();
        u64::from(len)
    }

    /// A log with three quarters of its older half and a tenth of the other half dead. Returns the dead bytes.
    fn fill(files: &ValueFiles, records: u64, bytes: impl Fn(u64) -> usize) -> u64 {
        let mut dead = 0;
        for file_no in 0..10 {
            let file = files.begin(0).unwrap();
            for n in 0..records {
                let draw = (file_no * records + n).wrapping_mul(GOLDEN) >> 32;
                let is_dead = draw % 100 < if file_no < 5 { 75 } else { 10 };
                let len = append(files, &file, bytes(n), is_dead);
                dead += if is_dead { len } else { 0 };
            }
        }
        dead
    }

    #[test]
    fn an_estimate_is_about_right_whatever_the_lengths() {
        let lengths: [fn(u64) -> usize; 4] = [|_| 100, |_| 1000, |n| (n * 37 % 1700) as usize, |_| 8_000];
        for (case, bytes) in lengths.into_iter().enumerate() {
            let (_fs, files) = files();
            let dead = fill(&files, 300, bytes);
            let (_, all, _) = files.sizes();
            let estimate = GarbageEstimate::of_unknown(all);
            for _ in 0..3 {
                let index = Index { files: &files, asked: Cell::new(0) };
                estimate.look(&files.in_use(), &index).unwrap();
                let off = estimate.dead().abs_diff(dead) as f64 / all as f64;
                assert!(off < 0.08, "case {case}: {dead} of {all} bytes are dead, not {}", estimate.dead());
                assert!((1..=POINTS_MAX).contains(&index.asked.get()));
                assert_eq!(estimate.changed(), 0);
            }
        }
    }

    #[test]
    fn what_is_collected_is_dead_no_more_and_looked_at_again() {
        let (_fs, files) = files();
        fill(&files, 100, |_| 1000);
        let estimate = GarbageEstimate::of_unknown(5);
        assert_eq!((estimate.dead(), estimate.changed()), (0, 5));
        estimate.look(&files.in_use(), &Index { files: &files, asked: Cell::new(0) }).unwrap();
        let before = estimate.dead();
        estimate.collect(1000, 700);
        assert_eq!((estimate.dead(), estimate.changed()), (before - 700, 1000));
        estimate.delete();
        assert!((2000..2100).contains(&estimate.changed()), "a delete counts as a record");
    }

    #[test]
    fn any_number_of_range_deletes_covers_all_bytes_once() {
        let (all, estimate) = (u64::MAX / 4, GarbageEstimate::of_unknown(0));
        for _ in 0..10 {
            estimate.may_cover(all);
            assert_eq!(estimate.changed(), all);
        }
        estimate.change(5);
        assert_eq!((estimate.changed(), estimate.dead_at_most()), (all + 5, all + 5));
    }

    #[test]
    fn a_look_passes_over_damage_and_reads_few_long_values() {
        let (fs, files) = files();
        let dead = fill(&files, 20, |_| 100_000);
        let (_, all, _) = files.sizes();
        let file = files.in_use().pop().unwrap();
        let span = (file.len() - file.start()) / 20;
        (0..20).for_each(|n| fs.flip_bit(file.reader().path(), (file.start() + n * span + n % 2 * 50) * 8));
        let sample = Sample::take(&files.in_use(), 0, &Index { files: &files, asked: Cell::new(0) }).unwrap();
        assert!(sample.read < READ_BYTES_MIN + (2 << 20), "{} bytes were read", sample.read);
        assert!(sample.records > 10 && sample.dead_bytes() < all && dead < all);
    }

    #[test]
    fn nothing_is_asked_where_there_is_nothing() {
        let (_fs, files) = files();
        let estimate = GarbageEstimate::default();
        for _ in 0..2 {
            let index = Index { files: &files, asked: Cell::new(0) };
            estimate.look(&files.in_use(), &index).unwrap();
            assert_eq!((estimate.dead(), index.asked.get()), (0, 0));
            files.begin(0).unwrap();
        }
    }
}
