//! Two keyspaces that are written to while power is lost, or a call fails, at each moment: what they were told, and
//! what may be found.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use bifold::{Db, Env, Keyspace, Options};
use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::{Fate, MemoryFs, OpKind},
};

/// The states of two keyspaces, each a `Model`, after each commit, and how many commits are promised.
pub struct Told<Model> {
    pub states: Vec<[Model; 2]>,
    /// The last state that is durable.
    pub durable: usize,
}

/// A database and what it was told.
pub struct Scene<Model> {
    pub db: Db,
    pub keyspaces: [Keyspace; 2],
    pub told: Arc<Mutex<Told<Model>>>,
}

/// What a power loss has left, and which states may be found there.
pub struct Image<Model> {
    pub fs: MemoryFs,
    pub what: String,
    states: Arc<Vec<[Model; 2]>>,
    allowed: Range<usize>,
}

impl<Model: PartialEq> Image<Model> {
    /// Whether this may be found there.
    pub fn allows(&self, found: &[Model; 2]) -> bool {
        self.states[self.allowed.clone()].contains(found)
    }
}

impl<Model: Clone + Default + Send + 'static> Scene<Model> {
    pub fn new(env: Env, options: &Options) -> Self {
        let db = Db::open_in(env, "/db", options.clone()).unwrap();
        let other = db.keyspace("other", options.keyspace.clone()).unwrap();
        let keyspaces = [db.default_keyspace().clone(), other];
        let told = Told { states: vec![Default::default()], durable: 0 };
        Self { db, keyspaces, told: Arc::new(Mutex::new(told)) }
    }

    /// Before the commit is made, so that an image with it is right.
    pub fn tell(&self, change: impl FnOnce(&mut [Model; 2])) {
        let mut told = self.told.lock().unwrap();
        let mut state = told.states.last().unwrap().clone();
        change(&mut state);
        told.states.push(state);
    }

    /// Everything so far is durable.
    pub fn is_durable(&self) {
        let mut told = self.told.lock().unwrap();
        told.durable = told.states.len() - 1;
    }

    /// The states that may be found now: from the last one that is durable on.
    pub fn allowed(&self) -> Vec<[Model; 2]> {
        let told = self.told.lock().unwrap();
        told.states[told.durable..].to_vec()
    }
}

/// What a power loss leaves after each change of a file while `play` runs: so many images, with different fates.
pub fn images<Model: Clone + Default + Send + 'static>(
    options: &Options,
    each: usize,
    play: impl FnOnce(&Scene<Model>) -> bifold::Result<()>,
) -> Vec<Image<Model>> {
    let fs = MemoryFs::new();
    let scene = Scene::new(Env { fs: Arc::new(fs.clone()), ..Env::system() }, options);
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (here, kept, told) = (fs.clone(), Arc::clone(&taken), Arc::clone(&scene.told));
    fs.set_hook(Some(Arc::new(move |call: u64, op: OpKind, _: &std::path::Path| {
        let fates = [Fate::DropUnsynced, Fate::KeepAll, Fate::Random(call), Fate::Prefix(call)];
        let told = told.lock().unwrap();
        for fate in [fates[(call % 4) as usize], fates[((call / 4) % 4) as usize]].into_iter().take(each) {
            kept.lock().unwrap().push((here.power_loss(fate), fate, told.durable, told.states.len(), op));
        }
    })));
    play(&scene).unwrap();
    fs.set_hook(None);
    let states = Arc::new(std::mem::take(&mut scene.told.lock().unwrap().states));
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    let image = |(at, (fs, fate, durable, told, op)): (usize, (MemoryFs, Fate, usize, usize, OpKind))| Image {
        fs,
        states: Arc::clone(&states),
        allowed: durable..told,
        what: format!("image {at}, {fate:?} after {op:?}, one of commits {durable} to {told}"),
    };
    taken.into_iter().enumerate().map(image).collect()
}

/// Runs `play`, of which one call of the file system fails: that with number `at`. Returns how it ended and how many
/// calls it made.
pub fn failing<Model: Clone + Default + Send + 'static>(
    memory: &MemoryFs,
    options: &Options,
    (at, kind): (u64, FaultKind),
    play: impl FnOnce(&Scene<Model>) -> bifold::Result<()>,
) -> (bifold::Result<()>, u64, Scene<Model>) {
    let faulty = FaultyFs::over_memory(memory.clone());
    let scene = Scene::new(Env { fs: Arc::new(faulty.clone()), ..Env::system() }, options);
    let begin = faulty.calls();
    faulty.decide_by(Box::new(move |call| (call.number == begin + at).then_some(kind)));
    let played = play(&scene);
    faulty.clear();
    (played, faulty.calls() - begin, scene)
}

/// How many calls all of `play` makes.
pub fn calls_of<Model: Clone + Default + Send + 'static>(
    options: &Options,
    play: impl FnOnce(&Scene<Model>) -> bifold::Result<()>,
) -> u64 {
    let (played, calls, _scene) = failing(&MemoryFs::new(), options, (u64::MAX / 2, FaultKind::EIO), play);
    played.unwrap();
    calls
}
