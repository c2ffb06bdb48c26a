//! How the parts of a database are put together: who holds what.

use std::sync::{Arc, Mutex, OnceLock, atomic::AtomicU64};

use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};

use super::Recovered;
use crate::{
    api::{options::Options, stats::counters::Counters},
    background::{space::Space, waits::Waits, work::Work},
    commit::{
        memory::MemoryPlan,
        pace::{Pace, PacedBy, slowed::Throttle},
        room::Room,
        syncs::Syncs,
        wal::Wal,
        write::Committer,
    },
    read::get::Reader,
    state::{
        health::Health,
        install::State,
        snapshot::Snapshots,
        trees::{Numbers, Trees},
    },
    waiting::{group_sync::GroupSync, signal::Signal, sync::FairLock},
};

/// What the parts share.
pub(super) struct Shared {
    pub env: Env,
    pub dir: Dir,
    pub options: Options,
    pub plan: MemoryPlan,
    pub tables: Arc<TableContext>,
    pub wal: Arc<FairLock<Wal>>,
    pub visible: Arc<AtomicU64>,
    pub snapshots: Arc<Snapshots>,
    pub state: Arc<State>,
    pub signal: Arc<Signal>,
    pub work: Arc<Work>,
    pub space: Arc<Space>,
    pub pace: Arc<Pace>,
    pub room: Arc<Room>,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub numbers: Numbers,
    pub trees: Arc<Trees>,
    pub lock: Arc<dyn FileLock>,
}

impl Shared {
    pub fn new(found: Recovered) -> Self {
        let signal = Arc::<Signal>::default();
        let work = Arc::new(Work::new(Arc::clone(&signal)));
        let trees = Arc::new(Trees::new(found.trees));
        let (snapshots, counters) = (Snapshots::of(&work), Arc::<Counters>::default());
        let space = Arc::new(Space::new(&snapshots, &work));
        let paced_by = PacedBy { counters: &counters, trees: &trees, work: &work, space: &space };
        let background_rate = found.options.background_bytes_per_second;
        let pace = Arc::new(Pace::new(found.plan.memtable, background_rate, &found.env.clock, &paced_by));
        let room = Arc::new(Room::new(
            (&found.dir, &found.env.clock),
            (&trees, &signal),
            found.options.free_bytes_min,
            (found.reserve_bytes, found.manifest.snapshot_bytes()),
        ));
        let health = Arc::new(Health::new(Arc::clone(&signal), found.options.access));
        let (wal, visible) = (Arc::new(FairLock::new(found.wal)), Arc::new(AtomicU64::new(found.visible)));
        let state = State {
            dir: found.dir.clone(),
            access: found.options.access,
            placements: found.options.placements.clone(),
            manifest: Mutex::new(found.manifest),
            replaying: Mutex::new(found.replaying),
            trees: Arc::clone(&trees),
            numbers: found.numbers.clone(),
            visible: Arc::clone(&visible),
            wal: Arc::clone(&wal),
            health: Arc::clone(&health),
            room: Arc::clone(&room),
            pace: Arc::clone(&pace),
            work: Arc::clone(&work),
            tables: Arc::clone(&found.tables),
            value_memory: found.value_memory,
            unsynced: found.unsynced,
        };
        Self {
            env: found.env,
            dir: found.dir,
            options: found.options,
            plan: found.plan,
            tables: found.tables,
            wal,
            visible,
            snapshots,
            state: Arc::new(state),
            signal,
            work,
            space,
            pace,
            room,
            health,
            counters,
            numbers: found.numbers,
            trees,
            lock: Arc::from(found.lock),
        }
    }

    pub fn waits(&self) -> Waits {
        Waits {
            clock: Arc::clone(&self.env.clock),
            signal: Arc::clone(&self.signal),
            health: Arc::clone(&self.health),
            work: Arc::clone(&self.work),
            pace: Arc::clone(&self.pace),
            room: Arc::clone(&self.room),
            in_caller: OnceLock::new(),
        }
    }

    pub fn syncs(&self) -> Syncs {
        Syncs {
            clock: Arc::clone(&self.env.clock),
            signal: Arc::clone(&self.signal),
            health: Arc::clone(&self.health),
            wal: Arc::clone(&self.wal),
            trees: Arc::clone(&self.trees),
            state: Arc::clone(&self.state),
            group: GroupSync::default(),
        }
    }

    pub fn committer(&self, waits: &Arc<Waits>, syncs: &Arc<Syncs>) -> Committer {
        let throttle = Throttle {
            clock: Arc::clone(&self.env.clock),
            counters: Arc::clone(&self.counters),
            health: Arc::clone(&self.health),
            pace: Arc::clone(&self.pace),
            trees: Arc::clone(&self.trees),
            waits: Arc::clone(waits),
            memtable_bytes: self.plan.memtable,
        };
        Committer {
            clock: Arc::clone(&self.env.clock),
            wal: Arc::clone(&self.wal),
            visible: Arc::clone(&self.visible),
            health: Arc::clone(&self.health),
            counters: Arc::clone(&self.counters),
            room: Arc::clone(&self.room),
            pace: Arc::clone(&self.pace),
            throttle,
            state: Arc::clone(&self.state),
            syncs: Arc::clone(syncs),
            memtable_bytes: self.plan.memtable,
            log_bytes: self.options.log_bytes,
        }
    }

    pub fn reader(&self) -> Reader {
        Reader {
            clock: Arc::clone(&self.env.clock),
            dir: self.dir.clone(),
            tables: Arc::clone(&self.tables),
            counters: Arc::clone(&self.counters),
            health: Arc::clone(&self.health),
            visible: Arc::clone(&self.visible),
            _lock: Arc::clone(&self.lock),
        }
    }
}
