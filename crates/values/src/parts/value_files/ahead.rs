//! Prefetching of announced reads (DiffKV §2.2: most of a scan's time goes into fetching values).
//!
//! ```text
//! pointers of the next entries ─▶ by file and offset ─▶ neighbours as one stretch ─▶ concurrent requests to the device
//!                                                                                 └▶ one call for all of a stretch
//! ```
//!
//! Where values are sorted by key, even partly, the next entries of a scan have few stretches. Where they are in the
//! order of arrival, each is a stretch of its own.

use std::{
    io::ErrorKind,
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
};

use bifold_contract::{Error, FileId, IoSource, Pointer, Result, planted};
use bifold_format::value;

use super::{ValueFile, ValueFiles, file::ReadBy};

/// Whether values are in memory is checked at the first announcement, and then once in so many while they are, at first
/// and at last: the check takes a system call for each value it looks at. Each check that finds all in memory doubles
/// the number.
const LOOKS_EVERY: (u64, u64) = (4, 64);

/// At most so many values of an announcement are checked. Of values that do not fit in memory, many do: one that does
/// must not hide the others.
const LOOKS_MAX: usize = 8;

/// Values with at most so many bytes between them are fetched together with these: a device takes about as long for
/// four pages as for one, and longer for a second request.
const GAP_BYTES: u64 = 16 << 10;

/// Stretches that were announced together are read at once if they have no more bytes than this: entries that were read
/// ahead keep them all. Of longer values, each is worth a call.
const AT_ONCE_BYTES_MAX: u64 = 512 << 10;

/// Where values are that were announced together and are read by calls.
#[derive(Debug)]
pub struct Stretches {
    /// By file and offset.
    all: Vec<Stretch>,
    /// Whether all of them together are few bytes.
    are_short: bool,
    /// Whether the device was asked for them. Otherwise they are in memory, and all reads are calls for others' sake.
    are_cold: bool,
}

/// A section of a file to fetch.
#[derive(Debug)]
struct Stretch {
    file: Arc<ValueFile>,
    start: u64,
    end: u64,
    /// How many values it has, and the bytes that they cover.
    values: u32,
    value_bytes: u64,
    /// All of it, once one of its values was asked for; `None` if it could not be read.
    content: OnceLock<Option<Box<[u8]>>>,
}

impl Stretch {
    fn of(file: &Arc<ValueFile>, at: Pointer) -> Self {
        let value_bytes = u64::from(at.len);
        let (start, end) = (at.offset, at.offset.saturating_add(value_bytes));
        Self { file: Arc::clone(file), start, end, values: 1, value_bytes, content: OnceLock::new() }
    }

    fn is_near(&self, next: &Self) -> bool {
        next.file.id == self.file.id && next.start <= self.end.saturating_add(GAP_BYTES)
    }

    /// Makes `next` a part of it, one value that begins no earlier than the last one.
    fn append(&mut self, next: &Self) {
        self.values += next.values;
        self.value_bytes += next.end.saturating_sub(next.start.max(self.end));
        self.end = self.end.max(next.end);
    }

    fn len(&self) -> u64 {
        self.end - self.start
    }

    fn has(&self, at: Pointer) -> bool {
        self.file.id == at.file && at.offset.saturating_add(at.len.into()) <= self.end
    }

    /// Whether one call for all of it is better than one for each of its values. That of a scan copies at most twice as
    /// much. One of gets reads nothing else: what cannot be read between values must not fail them, and where a scan
    /// reports the error and reads alone when it is asked again, a `multi_get` would fail again.
    fn is_read_at_once(&self, source: IoSource) -> bool {
        let most = if source == IoSource::Scan { 2 * self.value_bytes } else { self.value_bytes };
        self.values > 1 && self.len() <= most
    }

    /// All of it, read once. `None` where the file ends before it, and after an error: then each value is read alone.
    ///
    /// # Errors
    /// The first caller gets the I/O error: no failing call goes unreported.
    fn content(&self, source: IoSource) -> Result<Option<&[u8]>> {
        if let Some(content) = self.content.get() {
            return Ok(content.as_deref());
        }
        let mut bytes = vec![0; self.len() as usize].into_boxed_slice();
        let read = self.file.reader.call_at(&mut bytes, self.start, source);
        let content = self.content.get_or_init(|| read.is_ok().then_some(bytes)).as_deref();
        match read {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) if !planted!("ignore_errors_of_stretches") => Err(error),
            _ => Ok(content),
        }
    }
}

impl Stretches {
    fn new<'a>(pointers: &[Pointer], are_cold: bool, file_of: impl Fn(FileId) -> Option<&'a Arc<ValueFile>>) -> Self {
        let mut stretches: Vec<Stretch> =
            pointers.iter().filter_map(|at| Some(Stretch::of(file_of(at.file)?, *at))).collect();
        stretches.sort_unstable_by_key(|stretch| (stretch.file.id, stretch.start));
        stretches.dedup_by(|next, last| {
            let is_near = last.is_near(next);
            if is_near {
                last.append(next);
            }
            is_near
        });
        let bytes = stretches.iter().fold(0_u64, |sum, stretch| sum.saturating_add(stretch.len()));
        Self { all: stretches, are_short: bytes <= AT_ONCE_BYTES_MAX, are_cold }
    }

    /// Whether they come from the device.
    #[must_use]
    pub fn are_cold(&self) -> bool {
        self.are_cold
    }

    /// Calls `look` with the value of `key` at `at`, if it was announced together with neighbours: the first one that
    /// is asked for reads all of them. `None` if it was not, or if it cannot be read that way.
    ///
    /// # Errors
    /// The I/O error of that read. The value may be whole: whoever asks again reads it alone.
    pub fn look_at<T>(
        &self,
        (key, at): (&[u8], Pointer),
        source: IoSource,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let behind = self.all.partition_point(|stretch| (stretch.file.id, stretch.start) <= (at.file, at.offset));
        let stretch = self.all[..behind].last().filter(|stretch| stretch.has(at));
        let Some(stretch) = stretch.filter(|stretch| self.are_short && stretch.is_read_at_once(source)) else {
            return Ok(None);
        };
        let start = (at.offset - stretch.start) as usize;
        let Some(content) = stretch.content(source)? else { return Ok(None) };
        let record = &content[start..start + at.len as usize];
        if planted!("damage_is_empty") && value::look_at_value(record, (at.file, at.offset), key, |_| ()).is_err() {
            return Ok(Some(look(&[])));
        }
        // Whoever reads the value alone reports damage: that of one value must not hide its neighbours.
        Ok(value::look_at_value(record, (at.file, at.offset), key, look).ok())
    }
}

/// Whether a place is one in `every`. Where values are decides which announcements are checked: a count that threads
/// shared would cost each of their scans cache misses, and one for each thread would make runs differ.
fn is_picked(at: Pointer, every: u64) -> bool {
    // Mixed twice: offsets are often multiples of something, and the low bits of a product depend on low bits only.
    let once = (at.offset ^ at.file.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (once ^ once >> 32).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (mixed >> 32).is_multiple_of(every)
}

impl ValueFiles {
    /// Announces reads to come. Asking the system to prefetch a value takes as long as reading it from memory, so it
    /// is done only when one of a few values is not in memory; and while all are in memory, that is checked only now
    /// and then. Returns what is read by calls: what the system was asked for, and all if no reads are mapped now.
    pub fn prefetch(&self, pointers: &[Pointer]) -> Option<Stretches> {
        let all = self.all.load();
        let file_of = |id: FileId| -> Option<&Arc<ValueFile>> { all.get(&id) };
        let looked_every = self.looks_every.load(Relaxed);
        let every = looked_every.clamp(LOOKS_EVERY.0, LOOKS_EVERY.1);
        let is_due = looked_every == 0 || pointers.first().is_some_and(|at| is_picked(*at, every));
        if is_due || self.are_cold.load(Relaxed) {
            let step = pointers.len().div_ceil(LOOKS_MAX).max(1);
            let mut looked_at = pointers.iter().step_by(step).filter_map(|at| Some((file_of(at.file)?, at)));
            let is_cold = looked_at.any(|(file, at)| !file.reader.is_in_memory(at.offset, at.len.into()));
            self.are_cold.store(is_cold, Relaxed);
            self.looks_every.store(if is_cold { LOOKS_EVERY.0 } else { every * 2 }, Relaxed);
        }
        let are_cold = self.are_cold.load(Relaxed);
        let are_called =
            || pointers.first().and_then(|at| file_of(at.file)).is_some_and(|file| file.reader.is_called());
        if are_cold || are_called() {
            let announced = Stretches::new(pointers, are_cold, file_of);
            for stretch in announced.all.iter().filter(|_| are_cold) {
                stretch.file.reader.prefetch(stretch.start, stretch.len());
            }
            return Some(announced);
        }
        for at in pointers {
            if let Some(file) = file_of(at.file) {
                file.reader.touch(at.offset, at.len.into());
            }
        }
        None
    }

    /// How to read a value. A scan of values from the device reads each page once: mapping it would take as long and
    /// leave it in the process's resident set.
    pub fn way(&self, source: IoSource) -> ReadBy {
        if source == IoSource::Scan && self.are_cold.load(Relaxed) { ReadBy::Call } else { ReadBy::AnyWay }
    }
}

#[cfg(test)]
mod tests {
    use bifold_format::compression::{Compression, Compressor};
    use bifold_io::{
        faulty::{Fault, FaultKind, FaultyFs, Persistence},
        memory::MemoryFs,
    };

    use super::*;
    use crate::parts::value_files::scratch::{value_files, value_files_on};

    #[test]
    fn one_place_in_so_many_is_picked_whether_values_stand_one_behind_the_other_or_anywhere() {
        for stride in [1, 64, 1037, 4096, 1 << 20] {
            for every in [LOOKS_EVERY.0, 16, LOOKS_EVERY.1] {
                let at = |n: u64| Pointer { file: 7 + n / 1000, epoch: 0, offset: 40 + n * stride, len: 1037 };
                let picked = (0..20_000).filter(|n| is_picked(at(*n), every)).count() as u64;
                let expected = 20_000 / every;
                assert!((expected / 2..expected * 2).contains(&picked), "{picked} of 20000, one in {every}, {stride}");
            }
        }
    }

    fn spans(announced: &Stretches) -> Vec<(FileId, u64, u64)> {
        announced.all.iter().map(|stretch| (stretch.file.id, stretch.start, stretch.end)).collect()
    }

    #[test]
    fn neighbours_are_fetched_as_one_whatever_their_order() {
        let files = value_files(&MemoryFs::new(), 100);
        let (one, two) = (files.begin(0).unwrap(), files.begin(0).unwrap());
        let all = files.all.load();
        let announce = |pointers: &[Pointer]| Stretches::new(pointers, true, |id| all.get(&id));
        let at = |file: &ValueFile, offset, len| Pointer { file: file.id, epoch: 0, offset, len };
        let pointers = [at(&two, 5000, 100), at(&one, 90_000, 10), at(&two, 4000, 1000), at(&one, 40, 1)];
        let expected = [(one.id, 40, 41), (one.id, 90_000, 90_010), (two.id, 4000, 5100)];
        assert_eq!(spans(&announce(&pointers)), expected);
        assert_eq!(spans(&announce(&[])), []);
        let last = at(&one, 10 + GAP_BYTES, 5);
        assert_eq!(spans(&announce(&[last, at(&one, 0, 10)])), [(one.id, 0, 15 + GAP_BYTES)]);
        assert_eq!(spans(&announce(&[last, at(&one, 0, 9)])).len(), 2);
        assert_eq!(spans(&announce(&[Pointer { file: two.id + 1, ..last }])), [], "a file that does not exist");
    }

    /// Appends a record of each of these values, and returns where they are.
    fn append(files: &ValueFiles, file: &Arc<ValueFile>, values: &[(&str, usize)]) -> Vec<Pointer> {
        let record = |(key, len): &(&str, usize)| {
            let mut bytes = Vec::new();
            let place = (file.id, file.len());
            value::encode_value(
                &mut bytes,
                place,
                1,
                key.as_bytes(),
                &vec![7; *len],
                &mut Compressor::new(Compression::None),
            );
            files.append(file, &bytes).unwrap()
        };
        values.iter().map(record).collect()
    }

    #[test]
    fn neighbours_are_read_by_one_call() {
        let files = value_files(&MemoryFs::new(), 100);
        let file = files.begin(0).unwrap();
        let places = append(&files, &file, &[("a", 500), ("b", 700), ("far", 70_000), ("c", 900)]);
        let all = files.all.load();
        let announced = Stretches::new(&[places[3], places[1], places[0]], true, |id| all.get(&id));
        let read_bytes = || files.context.dir.totals().read_bytes[IoSource::Scan as usize];
        let len = |key: &str, at| announced.look_at((key.as_bytes(), at), IoSource::Scan, <[u8]>::len).unwrap();
        assert_eq!(len("far", places[2]), None, "not announced");
        assert_eq!(read_bytes(), 0, "nothing before it is asked for");
        assert_eq!(len("b", places[1]), Some(700));
        let both = u64::from(places[0].len + places[1].len);
        assert_eq!((len("a", places[0]), read_bytes()), (Some(500), both), "by the same call");
        assert_eq!(len("c", places[3]), None, "it has no neighbours");
        assert_eq!(len("a", places[1]), None, "the value of another key");
        assert_eq!(len("a", Pointer { len: 5, ..places[0] }), None, "a damaged pointer");
        assert_eq!(len("a", Pointer { offset: u64::MAX, ..places[0] }), None);
        assert_eq!(read_bytes(), both);
    }

    #[test]
    fn gets_read_by_one_call_only_what_they_asked_for() {
        let files = value_files(&MemoryFs::new(), 100);
        let file = files.begin(0).unwrap();
        let places = append(&files, &file, &[("a", 500), ("b", 700), ("c", 900), ("not asked for", 100), ("d", 800)]);
        let all = files.all.load();
        let look = |pointers: &[Pointer], key: &str, at| {
            let announced = Stretches::new(pointers, true, |id| all.get(&id));
            announced.look_at((key.as_bytes(), at), IoSource::Get, <[u8]>::len).unwrap()
        };
        assert_eq!(look(&[places[2], places[0], places[1]], "b", places[1]), Some(700));
        assert_eq!(look(&[places[0], places[2]], "c", places[2]), None, "a value lies between them");
        assert_eq!(look(&[places[2], places[2], places[4]], "c", places[2]), None, "one that is asked for twice");
        assert_eq!(look(&[places[2], places[2]], "c", places[2]), Some(900));
    }

    #[test]
    fn damage_is_left_to_whoever_reads_the_value_alone() {
        let files = value_files(&MemoryFs::new(), 100);
        let file = files.begin(0).unwrap();
        let places = append(&files, &file, &[("a", 500), ("b", 700), ("c", 900)]);
        let mut damaged = vec![0; places[1].len as usize];
        file.reader.call_at(&mut damaged, places[1].offset, IoSource::Scan).unwrap();
        damaged[100] ^= 1;
        let b = files.append(&file, &damaged).unwrap();
        let d = append(&files, &file, &[("d", 300)])[0];
        let all = files.all.load();
        let announced = Stretches::new(&[places[2], b, d], true, |id| all.get(&id));
        let len = |key: &str, at| announced.look_at((key.as_bytes(), at), IoSource::Scan, <[u8]>::len).unwrap();
        assert_eq!((len("c", places[2]), len("b", b), len("d", d)), (Some(900), None, Some(300)));
        assert!(files.read(b"b", b, IoSource::Scan).unwrap_err().to_string().contains(&b.offset.to_string()));
    }

    #[test]
    fn an_error_of_a_stretch_is_reported_once_and_then_values_are_read_alone() {
        let faulty = FaultyFs::over_memory(MemoryFs::new());
        let files = value_files_on(Arc::new(faulty.clone()), 100);
        let file = files.begin(0).unwrap();
        let places = append(&files, &file, &[("a", 500), ("b", 700)]);
        let all = files.all.load();
        let announced = Stretches::new(&places, true, |id| all.get(&id));
        faulty.plan(Fault { at: faulty.calls() + 1, kind: FaultKind::EIO, persistence: Persistence::Once });
        let error = announced.look_at((b"a", places[0]), IoSource::Scan, <[u8]>::len).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        for (key, at) in [(b"a", places[0]), (b"b", places[1])] {
            assert_eq!(announced.look_at((key, at), IoSource::Scan, <[u8]>::len).unwrap(), None);
            assert!(files.read(key, at, IoSource::Scan).unwrap().is_some());
        }
    }

    #[test]
    fn a_cut_file_keeps_the_values_before_the_cut() {
        let fs = MemoryFs::new();
        let files = value_files(&fs, 100);
        let file = files.begin(0).unwrap();
        let places = append(&files, &file, &[("a", 500), ("b", 700)]);
        let beyond = Pointer { offset: places[1].offset + u64::from(places[1].len), ..places[0] };
        let all = files.all.load();
        let announced = Stretches::new(&[places[0], places[1], beyond], true, |id| all.get(&id));
        assert_eq!(
            announced.look_at((b"a", places[0]), IoSource::Scan, <[u8]>::len).unwrap(),
            None,
            "the file ends before the stretch"
        );
        assert!(files.read(b"a", places[0], IoSource::Scan).unwrap().is_some());
    }

    #[test]
    fn what_would_copy_too_much_is_read_one_by_one() {
        let files = value_files(&MemoryFs::new(), 100);
        let file = files.begin(0).unwrap();
        let gap = usize::try_from(GAP_BYTES / 2).unwrap();
        let far = append(&files, &file, &[("a", 100), ("gap", gap), ("b", 100)]);
        let large = append(&files, &file, &[("c", 300_000), ("d", 300_000)]);
        let all = files.all.load();
        for (places, keys) in [([far[0], far[2]], ["a", "b"]), ([large[0], large[1]], ["c", "d"])] {
            let announced = Stretches::new(&places, true, |id| all.get(&id));
            assert_eq!(announced.all.len(), 1, "{keys:?}");
            let found = keys
                .iter()
                .zip(places)
                .map(|(key, at)| announced.look_at((key.as_bytes(), at), IoSource::Scan, <[u8]>::len));
            assert!(found.into_iter().all(|len| len.unwrap().is_none()), "{keys:?}");
        }
    }
}
