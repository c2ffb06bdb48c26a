//! The cost of an insertion, a lookup and a scan step in the memtable, a B-tree behind a lock and a skip list.
//!
//! `cargo bench -p bifold-index --bench memtable [-- WORD...]` prints a line for each number of entries, shape of
//! keys, size of values and structure; words select the lines that contain them all. Figures are nanoseconds per
//! operation, the minimum of three rounds, because other load only adds time. Each round starts with an empty
//! structure without mapped memory, like a new memtable. All three copy key and value on insertion.

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::{Arc, RwLock},
    time::Instant,
};

use bifold_contract::{Entry, SeqNo};
use bifold_index::{cursor::Cursor, memtable::Memtable};
use crossbeam_skiplist::SkipMap;

const ROUNDS: usize = 3;
const KEY_LEN: usize = 24;

/// The measured operations.
trait Store: Default {
    const NAME: &'static str;
    fn fill(&self, keys: &[[u8; KEY_LEN]], payload: &[u8]);
    fn get(&self, key: &[u8]) -> Option<u8>;
    /// Reads all entries in order and returns a sum over them.
    fn scan(self: &Arc<Self>) -> u64;
    fn bytes(&self) -> usize {
        0
    }
}

impl Store for Memtable {
    const NAME: &'static str = "memtable";

    fn fill(&self, keys: &[[u8; KEY_LEN]], payload: &[u8]) {
        for (key, seqno) in keys.iter().zip(self.max_seqno().unwrap_or(0) + 1..) {
            // One writer per entry, as in a commit of one entry.
            self.writer().insert(&Entry::inline(key, seqno, payload));
        }
    }

    fn get(&self, key: &[u8]) -> Option<u8> {
        self.get(key, SeqNo::MAX).map(|entry| entry.payload[0])
    }

    fn scan(self: &Arc<Self>) -> u64 {
        let mut cursor = self.cursor();
        let mut sum = 0;
        let mut moved = cursor.first();
        while let (Ok(()), Some(entry)) = (&moved, cursor.entry()) {
            sum += u64::from(entry.key[KEY_LEN - 1]) + u64::from(entry.payload[0]);
            moved = cursor.next();
        }
        sum
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

type Tree = RwLock<BTreeMap<[u8; KEY_LEN], Box<[u8]>>>;

impl Store for Tree {
    const NAME: &'static str = "btree+lock";

    fn fill(&self, keys: &[[u8; KEY_LEN]], payload: &[u8]) {
        for key in keys {
            if let Ok(mut map) = self.write() {
                map.insert(*key, payload.into());
            }
        }
    }

    fn get(&self, key: &[u8]) -> Option<u8> {
        self.read().ok()?.get(key).map(|payload| payload[0])
    }

    fn scan(self: &Arc<Self>) -> u64 {
        let Ok(map) = self.read() else { return 0 };
        map.iter().map(|(key, payload)| u64::from(key[KEY_LEN - 1]) + u64::from(payload[0])).sum()
    }
}

type SkipList = SkipMap<[u8; KEY_LEN], Box<[u8]>>;

impl Store for SkipList {
    const NAME: &'static str = "skip list";

    fn fill(&self, keys: &[[u8; KEY_LEN]], payload: &[u8]) {
        for key in keys {
            self.insert(*key, payload.into());
        }
    }

    fn get(&self, key: &[u8]) -> Option<u8> {
        self.get(key).map(|entry| entry.value()[0])
    }

    fn scan(self: &Arc<Self>) -> u64 {
        self.iter().map(|entry| u64::from(entry.key()[KEY_LEN - 1]) + u64::from(entry.value()[0])).sum()
    }
}

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    println!("{:>8} {:>8} {:>6} {:<11} insert update    get   miss   scan  B/entry", "entries", "shape", "value", "");
    for entries in [60_000, 250_000, 500_000, 1_000_000] {
        for (shape, make) in [("random", random as fn(u64) -> _), ("user", user), ("decimal", decimal)] {
            for value_bytes in [20, 100, 1000] {
                if entries as usize * value_bytes > 600 << 20 {
                    continue;
                }
                let case = Case { entries, shape, make, value_bytes, filter: &filter };
                case.measure::<Memtable>();
                case.measure::<Tree>();
                case.measure::<SkipList>();
            }
        }
    }
}

/// One line of the output without the structure.
struct Case<'a> {
    entries: u64,
    shape: &'static str,
    make: fn(u64) -> [u8; KEY_LEN],
    value_bytes: usize,
    filter: &'a [String],
}

impl Case<'_> {
    fn measure<S: Store>(&self) {
        let label = format!("{:>8} {:>8} {:>6} {:<11}", self.entries, self.shape, self.value_bytes, S::NAME);
        if !self.filter.iter().all(|word| label.contains(word)) {
            return;
        }
        let keys: Vec<_> = (0..self.entries).map(self.make).collect();
        let absent: Vec<_> = (self.entries..2 * self.entries).map(self.make).collect();
        let sought: Vec<usize> = (0..self.entries).map(|n| (scatter(n ^ 0x5555) % self.entries) as usize).collect();
        let updated: Vec<_> = sought.iter().take(sought.len() / 10).map(|&at| keys[at]).collect();
        let payload = vec![1; self.value_bytes];
        let mut rounds: [Vec<f64>; 5] = Default::default();
        let mut bytes = 0;
        for _ in 0..ROUNDS {
            let store = Arc::new(S::default());
            rounds[0].push(per_operation(keys.len(), || store.fill(&keys, &payload)));
            bytes = store.bytes() / keys.len();
            rounds[2].push(per_operation(sought.len(), || {
                assert!(sought.iter().all(|&at| black_box(store.get(&keys[at])).is_some()));
            }));
            rounds[3].push(per_operation(absent.len(), || {
                assert!(absent.iter().all(|key| black_box(store.get(key)).is_none()));
            }));
            rounds[4].push(per_operation(keys.len(), || assert!(black_box(store.scan()) > 0)));
            rounds[1].push(per_operation(updated.len(), || store.fill(&updated, &payload)));
        }
        print!("{label}");
        for round in rounds {
            print!(" {:6.0}", round.into_iter().fold(f64::INFINITY, f64::min));
        }
        println!(" {bytes:>8}");
    }
}

/// Nanoseconds.
fn per_operation(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / operations as f64
}

/// A pseudo-random number (SplitMix64).
fn scatter(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn random(n: u64) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    for (part, bytes) in key.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&scatter(n * 3 + part as u64).to_le_bytes());
    }
    key
}

fn user(n: u64) -> [u8; KEY_LEN] {
    text(format!("user{:020}", scatter(n)))
}

fn decimal(n: u64) -> [u8; KEY_LEN] {
    text(format!("{n:024}"))
}

fn text(text: String) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key.copy_from_slice(text.as_bytes());
    key
}
