//! Files mapped for reading; a failing disk is still an error.
//!
//! ```text
//! copy ──▶ the range is guarded ──▶ bytes are copied                             0.3 µs instead of 1.8 for a call
//!                                   └─ SIGBUS: the mapping is broken, the copy does not count (`guard.rs`)
//! broken  ──▶ every read goes by calls again: the first of them reports the error
//! ```

use std::{
    fs::File,
    ptr,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, fence},
    },
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::guard::{self, page_bytes};

/// Longer reads go by a call. The call is then a small share of their cost, and a read from the disk gets all pages
/// at once, where a mapped one gets them one by one.
const READ_MAX: usize = 8 << 10;

/// How much of a file is mapped: the smallest of these that reaches far enough. A mapping only takes address space,
/// so it may be longer than its file, which can grow into it.
const SPANS: [u64; 4] = [4 << 20, 32 << 20, 256 << 20, 4 << 30];

/// Mappings at once. Linux allows a process 65 530, including those of memory allocators.
const MAPPINGS_MAX: usize = 16_384;

static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// At most so much is looked at at once, in bytes: what a scan reads ahead.
const LOOK_MAX: usize = 64 << 10;

const CACHE_LINE: usize = 64;

/// The mappings of one file.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    spans: [OnceLock<Option<Mapping>>; SPANS.len()],
}

impl Mapped {
    /// Fills `buffer` from `offset` on, unless a call is better for that. All these bytes are in the file and do not
    /// change, as long as only this crate writes to it. Without the open file, only what is already mapped is read.
    #[inline]
    pub fn read(&self, file: Option<&File>, buffer: &mut [u8], offset: u64) -> bool {
        if buffer.len() > READ_MAX {
            return false;
        }
        let end = offset + buffer.len() as u64;
        let map = match file {
            Some(file) => self.map(file, end),
            None => self.span(end),
        };
        map.is_some_and(|map| map.copy(buffer, offset))
    }

    /// Announces reads of the `len` bytes from `offset` on, if they are mapped.
    pub fn prefetch(&self, offset: u64, len: u64) -> bool {
        self.span(offset + len).is_some_and(|map| map.prefetch(offset as usize, len as usize))
    }

    /// Prefetches into the processor's caches what is in memory of the `len` bytes from `offset` on.
    pub fn touch(&self, offset: u64, len: u64) {
        let len = len.min(READ_MAX as u64);
        if let Some(map) = self.span(offset + len) {
            map.touch(offset as usize, len as usize);
        }
    }

    /// Whether the first of the `len` bytes from `offset` on are in memory; `None` where they are not mapped.
    pub fn is_in_memory(&self, offset: u64, len: u64) -> Option<bool> {
        let len = len.min(LOOK_MAX as u64);
        self.span(offset + len).map(|map| map.is_in_memory(offset as usize, len as usize))
    }

    /// The mapping that reaches up to `end`, created if needed.
    pub fn map(&self, file: &File, end: u64) -> Option<&Mapping> {
        let at = Self::at(end)?;
        self.spans[at].get_or_init(|| Mapping::of(file, SPANS[at])).as_ref()
    }

    /// Gives the pages back that the process has of the file. The page cache keeps them.
    pub fn give_back(&self) {
        self.spans.iter().filter_map(|span| span.get()?.as_ref()).for_each(Mapping::give_back);
    }

    /// Whether a mapping reaches up to `end` and no read from it has failed.
    pub fn reaches(&self, end: u64) -> bool {
        self.span(end).is_some_and(|map| !map.broken.load(Relaxed))
    }

    /// A mapping that reaches up to `end`, if there is one.
    #[inline]
    fn span(&self, end: u64) -> Option<&Mapping> {
        let mut spans = self.spans[Self::at(end)?..].iter();
        spans.find_map(|span| span.get().and_then(Option::as_ref))
    }

    fn at(end: u64) -> Option<usize> {
        SPANS.iter().position(|&bytes| end <= bytes)
    }
}

/// The beginning of a file, mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Some of it could not be read.
    broken: AtomicBool,
}

// SAFETY: nobody writes through it, and it is read byte by byte into the reader's own buffers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        let count = |n: usize| (n < MAPPINGS_MAX).then_some(n + 1);
        if !guard::is_set() || MAPPINGS.fetch_update(Relaxed, Relaxed, count).is_err() {
            return None;
        }
        // SAFETY: a new mapping, at an address that the system chooses; nobody else has it.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let Some(start) = start.ok().and_then(|start| NonNull::new(start.cast::<u8>())) else {
            MAPPINGS.fetch_sub(1, Relaxed);
            return None;
        };
        // Reads one page, not those around it (up to 8 MiB, depending on the system's settings). A hint.
        // SAFETY: the mapping that was just made; the advice does not change what is in it.
        let _slower = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::Random) };
        Some(Self { start, bytes, broken: AtomicBool::new(false) })
    }

    #[inline]
    fn copy(&self, buffer: &mut [u8], offset: u64) -> bool {
        let offset = offset as usize;
        assert!(offset + buffer.len() <= self.bytes, "the span was chosen to hold what is read");
        if self.broken.load(Relaxed) {
            return false;
        }
        // SAFETY: within the mapping, as asserted.
        let from = unsafe { self.start.as_ptr().add(offset) };
        guard::reading(from, buffer.len(), &self.broken, || {
            // SAFETY: `from` is readable for that many bytes, since the handler maps zeros where it is not; `buffer`
            // is other memory; the file's bytes before its end are not written again.
            unsafe { ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
        });
        // Whoever sees the zeros that a handler in another thread has mapped also sees its mark: the handler stores the
        // mark before it maps, and this loads it after the bytes. Loads in order are all that is needed. A full fence
        // would wait for the bytes here, where their checksum can be computed as they come in.
        fence(Acquire);
        !self.broken.load(Relaxed)
    }

    fn touch(&self, offset: usize, len: usize) {
        if offset + len > self.bytes {
            return;
        }
        let mut at = offset & !(CACHE_LINE - 1);
        while at < offset + len {
            // SAFETY: within the mapping.
            prefetch_line(unsafe { self.start.as_ptr().add(at) });
            at += CACHE_LINE;
        }
    }

    /// Reading past the end of the file is no error. If the system refuses, the reads are only slower.
    fn prefetch(&self, offset: usize, len: usize) -> bool {
        let first = offset / page_bytes() * page_bytes();
        if len == 0 || offset + len > self.bytes {
            return false;
        }
        // SAFETY: within the mapping, where a page begins; the advice does not change what is in it.
        unsafe { madvise(self.start.as_ptr().add(first).cast(), offset + len - first, Advice::WillNeed) }.is_ok()
    }

    fn give_back(&self) {
        // SAFETY: the whole mapping, of a file and shared: whoever reads it later, or now, gets the same bytes from the
        // page cache. If the system refuses, the process keeps its pages.
        let _kept = unsafe { madvise(self.start.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
    }

    fn is_in_memory(&self, offset: usize, len: usize) -> bool {
        let page = page_bytes();
        let first = offset / page * page;
        let mut pages = [1u8; LOOK_MAX / 4096 + 1];
        let len = (offset + len - first).min(pages.len() * page);
        // SAFETY: within the mapping; the array has one byte for each page, since pages are at least 4 KiB.
        let asked = unsafe { libc::mincore(self.start.as_ptr().add(first).cast(), len, pages.as_mut_ptr().cast()) };
        asked != 0 || pages[..len.div_ceil(page)].iter().all(|page| page & 1 == 1)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `of` has mapped; whoever copies from it borrows it.
        let _fails_for_bad_arguments_only = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        MAPPINGS.fetch_sub(1, Relaxed);
    }
}

#[inline]
fn prefetch_line(place: *const u8) {
    // Elsewhere the processor's own prefetching must do.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program can see, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        path::PathBuf,
        process::Command,
        thread,
    };

    use super::*;

    const PAGES: usize = 64;

    /// A file of pages, each filled with its number. Removed at the end.
    struct Pages(PathBuf);

    impl Pages {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bifold-mapped-{}-{name}", std::process::id()));
            let bytes: Vec<u8> = (0..PAGES).flat_map(|page| vec![page as u8 + 1; page_bytes()]).collect();
            fs::write(&path, bytes).unwrap();
            Self(path)
        }

        fn open(&self) -> File {
            OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let _left_behind = fs::remove_file(&self.0);
        }
    }

    fn read(mapped: &Mapped, file: &File, page: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 1000];
        mapped.read(Some(file), &mut buffer, (page * page_bytes()) as u64 + 7).then_some(buffer)
    }

    #[test]
    fn short_reads_are_answered_and_long_ones_left_to_calls() {
        let pages = Pages::new("short");
        let (mapped, file) = (Mapped::default(), pages.open());
        for page in 0..PAGES {
            mapped.touch((page * page_bytes()) as u64, 1000);
            assert_eq!(read(&mapped, &file, page), Some(vec![page as u8 + 1; 1000]));
            assert_eq!(mapped.is_in_memory((page * page_bytes()) as u64, 90), Some(true));
            assert!(mapped.prefetch((page * page_bytes()) as u64 + 5, 9000));
        }
        assert!(!mapped.read(Some(&file), &mut vec![0; READ_MAX + 1], 0));
        assert!(!mapped.read(Some(&file), &mut [0; 10], SPANS[1]), "beyond what is ever mapped");
    }

    /// Where temporary files are in memory, neither way can find one that is not.
    #[cfg(target_os = "linux")]
    #[test]
    fn calls_and_mappings_agree_on_what_is_in_memory() {
        use crate::fs::FileSystem;

        let pages = Pages::new("looks");
        let (mapped, file) = (Mapped::default(), pages.open());
        file.sync_all().unwrap();
        assert!(read(&mapped, &file, 40).is_some());
        let advise = |advice| rustix::fs::fadvise(&file, 0, None, advice).unwrap();
        advise(rustix::fs::Advice::DontNeed);
        advise(rustix::fs::Advice::Random);
        let by_calls = crate::disk::DiskFs.open(&pages.0).unwrap();
        by_calls.expect_short_reads();
        by_calls.read_at(&mut [0; 10], 7 * page_bytes() as u64).unwrap();
        let starts = (0..PAGES).map(|page| (page * page_bytes()) as u64);
        let looks: Vec<_> = starts.map(|at| (mapped.is_in_memory(at, 10), Some(by_calls.is_in_memory(at)))).collect();
        assert!(looks.iter().all(|(one, other)| one == other), "{looks:?}");
        assert_eq!(looks[7].0, Some(true));
    }

    /// On systems that cannot keep their cache as it was, only the bytes are compared.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_read_that_is_done_once_leaves_in_memory_what_was_there_and_nothing_more() {
        use crate::fs::FileSystem;

        let pages = Pages::new("once");
        let file = pages.open();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let reader = crate::disk::DiskFs.open(&pages.0).unwrap();
        let at = |page: usize| (page * page_bytes()) as u64;
        let was_dropped = !reader.is_in_memory(at(7));
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 10], at(7)).unwrap();
        let mut bytes = vec![0; PAGES * page_bytes()];
        reader.read_once(&mut bytes, 0).unwrap();
        assert!((0..PAGES).all(|page| bytes[page * page_bytes()] == page as u8 + 1));
        assert!(reader.is_in_memory(at(7)), "what others read stays");
        let flags = rustix::io::ReadWriteFlags::from_bits_retain(0x80);
        let can_drop = rustix::io::preadv2(&file, &mut [std::io::IoSliceMut::new(&mut [0])], 0, flags).is_ok();
        let stayed = (0..PAGES).filter(|page| reader.is_in_memory(at(*page))).count();
        assert!(!was_dropped || !can_drop || stayed < PAGES / 2, "{stayed} of {PAGES} pages stayed");
        assert!(reader.read_once(&mut [0; 2], at(PAGES) - 1).is_err(), "beyond the end");
    }

    #[test]
    fn a_closed_file_is_read_as_far_as_it_was_mapped() {
        let pages = Pages::new("closed");
        let (mapped, mut buffer) = (Mapped::default(), [0; 10]);
        assert!(!mapped.read(None, &mut buffer, 7) && !mapped.prefetch(7, 10), "nothing is mapped");
        assert!(!mapped.reaches(1));
        assert!(mapped.map(&pages.open(), 1).is_some());
        assert!(mapped.reaches(SPANS[0]) && !mapped.reaches(SPANS[0] + 1));
        assert!(mapped.read(None, &mut buffer, 7) && mapped.prefetch(7, 10));
        assert_eq!(buffer, [1; 10]);
        assert!(!mapped.read(None, &mut buffer, SPANS[0] - 9), "behind what is mapped");
    }

    #[test]
    fn a_page_that_cannot_be_read_sends_readers_to_calls_and_harms_no_other_mapping() {
        let pages = Pages::new("truncated");
        let (mapped, file) = (Mapped::default(), pages.open());
        assert!(read(&mapped, &file, 0).is_some());
        file.set_len(page_bytes() as u64 * 2).unwrap();
        assert_eq!(read(&mapped, &file, 5), None);
        assert_eq!(read(&mapped, &file, 0), None, "by calls from now on");
        assert!(!mapped.reaches(1), "and reported as such");
        assert_eq!(read(&Mapped::default(), &file, 1), Some(vec![2; 1000]), "other mappings are not affected");
    }

    #[test]
    fn no_reader_gets_zeros_that_the_handler_has_put_for_another() {
        for round in 0..50 {
            let pages = Pages::new(&format!("race{round}"));
            let (mapped, file) = (Mapped::default(), pages.open());
            let answers = || (0..PAGES).rev().map(|page| (page, read(&mapped, &file, page))).collect::<Vec<_>>();
            let all = thread::scope(|scope| {
                let readers = [scope.spawn(answers), scope.spawn(answers), scope.spawn(answers)];
                file.set_len(0).unwrap();
                readers.map(|reader| reader.join().unwrap()).concat()
            });
            for (page, bytes) in all {
                assert!(bytes.is_none_or(|bytes| bytes == vec![page as u8 + 1; 1000]), "page {page}");
            }
        }
    }

    /// Run by the test below in a process of its own.
    #[test]
    #[ignore = "ends its process"]
    fn meets_a_bus_error_of_its_own() {
        let pages = Pages::new("foreign");
        let (mapped, file) = (Mapped::default(), pages.open());
        assert!(read(&mapped, &file, 0).is_some());
        file.set_len(0).unwrap();
        let map = mapped.span(1).unwrap();
        // SAFETY: none: this is the fault that is to end the process.
        let byte = unsafe { map.start.as_ptr().read_volatile() };
        println!("read {byte}");
    }

    #[test]
    fn a_bus_error_of_others_still_ends_the_process() {
        use std::os::unix::process::ExitStatusExt;
        let test = "region::mapped::tests::meets_a_bus_error_of_its_own";
        let mut child = Command::new(std::env::current_exe().unwrap());
        // Sanitizers have a handler of their own, which ends the process in another way.
        child.envs(["ASAN_OPTIONS", "TSAN_OPTIONS"].map(|name| (name, "handle_sigbus=0")));
        let output = child.args(["--exact", test, "--ignored"]).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
