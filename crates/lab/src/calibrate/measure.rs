//! One measurement: threads take units of a file in turn until the time is over.
//!
//! A queue of depth n is n threads with one request each. Threads cost a few microseconds of processor time per
//! request, which shows on a fast device at small units; the engine's workers read and write in the same way.

use std::{
    io,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use super::scratch::{Aligned, Scratch};

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// The order in which units are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitOrder {
    /// From the beginning to the end.
    Sequential,
    /// Each unit once, in random order.
    Random,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Reads or writes.
    pub direction: Transfer,
    /// The order of units.
    pub order: UnitOrder,
    /// Bytes of a request.
    pub unit: usize,
    /// Concurrent requests.
    pub depth: u32,
    /// Its duration.
    pub time: Duration,
}

/// The state that all threads share.
struct MeasureState<'a> {
    scratch: &'a Scratch,
    what: Measurement,
    units: Units,
    /// The number of the next unit, counted from the beginning.
    next: AtomicU64,
    /// A thread failed, so the others can stop.
    failed: AtomicBool,
    begin: Instant,
}

impl Measurement {
    /// Measures bytes per second.
    ///
    /// # Errors
    /// The system's.
    pub fn run(self, scratch: &Scratch) -> io::Result<f64> {
        scratch.make_cold(self.order)?;
        let mut buffers: Vec<Aligned> = (0..self.depth).map(|_| self.buffer()).collect();
        let run = MeasureState {
            scratch,
            what: self,
            units: Units::new(scratch.bytes / self.unit as u64),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            begin: Instant::now(),
        };
        let bytes = thread::scope(|scope| {
            let mut threads = Vec::with_capacity(buffers.len());
            let run = &run;
            for buffer in &mut buffers {
                let work = move || run.work(buffer.as_mut()).inspect_err(|_| run.failed.store(true, Relaxed));
                match thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        run.failed.store(true, Relaxed);
                        return Err(error);
                    }
                }
            }
            threads.into_iter().try_fold(0_u64, |sum, thread| {
                Ok::<u64, io::Error>(
                    sum + thread.join().unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))?,
                )
            })
        })?;
        if self.direction == Transfer::Write {
            scratch.file.sync_data()?;
        }
        // A coarse clock must not make the rate infinite.
        Ok(bytes as f64 / run.begin.elapsed().as_secs_f64().max(1e-6))
    }

    fn buffer(self) -> Aligned {
        match self.direction {
            Transfer::Read => Aligned::new(self.unit),
            Transfer::Write => Aligned::random(self.unit),
        }
    }
}

impl MeasureState<'_> {
    /// Takes units until the time is over, and returns their bytes.
    fn work(&self, buffer: &mut [u8]) -> io::Result<u64> {
        let mut bytes = 0;
        while let Some(offset) = self.next_offset() {
            match self.what.direction {
                Transfer::Read => self.scratch.file.read_exact_at(buffer, offset)?,
                Transfer::Write => self.scratch.file.write_all_at(buffer, offset)?,
            }
            bytes += buffer.len() as u64;
        }
        Ok(bytes)
    }

    /// The offset of the next unit, unless the time is over or every allowed unit was taken.
    fn next_offset(&self) -> Option<u64> {
        let turn = self.next.fetch_add(1, Relaxed);
        // At least one unit is measured, however short the time.
        let over = turn > 0 && self.begin.elapsed() >= self.what.time;
        // A unit that was read is in the page cache, and one that is written twice may reach the device once.
        let again = self.scratch.once_only() && turn >= self.units.count;
        if over || again || self.failed.load(Relaxed) {
            return None;
        }
        let turn = turn % self.units.count;
        let unit = match self.what.order {
            UnitOrder::Sequential => turn,
            UnitOrder::Random => self.units.scattered(turn),
        };
        Some(unit * self.what.unit as u64)
    }
}

/// The units of a file, and an order in which each comes once.
struct Units {
    count: u64,
    /// The number of bits of the largest unit number.
    bits: u32,
}

impl Units {
    fn new(count: u64) -> Self {
        let count = count.max(1);
        // At least two, so that there is a half to shift by.
        Self { count, bits: (u64::BITS - (count - 1).leading_zeros()).max(2) }
    }

    /// A one-to-one mapping of the numbers below `count` that looks random: a mapping of the numbers below the next
    /// power of two, repeated until it hits a number below `count`, which takes at most two steps on average.
    fn scattered(&self, turn: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.bits);
        let mut at = turn;
        loop {
            // Both kinds of step are reversible: a shift to the right and an odd factor.
            for odd in [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
                at = (at ^ 0x5555_5555_5555_5555).wrapping_mul(odd) & mask;
                at ^= at >> self.bits.div_ceil(2);
            }
            if at < self.count {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_random_order_each_unit_comes_once() {
        for count in [1, 2, 3, 64, 65, 1000, 4097] {
            let units = Units::new(count);
            let mut order: Vec<u64> = (0..count).map(|turn| units.scattered(turn)).collect();
            let neighbours = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert!(count < 64 || neighbours * 10 < order.len(), "{count}: {neighbours} follow one another");
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count), "{count}");
        }
    }

    /// If units were taken again, this would take the full sixty seconds.
    #[test]
    fn where_the_page_cache_is_in_the_way_each_unit_is_taken_once() {
        let mut scratch = Scratch::new(&std::env::temp_dir(), 1 << 20, &[4096], &mut |_| ()).unwrap();
        scratch.caching = bifold_vat::Caching::Dropped;
        for direction in [Transfer::Read, Transfer::Write] {
            for order in [UnitOrder::Sequential, UnitOrder::Random] {
                let time = Duration::from_secs(60);
                let rate = Measurement { direction, order, unit: 4096, depth: 4, time }.run(&scratch).unwrap();
                assert!(rate > 0.0, "{direction:?} {order:?}");
            }
        }
    }
}
