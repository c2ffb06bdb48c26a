//! FileStreams in the order of arrival, in one stream or several.

use bifold_values::parts::{sketch::Sketch, victim::Candidate};

use super::{
    Collect, Pick,
    segments::{Number, Segments},
};
use crate::random::mix;

/// Where users' writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// To one file.
    Together,
    /// To one for each class of update frequency, as in the placement `streams`.
    ByFrequency,
}

/// Which file is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    /// The oldest.
    Oldest,
    /// That with the largest share of dead values.
    MostDead,
    /// Dead values for each live one, times the age of the file.
    CostBenefit,
}

/// Where copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survivors {
    /// To the file that users' writes go to.
    WithWrites,
    /// To a file of their own.
    Together,
    /// To one of four, by the time since a user wrote the value.
    ByAge,
}

/// Classes of update frequency: 1, 2 to 3, 4 to 7, 8 to 14 times recently, and more often.
const CLASSES: usize = 5;
/// Classes of age.
const AGES: usize = 4;

/// All files.
pub(super) struct FileStreams {
    segments: Segments,
    rules: (Writes, Victims, Survivors),
    /// Values in a full file.
    length: u32,
    open: [Option<Number>; CLASSES + AGES],
    /// Full files, oldest first.
    sealed: Vec<Number>,
    sketch: Sketch,
    /// When a user wrote each key last.
    written_at: Vec<u64>,
}

impl FileStreams {
    /// For so many keys, with files of so many values.
    pub fn new((keys, length): (u32, u32), rules: (Writes, Victims, Survivors)) -> Self {
        let mut sketch = Sketch::default();
        while sketch.is_small_for(u64::from(keys)) {
            sketch.grow();
        }
        Self {
            segments: Segments::new(keys),
            rules,
            length: length.max(1),
            open: Default::default(),
            sealed: Vec::new(),
            sketch,
            written_at: vec![0; keys as usize],
        }
    }

    /// The open file of a stream.
    fn file(&mut self, stream: usize) -> Number {
        let Self { segments, open, sealed, length, .. } = self;
        if let Some(full) = open[stream].take_if(|file| segments.len(*file) >= *length) {
            segments.seal(full);
            sealed.push(full);
        }
        *open[stream].get_or_insert_with(|| segments.begin())
    }

    fn stream_of_write(&mut self, key: u32) -> usize {
        if self.rules.0 == Writes::Together {
            return 0;
        }
        match self.sketch.count(mix(u64::from(key))) {
            0..=1 => 0,
            2..=3 => 1,
            4..=7 => 2,
            8..=14 => 3,
            _ => 4,
        }
    }

    fn stream_of_copy(&self, key: u32) -> usize {
        let keys = self.written_at.len() as u64;
        let age = self.segments.clock - self.written_at[key as usize];
        match self.rules.2 {
            Survivors::WithWrites => 0,
            Survivors::Together => CLASSES,
            Survivors::ByAge => CLASSES + [keys / 4, keys, 4 * keys].iter().filter(|&&bound| age >= bound).count(),
        }
    }

    fn score(&self, unit: &Candidate) -> f64 {
        match self.rules.1 {
            // The first of equals is taken, and files are in the order of their age.
            Victims::Oldest => 0.0,
            Victims::MostDead => unit.dead as f64 / (unit.live + unit.dead) as f64,
            Victims::CostBenefit => unit.rest / (unit.live as f64 + 1.0),
        }
    }
}

impl Collect for FileStreams {
    /// A position among the full files.
    type Unit = usize;

    fn write(&mut self, key: u32) {
        let stream = self.stream_of_write(key);
        let file = self.file(stream);
        self.segments.write(file, key);
        self.written_at[key as usize] = self.segments.clock;
    }

    fn pick(&mut self) -> Option<Pick<usize>> {
        let mut best: Option<(usize, u64, f64)> = None;
        let mut largest = 0;
        for (at, &file) in self.sealed.iter().enumerate() {
            let unit = self.segments.candidate([file]);
            largest = largest.max(unit.live);
            let score = self.score(&unit);
            let counts = unit.dead > 0 || self.rules.1 == Victims::Oldest;
            if counts && best.is_none_or(|(_, _, most)| score > most) {
                best = Some((at, unit.live, score));
            }
        }
        best.map(|(unit, live, _)| Pick { unit, live, largest })
    }

    fn collect(&mut self, unit: usize) {
        let file = self.sealed.remove(unit);
        for live in self.segments.end(file) {
            let to = self.stream_of_copy(live.key);
            let to = self.file(to);
            self.segments.copy(to, live.key);
        }
    }

    fn segments(&self) -> &Segments {
        &self.segments
    }
}
