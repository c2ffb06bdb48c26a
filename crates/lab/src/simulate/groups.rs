//! HashKV's groups: the hash of a key says where its values are.

use bifold_values::parts::victim::{self, Candidate, Victim};

use super::{
    Collect, Pick,
    segments::{Number, Segments},
};
use crate::random::mix;

/// Where values go that were not updated between two GC runs of their group (HashKV §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cold {
    /// They stay in their group.
    InGroup,
    /// To a second segment of their group, which is collected with the first one.
    Segments,
    /// To a log for all groups. Of its files the oldest is considered.
    OldestFile,
    /// The same; all of its files are considered.
    AnyFile,
}

/// All groups, and the log of cold values.
pub(super) struct Groups {
    segments: Segments,
    victim: Victim,
    cold: Cold,
    /// The first segment of each group.
    hot: Vec<Number>,
    /// The second.
    second: Vec<Number>,
    log: Log,
}

/// The log of cold values.
struct Log {
    /// Values in a full file.
    length: u32,
    open: Option<Number>,
    /// Full files, oldest first.
    sealed: Vec<Number>,
}

/// What is collected at once.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    /// The first segment of a group.
    Hot(usize),
    /// Both.
    Both(usize),
    /// A file of the log, by its position.
    File(usize),
}

impl Groups {
    /// For so many keys in so many groups, with files of the log of so many values.
    pub fn new((keys, groups, file): (u32, u32, u32), victim: Victim, cold: Cold) -> Self {
        let mut segments = Segments::new(keys);
        let mut begin = || (0..groups).map(|_| segments.begin()).collect::<Vec<_>>();
        let (hot, second) = (begin(), begin());
        let log = Log { length: file.max(1), open: None, sealed: Vec::new() };
        Self { segments, victim, cold, hot, second, log }
    }

    fn group(&self, key: u32) -> usize {
        (mix(u64::from(key)) % self.hot.len() as u64) as usize
    }

    /// All units, and what is in them.
    fn units(&self) -> Vec<(Unit, Candidate)> {
        let hot = |(at, &hot)| (Unit::Hot(at), self.segments.candidate([hot]));
        let mut units: Vec<_> = self.hot.iter().enumerate().map(hot).collect();
        match self.cold {
            Cold::InGroup => {}
            Cold::Segments => {
                let both = |(at, (&hot, &second))| (Unit::Both(at), self.segments.candidate([hot, second]));
                units.extend(self.hot.iter().zip(&self.second).enumerate().map(both));
            }
            Cold::OldestFile | Cold::AnyFile => {
                let most = if self.cold == Cold::AnyFile { usize::MAX } else { 1 };
                let file = |(at, &file)| (Unit::File(at), self.segments.candidate([file]));
                units.extend(self.log.sealed.iter().enumerate().take(most).map(file));
            }
        }
        units
    }

    fn copy_to_log(&mut self, key: u32) {
        let Log { open, sealed, length } = &mut self.log;
        if let Some(full) = open.take_if(|file| self.segments.len(*file) >= *length) {
            self.segments.seal(full);
            sealed.push(full);
        }
        let to = *open.get_or_insert_with(|| self.segments.begin());
        self.segments.copy(to, key);
    }
}

impl Collect for Groups {
    type Unit = Unit;

    fn write(&mut self, key: u32) {
        let group = self.group(key);
        self.segments.write(self.hot[group], key);
    }

    fn pick(&mut self) -> Option<Pick<Unit>> {
        let units = self.units();
        let candidates: Vec<Candidate> = units.iter().map(|(_, candidate)| *candidate).collect();
        let ranked = victim::rank(self.victim, &candidates, self.segments.clock);
        let first = ranked.into_iter().map(|(at, _score)| &units[at]).find(|(_, candidate)| candidate.dead > 0);
        let largest = candidates.iter().map(|candidate| candidate.live).max()?;
        first.map(|(unit, candidate)| Pick { unit: *unit, live: candidate.live, largest })
    }

    fn collect(&mut self, unit: Unit) {
        let (group, with_second) = match unit {
            Unit::Hot(group) => (group, false),
            Unit::Both(group) => (group, true),
            Unit::File(at) => {
                let file = self.log.sealed.remove(at);
                return self.segments.end(file).into_iter().for_each(|live| self.copy_to_log(live.key));
            }
        };
        let (hot, second) = (self.hot[group], self.second[group]);
        let cold = if with_second { self.segments.take(second) } else { Vec::new() };
        for live in self.segments.take(hot) {
            match self.cold {
                _ if live.was_updated => self.segments.copy(hot, live.key),
                Cold::InGroup => self.segments.copy(hot, live.key),
                Cold::Segments => self.segments.copy(second, live.key),
                Cold::OldestFile | Cold::AnyFile => self.copy_to_log(live.key),
            }
        }
        cold.into_iter().for_each(|live| self.segments.copy(second, live.key));
    }

    fn segments(&self) -> &Segments {
        &self.segments
    }
}
