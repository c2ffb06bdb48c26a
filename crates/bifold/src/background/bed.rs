//! For tests of background work: a tree in memory without workers, whose work a test does by hand.

use std::{path::Path, sync::Arc};

use bifold_io::{Env, faulty::FaultyFs, memory::MemoryFs};

use crate::{
    engine::Engine,
    limits::room::Means,
    open::recover::recover,
    settings::options::{Durability, KeyspaceOptions, Options, Workers},
    state::{
        op::{Act, Op},
        tree::Tree,
    },
};

/// The directory of the database.
pub const DIR: &str = "/db";

pub struct Bed {
    pub memory: MemoryFs,
    pub faulty: FaultyFs,
    pub engine: Arc<Engine>,
    /// Of the keyspace `k`.
    pub tree: Arc<Tree>,
}

impl Bed {
    pub fn new(keyspace: KeyspaceOptions) -> Self {
        Self::of(Options { workers: Workers::Threads(2), keyspace, ..Options::default() })
    }

    /// With a keyspace of the options' default.
    pub fn of(options: Options) -> Self {
        let memory = MemoryFs::new();
        let faulty = FaultyFs::over_memory(memory.clone());
        let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let engine = recover(env, Path::new(DIR), options).unwrap();
        let tree = engine.state.create_keyspace("k", &engine.options.keyspace).unwrap();
        Self { memory, faulty, engine, tree }
    }

    /// Fills a memtable with values of these keys and seals it.
    pub fn fill(&self, entries: impl Iterator<Item = (u32, Vec<u8>)>) {
        for (n, value) in entries {
            let op = Op { tree: &self.tree, key: &n.to_be_bytes(), act: Act::Put(&value) };
            self.engine.commit(&[op], Durability::Buffered).unwrap();
        }
        self.engine.state.seal(&mut self.engine.wal.hold(), std::slice::from_ref(&self.tree)).unwrap();
    }

    /// Ingests one entry.
    pub fn ingest(&self, n: u32, value: &[u8]) {
        let mut run = self.engine.ingests.begin(&self.tree).unwrap();
        self.engine.ingests.put(&mut run, &n.to_be_bytes(), Act::Put(value)).unwrap();
        self.engine.ingests.finish(&mut run).unwrap();
        self.engine.ingests.end(&mut run);
    }

    /// Writes the oldest sealed memtable.
    pub fn flush(&self) -> bifold_contract::Result<()> {
        self.engine.flusher.flush_oldest(&self.tree, Means::Free)
    }
}
