//! What random histories are done to: a small database in memory, of any placement, with a clock that the test moves.

use std::{sync::Arc, time::Duration};

use bifold::{
    Db, Env, Keyspace, KeyspaceOptions, Options, PlacementKind,
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

impl Bed {
    pub fn new(placement: PlacementKind) -> Self {
        let values = Values {
            separate_from_bytes: 64,
            file_bytes: 16 << 10,
            hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
            diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
            ..Values::default()
        };
        let keyspace = KeyspaceOptions { values, ..tiny().keyspace.with_placement(placement) };
        let options = Options { keyspace: KeyspaceOptions { table_bytes: 8 << 10, ..keyspace }, ..tiny() };
        let mut bed = Self { fs: MemoryFs::new(), clock: ManualClock::default(), options, db: None };
        bed.set_time(1_000_000);
        bed.reopen();
        bed
    }

    pub fn set_time(&self, seconds: u64) {
        self.clock.set_unix(Duration::from_secs(seconds));
    }

    pub fn env(&self) -> Env {
        Env { fs: Arc::new(self.fs.clone()), clock: Arc::new(self.clock.clone()), ..Env::system() }
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
}

/// A generator of numbers, the same each time.
pub fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}
