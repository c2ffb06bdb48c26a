//! The files that commits append to: one for each class of update frequency.

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, Pointer, Result, SeqNo};
use bifold_format::{compression::Compressor, filter::key_hash, value};

use super::{clock::Clock, file_bytes};
use crate::{
    parts::{
        sketch::Sketch,
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
    },
    placements::Settings,
};

/// Classes of update frequency: keys written 1, 2 to 3, 4 to 7, 8 to 14 times recently, and more often.
const CLASSES: usize = 5;

/// The number of live values is looked at once in as many puts as the sketch has keys, divided by this: it cannot be
/// much too small before.
const LOOK_SHARE: u64 = 8;

/// The open files, and what decides between them.
pub struct Heads {
    files: Arc<ValueFiles>,
    options: Settings,
    state: Mutex<State>,
}

struct State {
    /// Each with the length at which it is cut.
    open: [Option<(Arc<ValueFile>, u64)>; CLASSES],
    sketch: Sketch,
    /// Puts until the number of live values is looked at.
    until_look: u64,
    record: Vec<u8>,
    compressor: Compressor,
}

/// The class of a key that was written so often recently: the logarithm of the count.
fn class(count: u8) -> usize {
    match count {
        0..=1 => 0,
        2..=3 => 1,
        4..=7 => 2,
        8..=14 => 3,
        _ => 4,
    }
}

impl Heads {
    /// No file is open yet.
    #[must_use]
    pub fn new(files: Arc<ValueFiles>, options: &Settings) -> Self {
        let state = State {
            open: Default::default(),
            sketch: Sketch::default(),
            until_look: 0,
            record: Vec::new(),
            compressor: Compressor::new(options.now().compression),
        };
        Self { files, options: options.clone(), state: Mutex::new(state) }
    }

    /// Appends a value to the file of its class and returns where it is. `live_values` estimates how many there
    /// are.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn append(
        &self,
        (seqno, key, value): (SeqNo, &[u8], &[u8]),
        clock: &Clock,
        live_values: impl FnOnce() -> u64,
    ) -> Result<Pointer> {
        let mut state = self.state.hold();
        let State { open, sketch, until_look, record, compressor } = &mut *state;
        if *until_look == 0 {
            let live = live_values();
            while sketch.is_small_for(live) {
                sketch.grow();
            }
            if sketch.is_large_for(live) {
                sketch.shrink();
            }
            *until_look = sketch.keys() / LOOK_SHARE;
        }
        *until_look -= 1;
        let class = class(sketch.count(key_hash(key)));
        let options = self.options.now();
        if let Some((file, full)) = &open[class]
            && file.len() >= *full
        {
            clock.sealed(file.id);
            open[class] = None;
        }
        let (file, _) = match &mut open[class] {
            Some(open) => open,
            none => none.insert((self.files.begin(class as u64)?, file_bytes(&options, &self.files, clock))),
        };
        record.clear();
        compressor.switch_to(options.compression);
        value::encode_value(record, (file.id, file.len()), seqno, key, value, compressor);
        let pointer = self.files.append(file, record)?;
        clock.wrote(seqno, u64::from(pointer.len));
        Ok(pointer)
    }

    /// The files that are appended to.
    #[must_use]
    pub fn open(&self) -> Vec<FileId> {
        self.state.hold().open.iter().flatten().map(|(file, _)| file.id).collect()
    }

    /// Nothing is appended to the present files any more.
    pub fn seal(&self, clock: &Clock) {
        let mut state = self.state.hold();
        for (file, _) in std::mem::take(&mut state.open).into_iter().flatten() {
            clock.sealed(file.id);
        }
    }

    /// Memory of the sketch.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.state.hold().sketch.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use bifold_format::compression::Compression;
    use bifold_io::memory::MemoryFs;

    use super::{super::Streams, *};
    use crate::{
        parts::value_files::scratch::value_files,
        placement::{Placement, WriteOp},
        placements::SMALL,
    };

    /// With one for as many short values, counts age so slowly that all keys seem to be written often.
    #[test]
    fn a_session_begins_with_a_sketch_for_the_values_that_are_there() {
        let files = Arc::new(value_files(&MemoryFs::new(), 100));
        let file = files.begin(0).unwrap();
        let (long, mut plain) = (vec![1; 1 << 20], Compressor::new(Compression::None));
        for seqno in 1..=16 {
            let mut record = Vec::new();
            value::encode_value(&mut record, (file.id, file.len()), seqno, b"key", &long, &mut plain);
            files.append(&file, &record).unwrap();
        }
        let streams = Streams::open(&files, &Settings::new(SMALL)).unwrap();
        let put = WriteOp::Put { key: b"key", value: &[1; 1000] };
        assert!(streams.write(put, 17).unwrap().is_some());
        assert_eq!(streams.heads.memory_bytes(), Sketch::default().memory_bytes(), "for 17 values");
    }
}
