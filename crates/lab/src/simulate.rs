//! What a design of GC must write: its rules alone, without an engine.
//!
//! ```text
//! updates ─▶ write buffer, if any ─▶ segments: files or groups ─▶ GC copies while space is above its bound
//! ```
//!
//! All values have one length, which is the unit of everything here. There is no log, no index and no header, and what
//! is dead is known at once: so the figures are what the rules cost, and an engine can only write more. Victims are
//! chosen by the engine's own code (`victim.rs`), and update frequencies counted by its own sketch (`sketch.rs`).
//!
//! | file | what it is |
//! |---|---|
//! | `segments` | lists of values, and where the newest value of each key is |
//! | `files` | files in the order of arrival: WiscKey's log, and ours by frequency and age |
//! | `groups` | HashKV's groups; cold values stay in them or are separated |

mod files;
mod groups;
mod segments;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use bifold_values::parts::victim::Victim;

use self::{
    files::{FileStreams, Survivors, Writes},
    groups::{Cold, Groups},
    segments::Segments,
};
use crate::{
    Failure, Result,
    choose::{Chooser, Distribution},
    random::Random,
};

/// Which keys are updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Updates {
    /// All alike.
    Uniform,
    /// By Zipf's law, with this skew.
    Zipf(f64),
    /// Nine of ten are to a tenth of the keys: another tenth after as many updates as there are keys.
    Shifting,
}

impl Updates {
    fn distribution(self) -> Distribution {
        match self {
            Self::Uniform => Distribution::Uniform,
            Self::Zipf(theta) => Distribution::Zipf { theta },
            Self::Shifting => Distribution::Shifting,
        }
    }
}

impl FromStr for Updates {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let skew = |skew: &str| skew.parse().ok().filter(|&skew: &f64| skew > 0.0 && skew < 1.0);
        match text.split_once(':') {
            None if text == "uniform" => Ok(Self::Uniform),
            None if text == "zipf" => Ok(Self::Zipf(0.99)),
            None if text == "shifting" => Ok(Self::Shifting),
            Some(("zipf", theta)) => skew(theta)
                .map(Self::Zipf)
                .ok_or_else(|| format!("a skew of {theta}: it must be between 0 and 1, such as zipf:0.99")),
            _ => Err("it must be uniform, zipf, zipf:SKEW or shifting".to_owned()),
        }
    }
}

impl fmt::Display for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(theta) => write!(f, "zipf:{theta}"),
            Self::Shifting => f.write_str("shifting"),
        }
    }
}

/// A design that can be simulated.
#[derive(Clone, Copy, Debug)]
pub struct Design {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    rules: Rules,
}

#[derive(Clone, Copy, Debug)]
enum Rules {
    OfFiles(Writes, files::Victims, Survivors),
    OfGroups(Victim, Cold),
}

const fn files(name: &'static str, about: &'static str, rules: (Writes, files::Victims, Survivors)) -> Design {
    Design { name, about, rules: Rules::OfFiles(rules.0, rules.1, rules.2) }
}

const fn groups(name: &'static str, about: &'static str, victim: Victim, cold: Cold) -> Design {
    Design { name, about, rules: Rules::OfGroups(victim, cold) }
}

/// All designs.
pub const DESIGNS: [Design; 10] = [
    files(
        "log",
        "WiscKey: one log, its oldest file is collected",
        (Writes::Together, files::Victims::Oldest, Survivors::WithWrites),
    ),
    files(
        "greedy",
        "files, that with most garbage is collected; survivors go to files of their own",
        (Writes::Together, files::Victims::MostDead, Survivors::Together),
    ),
    files(
        "cost-benefit",
        "files, by garbage per live value times age; survivors go to files of their own",
        (Writes::Together, files::Victims::CostBenefit, Survivors::Together),
    ),
    files(
        "by-age",
        "the same, survivors in four streams by age",
        (Writes::Together, files::Victims::CostBenefit, Survivors::ByAge),
    ),
    files(
        "streams",
        "the same, writes in five streams by frequency: the placement `streams`",
        (Writes::ByFrequency, files::Victims::CostBenefit, Survivors::ByAge),
    ),
    groups("hashkv", "HashKV: groups by hash, that with most writes is collected", Victim::Greedy, Cold::InGroup),
    groups("hashkv-cost-benefit", "groups by garbage per live value times age", Victim::CostBenefit, Cold::InGroup),
    groups(
        "hashkv-oldest-log",
        "the same; values without an update go to a log, whose oldest file is collected",
        Victim::CostBenefit,
        Cold::OldestFile,
    ),
    groups("hashkv-log", "the same, but any file of the log: `cold = \"log\"`", Victim::CostBenefit, Cold::AnyFile),
    groups(
        "hashkv-segments",
        "they go to a cold segment of their group: the placement `hashkv`",
        Victim::CostBenefit,
        Cold::Segments,
    ),
];

impl FromStr for Design {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        DESIGNS.into_iter().find(|design| design.name == name).ok_or_else(|| {
            let names: Vec<_> = DESIGNS.iter().map(|design| design.name).collect();
            format!("there is no design of this name: they are {}", names.join(", "))
        })
    }
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    /// Keys, each of which is written once before the updates begin.
    pub keys: u32,
    /// Updates. What the second half of them writes is the result.
    pub updates: u64,
    /// Which keys they are of.
    pub which: Updates,
    /// At most so many values are stored for each live one, those that GC is copying included.
    pub space_target: f64,
    /// Files as long as this share of the keys.
    pub files: u32,
    /// Groups.
    pub groups: u32,
    /// Values in the write buffer, whose overwritten values are not written; 0 for none.
    pub buffer: u32,
    /// Of the random numbers.
    pub seed: u64,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            keys: 200_000,
            updates: 2_000_000,
            which: Updates::Zipf(0.99),
            space_target: 1.25,
            files: 640,
            groups: 64,
            buffer: 0,
            seed: 1,
        }
    }
}

/// What a design wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Values written for each update: updates that were not absorbed, and copies.
    pub written: f64,
    /// Values copied for each update.
    pub copied: f64,
    /// The share of updates that the write buffer absorbed.
    pub absorbed: f64,
    /// Stored values for each live one, at most.
    pub space_max: f64,
}

/// What a simulation asks of a design.
trait Collect {
    /// A unit of GC.
    type Unit;

    /// The key is written.
    fn write(&mut self, key: u32);

    /// What to collect next. `None` if nothing is dead in any unit.
    fn pick(&mut self) -> Option<Pick<Self::Unit>>;

    /// Copies what is live in it.
    fn collect(&mut self, unit: Self::Unit);

    /// The values.
    fn segments(&self) -> &Segments;
}

/// What to collect next.
struct Pick<U> {
    unit: U,
    /// Its live values, which are copied.
    live: u64,
    /// Those of the unit that has most: there must be room for its copies.
    largest: u64,
}

impl Simulation {
    /// Whether it can be simulated.
    ///
    /// # Errors
    /// [`Failure::Plan`] for numbers that make no sense.
    pub fn check(&self) -> Result<()> {
        let wrong = |words: String| Err(Failure::Plan(words));
        let units = self.files.max(self.groups);
        if units == 0 || self.files == 0 || self.groups == 0 {
            return wrong("there must be at least one file and one group (--files, --groups)".to_owned());
        }
        let keys_least = 16 * u64::from(units);
        if u64::from(self.keys) < keys_least {
            return wrong(format!("{} keys in {units} files or groups: give --keys {keys_least} or more", self.keys));
        }
        if self.updates < 2 {
            return wrong("give --updates 2 or more: what the second half of them writes is the result".to_owned());
        }
        // Open files, and the copies of a unit, are within the bound.
        let least = 1.0 + (20.0 / f64::from(self.files)).max(2.0 / f64::from(self.groups));
        if !(least..=10.0).contains(&self.space_target) {
            return wrong(format!(
                "a space target of {}: with {} files and {} groups it must be between {least:.3} and 10",
                self.space_target, self.files, self.groups
            ));
        }
        Ok(())
    }

    /// Simulates `design`. `progress` is told how many updates are done.
    ///
    /// # Errors
    /// As [`Simulation::check`].
    pub fn run(&self, design: Design, progress: &mut dyn FnMut(u64)) -> Result<Outcome> {
        self.check()?;
        match design.rules {
            Rules::OfFiles(writes, victims, survivors) => {
                let length = self.keys / self.files;
                self.run_on(FileStreams::new((self.keys, length), (writes, victims, survivors)), progress)
            }
            Rules::OfGroups(victim, cold) => {
                let file = self.keys / self.files;
                self.run_on(Groups::new((self.keys, self.groups, file), victim, cold), progress)
            }
        }
    }

    fn run_on<D: Collect>(&self, design: D, progress: &mut dyn FnMut(u64)) -> Result<Outcome> {
        let limit = (f64::from(self.keys) * self.space_target) as u64;
        let mut bounded = Bounded { design, limit, look_at: 0, stored_max: 0 };
        (0..self.keys).for_each(|key| bounded.write(key));
        let mut buffer = Buffer::new(self.keys, self.buffer);
        let mut chooser = Chooser::new(self.which.distribution(), u64::from(self.keys))?;
        let mut random = Random::new(self.seed, 0);
        let half = self.updates / 2;
        let (mut copied, mut absorbed) = (0, 0);
        for done in 0..self.updates {
            if done == half {
                (copied, absorbed) = (bounded.design.segments().copied, buffer.absorbed);
            }
            let key = chooser.choose(&mut random) as u32;
            buffer.write(key, |key| bounded.write(key));
            if done % 1024 == 0 {
                progress(done);
            }
        }
        let updates = (self.updates - half) as f64;
        let copied = (bounded.design.segments().copied - copied) as f64 / updates;
        let absorbed = (buffer.absorbed - absorbed) as f64 / updates;
        let space_max = bounded.stored_max as f64 / f64::from(self.keys);
        Ok(Outcome { written: 1.0 - absorbed + copied, copied, absorbed, space_max })
    }
}

/// A design whose space is bounded.
struct Bounded<D> {
    design: D,
    limit: u64,
    /// Below so many stored values there is room for the copies of any unit.
    look_at: u64,
    stored_max: u64,
}

impl<D: Collect> Bounded<D> {
    fn write(&mut self, key: u32) {
        self.design.write(key);
        while self.design.segments().stored >= self.look_at {
            let stored = self.design.segments().stored;
            let Some(Pick { unit, live, largest }) = self.design.pick() else {
                self.look_at = stored + 1;
                break;
            };
            if stored + largest < self.limit {
                self.look_at = self.limit - largest;
                break;
            }
            self.stored_max = self.stored_max.max(stored + live);
            self.design.collect(unit);
            self.look_at = 0;
        }
    }
}

/// A write buffer: a value in it is overwritten in place, and all are written when it is full (HashKV §3.8).
struct Buffer {
    has: Vec<bool>,
    keys: Vec<u32>,
    most: usize,
    absorbed: u64,
}

impl Buffer {
    fn new(keys: u32, most: u32) -> Self {
        let has = if most == 0 { Vec::new() } else { vec![false; keys as usize] };
        Self { has, keys: Vec::with_capacity(most as usize), most: most as usize, absorbed: 0 }
    }

    fn write(&mut self, key: u32, mut pass_on: impl FnMut(u32)) {
        if self.most == 0 {
            return pass_on(key);
        }
        if std::mem::replace(&mut self.has[key as usize], true) {
            self.absorbed += 1;
            return;
        }
        self.keys.push(key);
        if self.keys.len() == self.most {
            for key in self.keys.drain(..) {
                self.has[key as usize] = false;
                pass_on(key);
            }
        }
    }
}
