//! Crashes within recovery from a crash: the image of a crash is opened, images are taken at the I/O operations of
//! that recovery, and so on. Each must be as good as the first: what was promised before the first crash holds after
//! the last.

use bifold_io::memory::MemoryFs;

use crate::{
    camera::{Camera, Image, Plan},
    env,
    judge::{Depth, Judge},
    model::{Crash, Model},
    read::Trouble,
    report::Report,
};

/// How many nested crashes are tested.
#[derive(Clone, Copy, Debug)]
pub struct NestedSizes {
    /// One in `every` first images crashes again while it is opened.
    pub every: u64,
    /// One in `third_every` second images crashes a third time.
    pub third_every: u64,
    /// Random images per moment.
    pub random: u64,
}

/// Crashes the recovery of `image` at every I/O it does.
///
/// # Errors
/// The first image that is not as good as the first crash allowed.
pub fn examine(
    judge: &Judge,
    image: &Image,
    model: &Model,
    sizes: NestedSizes,
    report: &mut Report,
) -> Result<(), Trouble> {
    if !image.number.is_multiple_of(sizes.every) {
        return Ok(());
    }
    for second in crashes_of_recovery((judge, model), &image.fs, plan_of(judge, image, sizes))? {
        let crash = image.crash.then(second.crash);
        if second.number.is_multiple_of(sizes.third_every) {
            for third in crashes_of_recovery((judge, model), &second.fs, plan_of(judge, &second, sizes))? {
                judge
                    .judge(&third.fs, model, crash.then(third.crash), Depth::Quick)
                    .map_err(|t| t.during(format!("{second}, again {third}")))?;
                report.count("crashes in recovery from a crash in recovery", 1);
            }
        }
        judge.judge(&second.fs, model, crash, Depth::Quick).map_err(|t| t.during(format!("then {second}")))?;
        report.count("crashes in recovery", 1);
    }
    Ok(())
}

/// Crashes the recovery of what a killed process has left, at one in `every` I/Os.
///
/// # Errors
/// The first image that is not as good as the kill allowed.
pub fn examine_killed(
    judge: &Judge,
    left: &MemoryFs,
    model: &Model,
    every: u64,
    report: &mut Report,
) -> Result<(), Trouble> {
    let plan = Plan { seed: judge.seed, every, random: 0, only: None };
    for second in crashes_of_recovery((judge, model), left, plan)? {
        let crash = Crash::Kill.then(second.crash);
        judge.judge(&second.fs, model, crash, Depth::Quick).map_err(|t| t.during(format!("then {second}")))?;
        report.count("crashes in recovery", 1);
    }
    Ok(())
}

fn plan_of(judge: &Judge, image: &Image, sizes: NestedSizes) -> Plan {
    Plan { seed: judge.seed ^ image.number, every: 1, random: sizes.random, only: None }
}

fn crashes_of_recovery((judge, model): (&Judge, &Model), left: &MemoryFs, plan: Plan) -> Result<Vec<Image>, Trouble> {
    let copy = left.fork();
    let mut camera = Camera::new(&copy, plan);
    let db = bifold::Db::open_in(env::simulated(&copy), env::DIR, judge.set.to_open(model))
        .map_err(|e| Trouble::from(e).during("open after the crash"))?;
    let images = camera.take();
    drop(db);
    Ok(images)
}
