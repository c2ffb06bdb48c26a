//! Databases for the rows: files in memory, a model that knows every answer, images of crashes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold::{Db, Env, Options};
use bifold_contract::FileId;
use bifold_format::{
    frame::{self, Step},
    names::{self, FileKind},
    sorted,
    value::{self, ValueKind, ValueRecord},
};
use bifold_io::{clock::SystemClock, memory::MemoryFs, threads::SystemThreads};
use bifold_sim::{
    driver::{Blind, Driver},
    env,
    history::{Extras, KeyNo, Op, Puts, Span, Write},
    judge,
    model::{Contents, Model, NAMES, Name},
    options::OptionSet,
    read::{self, Trouble},
    value::Spec,
};

use crate::{Case, MIN_BYTES};

/// An environment with the files of `fs`, real threads and a real clock.
pub fn threaded(fs: &MemoryFs) -> Env {
    Env { fs: Arc::new(fs.clone()), clock: Arc::new(SystemClock::default()), threads: Arc::new(SystemThreads) }
}

/// What the operations have with which a database goes on after a crash or damage.
pub const EXTRAS: Extras = Extras { puts: Puts::Instants, ingests: true, large: true, feed: false };

/// The value of length `len` that write number `tag` puts.
pub fn spec(tag: u32, len: u32) -> Spec {
    Spec { tag, len }
}

/// A database, its files and its model. Every method that reads compares with the model and panics where they differ.
pub struct Bed {
    case: Case,
    pub fs: MemoryFs,
    pub driver: Driver<Blind>,
    set: OptionSet,
    tag: u32,
}

impl Bed {
    /// A new database with the options of the case.
    pub fn new(case: &Case) -> Self {
        Self::with(case, case.options())
    }

    /// A new database with other options.
    pub fn with(case: &Case, options: Options) -> Self {
        Self::opened(case, &MemoryFs::default(), Model::default(), options)
    }

    /// The database that `fs` holds, with the options of the case; `model` says what is in it.
    pub fn on(case: &Case, fs: &MemoryFs, model: Model) -> Self {
        Self::opened(case, fs, model, case.options())
    }

    fn opened(case: &Case, fs: &MemoryFs, model: Model, options: Options) -> Self {
        let keyspaces = vec![options.keyspace.clone(); NAMES.len()];
        let set = OptionSet { database: options, keyspaces };
        let tag = 1000 * (model.head() as u32 + 1);
        let driver = Driver::new(env::simulated(fs), env::DIR.as_ref(), set.clone(), model, Blind);
        let mut bed = Self { case: case.clone(), fs: fs.clone(), driver, set, tag };
        bed.driver.open().unwrap();
        bed
    }

    /// Closes it. What is left can be opened many times.
    pub fn close(mut self) -> Prepared {
        self.driver.close().unwrap();
        let (model, set) = self.driver.into_parts();
        Prepared { case: self.case, fs: self.fs, model, set }
    }

    pub fn case(&self) -> &Case {
        &self.case
    }

    pub fn db(&self) -> &Db {
        self.driver.db()
    }

    pub fn model(&self) -> &Model {
        &self.driver.model
    }

    pub fn set(&self) -> &OptionSet {
        &self.set
    }

    pub fn step(&mut self, op: &Op) {
        self.driver.step(op).unwrap_or_else(|trouble| panic!("{op}: {trouble}"));
    }

    /// Puts a new value of this length.
    pub fn put(&mut self, key: KeyNo, len: u32) {
        self.put_in(0, key, len);
    }

    pub fn put_in(&mut self, name: Name, key: KeyNo, len: u32) {
        self.tag += 1;
        self.step(&Op::Write(Write::Put(name, key, spec(self.tag, len))));
    }

    /// Puts a value of some length from 64 on for each of these keys.
    pub fn fill(&mut self, keys: impl IntoIterator<Item = KeyNo>) {
        keys.into_iter().for_each(|key| self.put(key, MIN_BYTES + u32::from(key) * 37 % 240));
    }

    pub fn delete(&mut self, key: KeyNo) {
        self.step(&Op::Write(Write::Delete(0, key)));
    }

    pub fn delete_range(&mut self, span: Span) {
        self.step(&Op::Write(Write::DeleteRange(0, span)));
    }

    /// Garbage-collects everything.
    pub fn collect(&mut self) {
        self.db().collect_garbage().unwrap();
    }

    /// Makes the present values cold, where GC puts these in files of their own, so that later GC runs take those too.
    /// Where rewrites separate values, it leaves garbage for GC.
    pub fn cool(&mut self) {
        if self.case.separates_by_flushes() {
            self.step(&Op::Flush);
            (0..24).step_by(3).for_each(|key| self.put(key, MIN_BYTES + u32::from(key) * 11 % 240));
            self.step(&Op::Flush);
        }
        if self.separate() {
            (0..24).step_by(3).for_each(|key| self.put(key, MIN_BYTES + u32::from(key) * 11 % 240));
            self.step(&Op::Flush);
        }
        if self.case.cools_by_gc() {
            self.collect();
        }
    }

    /// Separates values where merges do that. Returns whether they do.
    pub fn separate(&mut self) -> bool {
        let is_due = self.case.separates_by_merges();
        if is_due {
            self.step(&Op::Flush);
            self.db().default_keyspace().compact_range::<&[u8]>(..).unwrap();
        }
        is_due
    }

    /// Closes and opens it, and checks that the files are those it knows.
    pub fn reopen(&mut self) {
        self.step(&Op::Reopen);
        judge::no_orphans(&self.fs, env::DIR.as_ref(), self.db()).unwrap();
    }

    /// Compares every way of reading with the model.
    pub fn check(&self) {
        self.driver.compare_everything().unwrap();
    }

    /// Everything above once more: what was checked stays right when it is moved, merged and opened again.
    pub fn check_thoroughly(&mut self) {
        self.check();
        self.collect();
        self.check();
        self.step(&Op::Compact);
        self.check();
        self.reopen();
        self.check();
    }
}

/// A closed database.
pub struct Prepared {
    pub case: Case,
    pub fs: MemoryFs,
    pub model: Model,
    pub set: OptionSet,
}

impl Prepared {
    /// A copy of it, opened.
    pub fn open(&self) -> Bed {
        Bed::opened(&self.case, &self.fs.fork(), self.model.clone(), self.set.database.clone())
    }
}

/// Everything in `db` is what the model says after the commit `head`.
pub fn compare(db: &Db, model: &Model) -> Result<(), Trouble> {
    read::compare_everything(db, model, model.head())
}

/// All entries of all keyspaces.
pub fn contents(db: &Db) -> Contents {
    read::contents(db).unwrap()
}

/// The files of the database by name.
pub fn files(fs: &MemoryFs) -> BTreeMap<String, Vec<u8>> {
    let of_dir = |path: &PathBuf| path.parent() == Some(Path::new(env::DIR));
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    fs.files().into_iter().filter(of_dir).map(|path| (name(&path), fs.read(&path).unwrap_or_default())).collect()
}

/// Its path.
pub fn path(name: &str) -> PathBuf {
    Path::new(env::DIR).join(name)
}

/// The number in the name of a file, if it has one.
pub fn number(name: &str) -> Option<u64> {
    match names::parse(name) {
        FileKind::Log(id) | FileKind::Table(id) | FileKind::Value(id) | FileKind::Large(id) | FileKind::Ingest(id) => {
            Some(id)
        }
        _ => None,
    }
}

/// The names of files that hold values: value files, or tables where there are none.
pub fn holders(fs: &MemoryFs) -> Vec<String> {
    let ending = |end: &str| files(fs).into_keys().filter(|name| name.ends_with(end)).collect::<Vec<_>>();
    let value_files = ending(".val");
    if value_files.is_empty() { ending(".tbl") } else { value_files }
}

/// A record of a value file: key, number, kind, and the body with the method by which it is stored.
pub type Record = (Vec<u8>, u64, String, String);

/// All records of all value files that are about a key, one for each copy. A tag is left out when it is the note of a
/// copy: it has the number of the value, and leads to it or to a deleted file.
pub fn records(fs: &MemoryFs) -> Vec<Record> {
    let mut records = Vec::new();
    let (mut places, mut tags) = (BTreeMap::new(), Vec::new());
    walk_values(fs, |file, record| {
        let (kind, body) = (format!("{:?}", record.kind), format!("{:?}", record.stored()));
        let key = (record.key.to_vec(), record.seqno);
        match record.tagged().unwrap() {
            Some(to) => tags.push((key, to)),
            None if !record.kind.has_key() => {}
            None => {
                places.insert((file, record.offset), key.clone());
                records.push((key.0, key.1, kind, body));
            }
        }
    });
    let files = files(fs);
    for (key, to) in tags {
        let is_deleted = !files.contains_key(&names::value(to.file));
        assert!(is_deleted || places.get(&(to.file, to.offset)) == Some(&key), "a tag of {key:?} leads to {to:?}");
    }
    records
}

/// How often the tables of the keys have been rewritten, where tables count that.
pub fn epochs(fs: &MemoryFs) -> BTreeMap<Vec<u8>, u32> {
    let mut keys: BTreeMap<FileId, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut epochs = BTreeMap::new();
    walk_values(fs, |file, record| match record.kind {
        ValueKind::Value => drop(keys.entry(file).or_default().insert(record.key.to_vec())),
        ValueKind::Properties => {
            let properties = sorted::properties(record.body()).unwrap();
            epochs.extend(keys.remove(&file).unwrap_or_default().into_iter().map(|key| (key, properties.epoch)));
        }
        _ => {}
    });
    epochs
}

pub fn walk_values(fs: &MemoryFs, mut each: impl FnMut(FileId, &ValueRecord<'_>)) {
    for (_, bytes) in files(fs).into_iter().filter(|(name, _)| name.ends_with(".val")) {
        walk_file(&bytes, &mut each);
    }
}

/// The records of a value file with these bytes, up to the first that is not whole.
pub fn walk_file(bytes: &[u8], mut each: impl FnMut(FileId, &ValueRecord<'_>)) {
    let (file, _, mut at) = value::describe(bytes).unwrap();
    while let Step::Record(found, len) = frame::step(&bytes[at as usize..], file, at) {
        each(file, &value::decode(found).unwrap());
        at += len as u64;
    }
}

/// All keys.
pub const EVERYTHING: Span = Span(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);

/// Ends the other threads of a test, also when the one that holds it panics.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
