//! What random histories are done to: a small database in memory, of any placement, with a clock that the test moves.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bifold::{
    Db, Env, Keyspace, KeyspaceOptions, MergeOperator, Options, PlacementKind,
    options::{DiffKv, HashKv, Values},
};
use bifold_io::{ManualClock, memory::MemoryFs};

use crate::support::tiny;

/// A database in memory with a clock of its own.
pub struct Bed {
    pub fs: MemoryFs,
    pub clock: ManualClock,
    pub options: Options,
    pub db: Option<Db>,
}

/// Options with which a few hundred entries make many files.
pub fn small(placement: PlacementKind) -> Options {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        ..Values::default()
    };
    let keyspace = KeyspaceOptions { values, ..tiny().keyspace.with_placement(placement) };
    Options { keyspace: KeyspaceOptions { table_bytes: 8 << 10, ..keyspace }, ..tiny() }
}

impl Bed {
    pub fn new(placement: PlacementKind) -> Self {
        Self::of(small(placement))
    }

    pub fn of(options: Options) -> Self {
        let mut bed = Self { fs: MemoryFs::new(), clock: ManualClock::default(), options, db: None };
        bed.set_time(1_000_000);
        bed.reopen();
        bed
    }

    /// Begins again, with an empty disk and a default keyspace that has this operator.
    pub fn begin_with(&mut self, operator: MergeOperator) {
        self.options.keyspace.merge = Some(operator);
        self.db.take().unwrap().close().unwrap();
        self.fs = MemoryFs::new();
        self.reopen();
    }

    pub fn set_time(&self, seconds: u64) {
        self.clock.set_unix(Duration::from_secs(seconds));
    }

    pub fn env(&self) -> Env {
        self.env_of(&self.fs)
    }

    /// The same with another disk, such as what a crash has left.
    pub fn env_of(&self, fs: &MemoryFs) -> Env {
        Env { fs: Arc::new(fs.clone()), clock: Arc::new(self.clock.clone()), ..Env::system() }
    }

    pub fn reopen(&mut self) {
        if let Some(db) = self.db.take() {
            db.close().unwrap();
        }
        self.db = Some(Db::open_in(self.env(), "/db", self.options.clone()).unwrap());
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    pub fn ks(&self) -> &Keyspace {
        self.db().default_keyspace()
    }

    /// Tables and value files in the directory.
    pub fn data_files(&self) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let names = self.fs.files();
        names.iter().map(name).filter(|name| name.ends_with(".tbl") || name.ends_with(".val")).collect()
    }
}

/// A generator of numbers, the same each time.
pub fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}
