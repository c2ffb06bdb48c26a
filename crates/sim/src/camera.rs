//! Images of what a crash may leave, taken after every change of the files.
//!
//! A crash *before* a change leaves the same as one after the previous change, so no moment is missed.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bifold_io::memory::{Fate, MemoryFs, OpKind};

use crate::{model::Crash, random::mix};

/// Which images are taken.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of the random ones.
    pub seed: u64,
    /// Images are taken after every `every`th change.
    pub every: u64,
    /// Random images per moment, in addition to "all kept" and "all unsynced lost".
    pub random: u64,
    /// Only the image with this number is taken.
    pub only: Option<u64>,
}

/// One image.
#[derive(Debug)]
pub struct Image {
    /// Its number within the run.
    pub number: u64,
    /// The kind of crash.
    pub crash: Crash,
    /// The files.
    pub fs: MemoryFs,
    fate: Fate,
    after: String,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image {} ({:?} after {}, {:?})", self.number, self.crash, self.after, self.fate)
    }
}

/// Takes images of one file system as long as it lives.
pub struct Camera {
    fs: MemoryFs,
    roll: Arc<Mutex<Roll>>,
}

struct Roll {
    plan: Plan,
    paused: bool,
    moments: u64,
    number: u64,
    images: Vec<Image>,
}

impl Camera {
    /// A camera on `fs`.
    #[must_use]
    pub fn new(fs: &MemoryFs, plan: Plan) -> Self {
        let roll = Arc::new(Mutex::new(Roll { plan, paused: false, moments: 0, number: 0, images: Vec::new() }));
        let (hook, files) = (Arc::clone(&roll), fs.clone());
        fs.set_hook(Some(Arc::new(move |_number, kind, path| hold(&hook).after(&files, kind, path))));
        Self { fs: fs.clone(), roll }
    }

    /// The images taken since the last call.
    pub fn take(&mut self) -> Vec<Image> {
        std::mem::take(&mut hold(&self.roll).images)
    }

    /// Stops taking images until [`Camera::resume`].
    pub fn pause(&self) {
        hold(&self.roll).paused = true;
    }

    /// Takes images again.
    pub fn resume(&self) {
        hold(&self.roll).paused = false;
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        // The hook owns a handle of the files, which own the hook.
        self.fs.set_hook(None);
    }
}

impl Roll {
    fn after(&mut self, fs: &MemoryFs, kind: OpKind, path: &Path) {
        if self.paused {
            return;
        }
        self.moments += 1;
        if !self.moments.is_multiple_of(self.plan.every) {
            return;
        }
        // An append to a mapped file is several stores, and each is a moment: images are taken at one in three.
        if kind == OpKind::Store && !mix(self.plan.seed ^ mix(self.moments)).is_multiple_of(3) {
            return;
        }
        let place = || format!("{kind:?} of {}", path.display());
        self.take(fs, Crash::Kill, Fate::KeepAll, place);
        self.take(fs, Crash::Power, Fate::DropUnsynced, place);
        for nth in 0..self.plan.random {
            let seed = mix(self.plan.seed ^ mix(self.moments) ^ nth);
            let fate = if nth % 4 == 3 { Fate::Prefix(seed) } else { Fate::Random(seed) };
            self.take(fs, Crash::Power, fate, place);
        }
    }

    fn take(&mut self, fs: &MemoryFs, crash: Crash, fate: Fate, place: impl Fn() -> String) {
        self.number += 1;
        let number = self.number;
        if self.plan.only.is_none_or(|only| only == number) {
            // A killed process leaves unsynced bytes unsynced: they may be lost with power later.
            let copy = if crash == Crash::Kill { fs.fork() } else { fs.power_loss(fate) };
            self.images.push(Image { number, crash, fs: copy, fate, after: place() });
        }
    }
}

fn hold(roll: &Mutex<Roll>) -> MutexGuard<'_, Roll> {
    roll.lock().unwrap_or_else(PoisonError::into_inner)
}
