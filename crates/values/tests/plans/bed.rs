//! One placement, with the engine's part played: an index, rewrites, edits, GC.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{Corruption, Entry, FileId, Kind, Pointer, Result, SeqNo, ValueEdit};
use bifold_format::pointer;
use bifold_io::{Dir, fs::FileSystem, memory::MemoryFs};
use bifold_values::{
    parts::{
        budget::Memory,
        value_files::{FileAccess, StoreContext, ValueFiles},
    },
    placement::{
        Commits, GcClaim, GcContext, GcOutcome, IndexView, Kept, Moved, Profile, RewriteJob, RewrittenTables,
        SpacePressure, WriteOp,
    },
    placements::{
        Settings, ValueOptions, diffkv::DiffKv, hashkv::HashKv, novkv::NovKv, streams::Streams, unikv::UniKv,
        wisckey::WiscKey,
    },
    store::ValueStore,
};

/// A version in the index: its number, its kind and what the index holds of it.
type Version = (SeqNo, Kind, Vec<u8>);

/// Everything that a plan talks about.
pub struct Bed {
    store: ValueStore,
    index: BTreeMap<Vec<u8>, Version>,
    /// Versions that newer ones overwrite, with the numbers of these. The next rewrite drops them.
    overwritten: Vec<(Vec<u8>, Version, SeqNo)>,
    last: SeqNo,
    pressure: SpacePressure,
    /// What is put while the next job runs: keys, and the length of their values.
    meanwhile: Option<(String, usize)>,
}

impl Bed {
    /// A keyspace without anything: `wisckey file_bytes=4096 …`.
    pub fn new(text: &str) -> Self {
        let (name, options) = text.split_once(' ').unwrap_or((text, ""));
        let options: ValueOptions = toml::from_str(&options.replace(' ', "\n")).unwrap();
        options.check("values").unwrap();
        let dir = Dir::new(Arc::new(MemoryFs::new()) as Arc<dyn FileSystem>, Path::new("/db"));
        dir.create_dir().unwrap();
        let next = AtomicU64::new(1);
        let new_file = Arc::new(move || next.fetch_add(1, Ordering::Relaxed));
        let memory = Memory::new(1 << 20, 1 << 20);
        let context =
            StoreContext { dir, keyspace: 1, new_file, access: FileAccess::Write, memory, unsynced: Arc::default() };
        let files = Arc::new(ValueFiles::open(context, &ValueEdit::default(), &[]).unwrap());
        let settings = &Settings::new(options);
        let store = match name {
            "wisckey" => ValueStore::new(Arc::clone(&files), WiscKey::open(&files, settings)),
            "hashkv" => ValueStore::new(Arc::clone(&files), HashKv::open(&files, settings).unwrap()),
            "novkv" => ValueStore::new(Arc::clone(&files), NovKv::open(&files, settings).unwrap()),
            "diffkv" => ValueStore::new(Arc::clone(&files), DiffKv::open(&files, settings)),
            "streams" => ValueStore::new(Arc::clone(&files), Streams::open(&files, settings).unwrap()),
            "unikv" => ValueStore::new(Arc::clone(&files), UniKv::open(&files, settings)),
            other => panic!("`{other}` is no placement of these plans"),
        };
        store.finish_recovery(0, 0).unwrap();
        let (index, overwritten) = (BTreeMap::new(), Vec::new());
        Self { store, index, overwritten, last: 0, pressure: pressure("target=1.5"), meanwhile: None }
    }

    /// Does what a line says, and returns the answer, if there is one.
    pub fn read(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["put", keys, len] => self.put(keys, len.parse().unwrap()),
            ["ingest", keys, len] => self.ingest(keys, len.parse().unwrap()),
            ["delete", keys] => self.delete(keys),
            ["flush"] => self.rewrite(&job(None, 0), &[]),
            ["merge", from, to] => self.rewrite(&job(from.parse().ok(), to.parse().unwrap()), &[]),
            ["record"] => self.record(),
            ["leave", "out", file] => self.leave_out(file.parse().unwrap()),
            ["space", ..] => self.pressure = pressure(line),
            ["pick", jobs] => return self.pick(jobs.parse().unwrap()),
            ["meanwhile", keys, len] => self.meanwhile = Some((keys.into(), len.parse().unwrap())),
            ["run"] => return self.run(),
            ["explain", units] => return self.explain(units.parse().unwrap()),
            _ => panic!("`{line}` is no line of a plan"),
        }
        String::new()
    }

    fn put(&mut self, keys: &str, len: usize) {
        for key in range(keys) {
            self.last += 1;
            // Values that no compression could shorten are not needed: files are not compressed by default.
            let value = vec![self.last as u8; len];
            let op = WriteOp::Put { key: &key, value: &value };
            let version = match self.store.write(op, self.last).unwrap() {
                Some(to) => (self.last, Kind::Pointer, encoded(to)),
                None => (self.last, Kind::Inline, value),
            };
            self.set(key, Some(version));
        }
    }

    fn ingest(&mut self, keys: &str, len: usize) {
        let mut ingester = self.store.ingester(&job(None, 1)).unwrap();
        for key in range(keys) {
            self.last += 1;
            let value = vec![self.last as u8; len];
            let entry = Entry { key: &key, seqno: self.last, kind: Kind::Inline, payload: &value };
            let version = match ingester.keep(&entry).unwrap() {
                Kept::Pointer(to) | Kept::Moved(to) => (self.last, Kind::Pointer, encoded(to)),
                Kept::Unchanged => (self.last, Kind::Inline, value),
            };
            self.set(key, Some(version));
        }
        let edit = ingester.finish().unwrap();
        self.install(edit);
    }

    /// Puts what a line wanted during the job that runs. The engine takes a sample of what commits overwrite; here each
    /// is one that stands for itself.
    fn put_meanwhile(&mut self) {
        let Some((keys, len)) = self.meanwhile.take() else { return };
        let addresses = |bed: &Self| -> Vec<_> {
            let versions = range(&keys).map(|key| bed.index.get(&key).cloned());
            versions.map(|version| version.and_then(|(_, kind, payload)| pointer_of(kind, &payload))).collect()
        };
        let overwritten = addresses(self);
        self.put(&keys, len);
        for old in overwritten.into_iter().flatten() {
            self.store.note_overwritten(old.len.into(), &|| Some((old, old.len.into())));
        }
    }

    fn delete(&mut self, keys: &str) {
        for key in range(keys) {
            self.last += 1;
            assert_eq!(self.store.write(WriteOp::Delete { key: &key }, self.last).unwrap(), None);
            self.set(key, None);
        }
    }

    fn set(&mut self, key: Vec<u8>, version: Option<Version>) {
        let old = match version {
            Some(version) => self.index.insert(key.clone(), version),
            None => self.index.remove(&key),
        };
        self.overwritten.extend(old.map(|old| (key, old, self.last)));
    }

    /// Writes the index anew, without what is overwritten.
    fn rewrite(&mut self, job: &RewriteJob, moving: &[FileId]) {
        let job = RewriteJob { moving: moving.to_vec(), ..job.clone() };
        let mut rewriter = self.store.rewriter(&job).unwrap();
        for (key, (seqno, kind, payload)) in &mut self.index {
            let entry = Entry { key, seqno: *seqno, kind: *kind, payload };
            if let Kept::Pointer(to) | Kept::Moved(to) = rewriter.keep(&entry).unwrap() {
                (*kind, *payload) = (Kind::Pointer, encoded(to));
            }
        }
        for (key, (seqno, kind, payload), newer) in std::mem::take(&mut self.overwritten) {
            rewriter.discard(&Entry { key: &key, seqno, kind, payload: &payload }, newer).unwrap();
        }
        let edit = rewriter.finish().unwrap();
        self.install(edit);
    }

    fn install(&self, mut edit: ValueEdit) {
        self.store.count_pointers(&mut edit);
        edit.removed.extend(self.store.drained_by(&edit).into_iter().map(|(file, _)| file));
        self.store.installed(&edit);
    }

    fn record(&self) {
        self.store.begin_sync();
        self.store.sync().unwrap();
        self.store.synced();
        self.store.seal();
        self.store.installed(&ValueEdit { added: self.store.unrecorded(), ..ValueEdit::default() });
        self.store.installed(&self.store.pending_edit(self.last));
        self.store.installed(&self.store.reclaim(self.last, self.pressure.oldest_snapshot));
    }

    fn leave_out(&self, file: FileId) {
        let damage = Corruption::new(0, "value record", "a record", "zeros").of(format!("/db/{file}"));
        assert!(self.store.leave_out(file, &damage), "file {file} is left out already");
    }

    fn pick(&self, jobs: usize) -> String {
        let (mut answer, mut running) = (String::new(), Vec::new());
        for _ in 0..jobs {
            let is_alone = running.iter().any(|claim: &GcClaim| claim.is_alone);
            let picked = if is_alone { None } else { self.store.pick(&self.pressure, &running) };
            let Some(job) = picked.filter(|job| running.is_empty() || !job.claim().is_alone) else {
                return answer + "-> nothing\n";
            };
            writeln!(answer, "-> {}", described(job.claim())).unwrap();
            running.push(job.claim().clone());
        }
        answer
    }

    fn run(&mut self) -> String {
        let Some(job) = self.store.pick(&self.pressure, &[]) else { return "-> nothing\n".into() };
        let claim = described(job.claim());
        let before = self.store.space().total_bytes;
        let context = Context(RefCell::new(self));
        let outcome = job.run(&context).unwrap();
        self.record();
        let after = self.store.space().total_bytes;
        match outcome {
            GcOutcome::Looked => format!("-> {claim}: looked\n"),
            GcOutcome::Collected { .. } => format!("-> {claim}: {before} bytes of files become {after}\n"),
        }
    }

    fn explain(&self, units: usize) -> String {
        let mut answer = String::new();
        for unit in self.store.explain(&self.pressure).into_iter().take(units) {
            let held = unit.held.unwrap_or("next");
            writeln!(answer, "-> {}: {} of {} bytes live: {held}", unit.unit, unit.live_bytes, unit.total_bytes)
                .unwrap();
        }
        answer
    }
}

/// Plays the engine's part in GC.
struct Context<'a>(RefCell<&'a mut Bed>);

impl IndexView for Context<'_> {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        Ok(self.0.borrow().index.get(key).and_then(|(_, kind, payload)| pointer_of(*kind, payload)))
    }
}

impl GcContext for Context<'_> {
    fn fit(&self, copies: &[u64]) -> Result<usize> {
        Ok(copies.len())
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        let (current, old): (Vec<Moved>, Vec<Moved>) =
            moves.iter().cloned().partition(|moved| self.look_up(&moved.key).ok().flatten() == Some(moved.from));
        old.iter().for_each(refused);
        Held(self).commit(&current, &mut |_| {}).map(Some)
    }

    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        act(&mut Held(self)).map(|()| true)
    }

    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64> {
        let moving = if let RewrittenTables::Range { moving, .. } = tables { moving } else { &[] };
        self.0.borrow_mut().rewrite(&job(Some(1), 1), moving);
        Ok(0)
    }

    fn install(
        &self,
        _copied: Option<SeqNo>,
        edit: &mut dyn FnMut() -> ValueEdit,
        in_force: &mut dyn FnMut(),
    ) -> Result<()> {
        self.0.borrow_mut().put_meanwhile();
        let edit = edit();
        in_force();
        self.0.borrow().install(edit);
        Ok(())
    }
}

struct Held<'a, 'b>(&'a Context<'b>);

impl Commits for Held<'_, '_> {
    fn commit(&mut self, moves: &[Moved], _refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo> {
        let bed = &mut **self.0.0.borrow_mut();
        for moved in moves {
            bed.last += 1;
            bed.set(moved.key.to_vec(), Some((bed.last, Kind::Pointer, encoded(moved.to))));
        }
        Ok(bed.last)
    }
}

/// The keys `a-z`: one for each letter.
fn range(keys: &str) -> impl Iterator<Item = Vec<u8>> {
    let (first, last) = keys.split_once('-').unwrap_or((keys, keys));
    (first.as_bytes()[0]..=last.as_bytes()[0]).map(|letter| vec![letter])
}

fn encoded(to: Pointer) -> Vec<u8> {
    let mut payload = Vec::new();
    pointer::encode(to, &mut payload);
    payload
}

fn pointer_of(kind: Kind, payload: &[u8]) -> Option<Pointer> {
    (kind == Kind::Pointer).then(|| pointer::decode(payload).unwrap())
}

fn job(from: Option<u8>, to: u8) -> RewriteJob {
    RewriteJob { from, to, deepest: to.max(1), moving: Vec::new() }
}

/// `target=1.5 index=1000 …`
fn pressure(text: &str) -> SpacePressure {
    let mut pressure = SpacePressure {
        index_bytes: 0,
        inline_bytes: 0,
        being_removed_bytes: 0,
        entries_above: 0.0,
        overwritten: 0.0,
        target: 1.5,
        copies_percent: Profile::COPIES_PERCENT,
        oldest_snapshot: None,
        all_before: None,
        boundaries: Arc::default(),
    };
    for (name, value) in text.split(' ').filter_map(|word| word.split_once('=')) {
        match name {
            "target" => pressure.target = value.parse().unwrap(),
            "index" => pressure.index_bytes = value.parse().unwrap(),
            "above" => pressure.entries_above = value.parse().unwrap(),
            "snapshot" => pressure.oldest_snapshot = value.parse().ok(),
            "all_before" => pressure.all_before = value.parse().ok(),
            "split" => pressure.boundaries = value.split(',').map(|key| key.as_bytes().into()).collect(),
            other => panic!("`{other}` says nothing about space"),
        }
    }
    pressure
}

fn described(claim: &GcClaim) -> String {
    let files: Vec<String> = claim.files.iter().map(ToString::to_string).collect();
    let what = match (claim.rewrites, files.is_empty()) {
        (false, true) => "a look at the index".to_owned(),
        (false, false) => format!("files {}", files.join(" ")),
        (true, true) => "a rewrite of everything".to_owned(),
        (true, false) => format!("a rewrite that moves the values of files {}", files.join(" ")),
    };
    format!("{what}{}", if claim.is_alone { ", alone" } else { "" })
}
