//! Lists of values in the order of arrival, and where the newest value of each key is.

use bifold_values::parts::victim::Candidate;

/// The number of a segment.
pub(super) type Number = u32;

/// No segment has this number.
const NOWHERE: (Number, u32) = (Number::MAX, 0);

/// All segments.
pub(super) struct Segments {
    all: Vec<Segment>,
    free: Vec<Number>,
    /// Of the newest value of each key: segment, and position in it.
    place: Vec<(Number, u32)>,
    /// How often a key is in a segment: used while one is taken.
    times: Vec<u32>,
    /// Values, dead or alive.
    pub stored: u64,
    /// Values that GC has copied.
    pub copied: u64,
    /// Values that were written, copies not counted.
    pub clock: u64,
}

/// One list.
#[derive(Default)]
struct Segment {
    keys: Vec<u32>,
    live: u64,
    /// Values written to it since its last GC.
    written: u64,
    /// The clock at its last GC, or when it was full.
    since: u64,
}

/// A live value of a segment.
#[derive(Clone, Copy)]
pub(super) struct Live {
    pub key: u32,
    /// The segment has an older value of the key.
    pub was_updated: bool,
}

impl Segments {
    pub fn new(keys: u32) -> Self {
        let (place, times) = (vec![NOWHERE; keys as usize], vec![0; keys as usize]);
        Self { all: Vec::new(), free: Vec::new(), place, times, stored: 0, copied: 0, clock: 0 }
    }

    /// A new segment, without values.
    pub fn begin(&mut self) -> Number {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(Segment::default());
            self.all.len() as Number - 1
        })
    }

    /// Appends a value of `key` that a user writes.
    pub fn write(&mut self, to: Number, key: u32) {
        self.clock += 1;
        let old = self.place[key as usize].0;
        if let Some(old) = self.all.get_mut(old as usize) {
            old.live -= 1;
        }
        self.append(to, key);
        self.all[to as usize].written += 1;
    }

    /// Appends a value that GC copies.
    pub fn copy(&mut self, to: Number, key: u32) {
        self.copied += 1;
        self.append(to, key);
    }

    fn append(&mut self, to: Number, key: u32) {
        let segment = &mut self.all[to as usize];
        self.place[key as usize] = (to, segment.keys.len() as u32);
        segment.keys.push(key);
        segment.live += 1;
        self.stored += 1;
    }

    /// Takes everything out of a segment and returns what was live. The caller copies it.
    pub fn take(&mut self, number: Number) -> Vec<Live> {
        let segment = &mut self.all[number as usize];
        (segment.live, segment.written, segment.since) = (0, 0, self.clock);
        let keys = std::mem::take(&mut segment.keys);
        self.stored -= keys.len() as u64;
        keys.iter().for_each(|&key| self.times[key as usize] += 1);
        let is_live = |&(at, &key): &(usize, &u32)| self.place[key as usize] == (number, at as u32);
        let live = |(_, &key): (usize, &u32)| Live { key, was_updated: self.times[key as usize] > 1 };
        let lives: Vec<Live> = keys.iter().enumerate().filter(is_live).map(live).collect();
        lives.iter().for_each(|live| self.place[live.key as usize] = NOWHERE);
        keys.iter().for_each(|&key| self.times[key as usize] = 0);
        lives
    }

    /// The same, and the segment ends.
    pub fn end(&mut self, number: Number) -> Vec<Live> {
        self.free.push(number);
        self.take(number)
    }

    /// The segment is full: its age counts from now on.
    pub fn seal(&mut self, number: Number) {
        self.all[number as usize].since = self.clock;
    }

    /// Values in a segment.
    pub fn len(&self, number: Number) -> u32 {
        self.all[number as usize].keys.len() as u32
    }

    /// What a policy knows of a unit of these segments.
    pub fn candidate(&self, numbers: impl IntoIterator<Item = Number>) -> Candidate {
        let mut sum = Candidate { live: 0, dead: 0, written: 0, rest: 0.0 };
        for segment in numbers.into_iter().map(|number| &self.all[number as usize]) {
            sum.live += segment.live;
            sum.written += segment.written;
            sum.add_dead(segment.keys.len() as u64 - segment.live, self.clock - segment.since);
        }
        sum
    }

    /// Whether what is counted is what is there.
    #[cfg(test)]
    pub fn check(&self) {
        let mut live = vec![0_u64; self.all.len()];
        for (key, &(number, at)) in self.place.iter().enumerate() {
            assert_eq!(self.all[number as usize].keys[at as usize], key as u32, "each key is where it is said to be");
            live[number as usize] += 1;
        }
        assert!(self.all.iter().zip(live).all(|(segment, live)| segment.live == live));
        assert_eq!(self.stored, self.all.iter().map(|segment| segment.keys.len() as u64).sum::<u64>());
    }
}
