//! Power loss and kills at changes of the files and of the index, each image opened, compared with the model, worked
//! on, opened again; a few crash within recovery, too.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_io::memory::{Fate, MemoryFs};
use bifold_over::{Options, Placement, Store};

use crate::{
    memory_index::{Kept, MemoryIndex},
    program::{DIR, Model, Program, Shared, assert_same, contents, env, no_orphans, small},
    random::Random,
};

struct Image {
    fs: MemoryFs,
    index: MemoryIndex,
    model: Model,
    /// The least number of commits that must be there.
    least: usize,
    what: String,
}

/// Takes images of files and index together, at one change in `every`.
struct Camera {
    fs: MemoryFs,
    index: MemoryIndex,
    images: Arc<Mutex<Vec<Image>>>,
}

impl Camera {
    fn new(fs: &MemoryFs, index: &MemoryIndex, model: &Shared, (seed, every): (u64, u64)) -> Self {
        let images = Arc::new(Mutex::new(Vec::new()));
        let moments = AtomicU64::new(Random::new(seed).below(every));
        let (to, from, foreign, shared) = (Arc::clone(&images), fs.clone(), index.clone(), model.clone());
        let take = Arc::new(move |after: String| {
            let moment = moments.fetch_add(1, Relaxed);
            if !moment.is_multiple_of(every) {
                return;
            }
            let mut random = Random::new(seed ^ moment << 20);
            let model = shared.hold().clone();
            let add = |fs, index, least, what: String| {
                let what = format!("{what} after {after}, moment {moment}");
                to.lock().unwrap().push(Image { fs, index, model: model.clone(), least, what });
            };
            add(from.fork(), foreign.fork(), model.returned, "a kill".to_owned());
            // Files and index are on one disk or on two: what each keeps has nothing to do with the other.
            for nth in 0..3 {
                let fate = match (nth + moment) % 4 {
                    0 => Fate::DropUnsynced,
                    1 => Fate::Prefix(random.next()),
                    _ => Fate::Random(random.next()),
                };
                let kept = Kept::of(random.next(), random.next());
                let what = format!("power loss ({fate:?}, {kept:?})");
                add(from.power_loss(fate), foreign.power_loss(kept), model.durable, what);
            }
        });
        let of_files = Arc::clone(&take);
        fs.set_hook(Some(Arc::new(move |_, kind, path: &Path| of_files(format!("{kind:?} of {}", path.display())))));
        index.set_hook(Some(Arc::new(move |name| take(name.to_owned()))));
        Self { fs: fs.clone(), index: index.clone(), images }
    }

    fn take(&self) -> Vec<Image> {
        std::mem::take(&mut self.images.lock().unwrap())
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.fs.set_hook(None);
        self.index.set_hook(None);
    }
}

fn open(fs: &MemoryFs, index: &MemoryIndex, options: Options) -> bifold_over::Result<Store<MemoryIndex>> {
    Store::open_in(&env(Arc::new(fs.clone())), DIR, index.clone(), options)
}

/// Opens an image, compares it, works on, closes it and opens it again. If it is `nested`, images of its recovery are
/// opened instead.
fn examine(image: &Image, options: Options, seed: u64, nested: bool) -> u64 {
    let what = format!("{} (seed {seed})", image.what);
    let (fs, index) = (image.fs.fork(), image.index.fork());
    let camera = nested.then(|| {
        let model = Shared::new(image.model.with_least(image.least));
        Camera::new(&fs, &index, &model, (seed, 11))
    });
    let store = open(&fs, &index, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = contents(&store).unwrap_or_else(|error| panic!("{what}: {error}"));
    let position = image.model.position(&found, image.least);
    let position = position.unwrap_or_else(|| panic!("{what}: the state is not one of {} and later", image.least));
    no_orphans(&fs, &store);
    let mut examined = 1;
    if let Some(camera) = camera {
        let images = camera.take();
        drop(camera);
        for again in &images {
            examined += examine(again, options, seed, false);
        }
        return examined;
    }
    if !seed.is_multiple_of(4) {
        return examined;
    }
    let model = Shared::new(image.model.at(position));
    let mut program = Program::new(seed ^ 77, model).named(&what);
    program.run(&store, 12).unwrap_or_else(|error| panic!("{what}: {error}"));
    store.gc().unwrap();
    if seed.is_multiple_of(8) {
        drop(store)
    } else {
        drop(store.close().unwrap())
    }
    let store = open(&fs, &index, options).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    assert_same(&contents(&store).unwrap(), program.model.hold().now(), &format!("{what}, again"));
    examined
}

/// Programs of an amount that CI runs in seconds; `BIFOLD_SIM_SCALE` is a percentage of that, as in the proofs.
fn seeds() -> u64 {
    let scale = std::env::var("BIFOLD_SIM_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(100);
    (6 * scale / 100u64).max(3)
}

fn crashes(placement: Placement, every: u64) {
    let examined = (0..seeds()).map(|seed| crashes_of(placement, every, seed)).sum::<u64>();
    println!("{}: {examined} images", placement.name());
    assert!(examined > 300, "{examined} images");
}

/// Examines the images of one program of four sessions. Returns how many.
fn crashes_of(placement: Placement, every: u64, seed: u64) -> u64 {
    let options = small(placement, seed);
    let (fs, index, model) = (MemoryFs::new(), MemoryIndex::default(), Shared::new(Model::new()));
    fs.set_append_region(seed.is_multiple_of(2));
    let camera = Camera::new(&fs, &index, &model, (seed, every));
    let mut program = Program::new(seed, model.clone());
    for session in 0..4 {
        let store = open(&fs, &index, options).unwrap();
        program.run(&store, 60).unwrap();
        if session % 2 == 0 { drop(store.close().unwrap()) } else { drop(store) }
    }
    let images = camera.take();
    drop(camera);
    let examined = |(at, image)| examine(image, options, seed * 1000 + at as u64, at % 100 == 7);
    images.iter().enumerate().map(examined).sum()
}

/// GC had moved the note of a short value from a file that no manifest named to a cold segment. After the crash, older
/// files of the group were in use again, and the next GC of the hot segment alone took the value in them for the
/// newest.
#[test]
fn a_note_that_was_moved_to_a_cold_segment_is_written_again_after_a_crash() {
    assert!(crashes_of(Placement::HashKv, 131, 9) > 56);
}

#[test]
fn power_losses_and_kills_leave_a_prefix_with_hashkv() {
    crashes(Placement::HashKv, 131);
}

#[test]
fn power_losses_and_kills_leave_a_prefix_with_wisckey() {
    crashes(Placement::WiscKey, 47);
}
