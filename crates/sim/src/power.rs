//! Power loss at every I/O: a history runs on files in memory. Before every operation that changes a file or a
//! directory, images are taken of what a power loss at that moment could leave, and each image is opened and judged.
//!
//! The images of one moment: everything passed to the system kept (what a killed process leaves), everything unsynced
//! lost, and random subsets of unsynced sectors, lengths and directory entries.

use std::cell::Cell;

use crate::{
    camera::{Camera, Image, Plan},
    driver::{Driver, Watcher},
    env,
    history::{Flavor, History, Mix, Op},
    judge::{Depth, Judge},
    model::Model,
    nested,
    options::OptionSet,
    read::Trouble,
    report::{Report, guarded, time_is_up},
};

/// What is run for each seed.
#[derive(Clone, Copy, Debug)]
pub struct PowerSizes {
    /// The history.
    pub mix: Mix,
    /// Images are taken after every `every`th change of the files.
    pub every: u64,
    /// Random images per moment, in addition to "keep all" and "lose all".
    pub random: u64,
    /// One in `thorough` images is judged thoroughly.
    pub thorough: u64,
    /// Crashes within recovery, if any.
    pub nested: Option<nested::NestedSizes>,
}

impl PowerSizes {
    /// Short histories, every change, a few random images each.
    #[must_use]
    pub fn usual() -> Self {
        Self { mix: Mix { ops: 70, keys: 40, flavor: Flavor::Files }, every: 1, random: 2, thorough: 16, nested: None }
    }

    /// For a history of its own: every change, a random image each, few of them judged thoroughly.
    #[must_use]
    pub fn of_given_history() -> Self {
        Self { random: 1, thorough: 64, ..Self::usual() }
    }
}

/// Judges the images of one call.
pub struct Watch<'a> {
    camera: Camera,
    judge: Judge,
    sizes: PowerSizes,
    only: Option<u64>,
    report: &'a mut Report,
    /// The image being judged, for the report of a failure.
    current: &'a Cell<Option<u64>>,
}

impl Watcher for Watch<'_> {
    fn before_acknowledge(&mut self, model: &Model) -> Result<(), Trouble> {
        for image in self.camera.take() {
            self.current.set(Some(image.number));
            self.examine(&image, model).map_err(|t| t.during(&image))?;
        }
        self.current.set(None);
        Ok(())
    }

    fn pause(&mut self) {
        self.camera.pause();
    }

    fn resume(&mut self) {
        self.camera.resume();
    }
}

impl Watch<'_> {
    fn examine(&mut self, image: &Image, model: &Model) -> Result<(), Trouble> {
        if time_is_up() {
            self.report.count("images passed over when time was up", 1);
            return Ok(());
        }
        let thorough = self.only.is_some() || image.number.is_multiple_of(self.sizes.thorough);
        if let Some(sizes) = self.sizes.nested {
            nested::examine(&self.judge, image, model, sizes, self.report)?;
        }
        let depth = if thorough { Depth::Thorough } else { Depth::Quick };
        self.judge.judge(&image.fs, model, image.crash, depth)?;
        self.report.count("power-loss images", 1);
        self.report.count("of them thoroughly judged", u64::from(thorough));
        Ok(())
    }
}

/// Runs the history of `seed` and judges all images, or only image number `only`.
#[must_use]
pub fn run(name: &str, seed: u64, sizes: PowerSizes, only: Option<u64>) -> Report {
    let history = History::new(seed, sizes.mix).with_changes_of_options();
    let set = OptionSet::of(&history, 0);
    run_history(&format!("{name} --seed {seed}"), &history, &set, sizes, only)
}

/// Runs a history under an option set and judges its images. `replay` is the command line that repeats it.
#[must_use]
pub fn run_history(replay: &str, history: &History, set: &OptionSet, sizes: PowerSizes, only: Option<u64>) -> Report {
    let mut report = Report::default();
    let current = Cell::new(None);
    let outcome = guarded(|| {
        let fs = env::disk(history.seed);
        let camera = Camera::new(&fs, Plan { seed: history.seed, every: sizes.every, random: sizes.random, only });
        let judge = Judge { set: set.clone(), seed: history.seed, extras: history.extras };
        let watch = Watch { camera, judge, sizes, only, report: &mut report, current: &current };
        let driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set.clone(), Model::default(), watch);
        drive(driver, history)
    });
    report.count("histories", 1);
    if let Err(trouble) = outcome {
        let image = current.get().map_or(String::new(), |number| format!(" --image {number}"));
        report.fail(format!("{replay}{image}"), &trouble);
    }
    report
}

fn drive(mut driver: Driver<Watch<'_>>, history: &History) -> Result<(), Trouble> {
    driver.open().map_err(|t| t.during("first open"))?;
    let ops = history.ops.iter().map(|(at, op)| (*at, op.clone()));
    for (at, op) in ops.chain([(usize::MAX, Op::Reopen)]) {
        driver.step(&op).map_err(|t| t.during(format!("operation {at} ({op})")))?;
    }
    driver.compare_everything().map_err(|t| t.during("at the end"))?;
    driver.close()
}
