//! How the parts of a database are put together: who holds what.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use bifold_contract::{Error, LogFloor, SeqNo, planted};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, fs::FileLock};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced};

use crate::{
    background::{compact::Compactor, flush::Flusher, gc::Gc, outcome::Outcomes, reclaim::Reclaims, rewrite::Rewrites},
    commit::{moves::MoveCommits, syncs::Syncs, write::Committer},
    counts::counters::Counters,
    ingest::{GATHERED_BYTES, Ingests},
    install::State,
    limits::{
        memory::MemoryPlan,
        pace::{Pace, PacedBy, slowed::Throttle},
        room::Room,
        space::Space,
        transaction_memory::TransactionMemory,
        waits::Waits,
    },
    log::{manifest::ManifestFile, trees::Trees, wal::Wal},
    read::get::Reader,
    schedule::Scheduler,
    settings::options::{Options, Workers},
    state::{
        health::Health, numbers::Numbers, snapshot::Snapshots, telling::Events, time::Time, tree::Tree, work::Work,
    },
    waiting::{group_sync::GroupSync, signal::Signal, sync::FairLock, visible::LastVisible},
};

/// What recovery found, from which an engine is made.
pub(crate) struct Recovered {
    pub env: Env,
    pub dir: Dir,
    pub options: Options,
    pub plan: MemoryPlan,
    pub tables: Arc<TableContext>,
    pub value_memory: Memory,
    pub unsynced: Arc<Unsynced>,
    pub lock: Box<dyn FileLock>,
    pub manifest: ManifestFile,
    pub wal: Wal,
    pub visible: SeqNo,
    pub replaying: Option<LogFloor>,
    pub numbers: Numbers,
    pub trees: Vec<Arc<Tree>>,
    pub damaged: Vec<Error>,
    pub reserve_bytes: u64,
    pub events: Arc<Events>,
    pub time: Arc<Time>,
    pub counters: Arc<Counters>,
}

impl Recovered {
    /// The time that entries expire by. It is read only if they may.
    fn time_of_entries(&self) -> Arc<Time> {
        if self.trees.iter().any(|tree| tree.may_lose_entries()) {
            self.time.is_needed();
        }
        Arc::clone(&self.time)
    }
}

/// What the parts share.
pub(super) struct Shared {
    pub env: Env,
    pub dir: Dir,
    pub options: Options,
    pub plan: MemoryPlan,
    pub tables: Arc<TableContext>,
    pub wal: Arc<FairLock<Wal>>,
    pub visible: Arc<LastVisible>,
    pub time: Arc<Time>,
    pub snapshots: Arc<Snapshots>,
    pub transactions: Arc<TransactionMemory>,
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
    pub events: Arc<Events>,
    pub lock: Arc<dyn FileLock>,
}

impl Shared {
    pub fn new(found: Recovered) -> Self {
        let signal = Arc::<Signal>::default();
        let work = Arc::new(Work::new(Arc::clone(&signal)));
        let time = found.time_of_entries();
        let trees = Arc::new(Trees::new(found.trees));
        let (snapshots, counters) = (Snapshots::of(&work, &time), found.counters);
        let space = Arc::new(Space::new(&snapshots, &work));
        let paced_by = PacedBy { counters: &counters, trees: &trees, work: &work, space: &space };
        let (free_min, background_rate) = (found.options.free_bytes_min, found.options.background_bytes_per_second);
        let pace = Arc::new(Pace::new(found.plan.memtable, background_rate, &found.env.clock, &paced_by));
        let reserved = (found.reserve_bytes, found.manifest.snapshot_bytes());
        let room = Arc::new(Room::new((&found.dir, &found.env.clock), (&trees, &signal), free_min, reserved));
        let (wal, visible) = (Arc::new(FairLock::new(found.wal)), Arc::new(LastVisible::new(found.visible)));
        let health = Arc::new(Health::new((&signal, &visible), found.options.access, &found.events));
        let transactions = Arc::new(TransactionMemory::of(&found.plan, &found.tables));
        let state = State {
            dir: found.dir.clone(),
            access: found.options.access,
            placements: found.options.placements.clone(),
            merge_operators: found.options.merge_operators.clone(),
            manifest: Mutex::new(found.manifest),
            replaying: Mutex::new(found.replaying),
            trees: Arc::clone(&trees),
            numbers: found.numbers.clone(),
            visible: Arc::clone(&visible),
            time: Arc::clone(&time),
            clock: Arc::clone(&found.env.clock),
            wal: Arc::clone(&wal),
            kept_large: wal.hold().kept_large(),
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
            time,
            snapshots,
            transactions,
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
            events: found.events,
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
            remover: Arc::clone(self.dir.remover()),
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
            events: Arc::clone(&self.events),
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

    pub fn ingests(
        &self,
        (waits, syncs, committer): (&Arc<Waits>, &Arc<Syncs>, &Arc<Committer>),
        (flusher, outcomes): (&Arc<Flusher>, &Arc<Outcomes>),
    ) -> Ingests {
        Ingests {
            clock: Arc::clone(&self.env.clock),
            signal: Arc::clone(&self.signal),
            workers: self.options.workers,
            dir: self.dir.clone(),
            numbers: self.numbers.clone(),
            health: Arc::clone(&self.health),
            counters: Arc::clone(&self.counters),
            room: Arc::clone(&self.room),
            wal: Arc::clone(&self.wal),
            work: Arc::clone(&self.work),
            waits: Arc::clone(waits),
            state: Arc::clone(&self.state),
            syncs: Arc::clone(syncs),
            flusher: Arc::clone(flusher),
            outcomes: Arc::clone(outcomes),
            committer: Arc::clone(committer),
            gathered_bytes: self.plan.memtable.min(GATHERED_BYTES),
            memtable_bytes: self.plan.memtable,
            open: Mutex::default(),
        }
    }

    pub fn outcomes(&self) -> Outcomes {
        Outcomes {
            health: Arc::clone(&self.health),
            pace: Arc::clone(&self.pace),
            work: Arc::clone(&self.work),
            events: Arc::clone(&self.events),
        }
    }

    pub fn flusher(&self, waits: &Arc<Waits>, syncs: &Arc<Syncs>) -> Flusher {
        Flusher {
            clock: Arc::clone(&self.env.clock),
            dir: self.dir.clone(),
            numbers: self.numbers.clone(),
            trees: Arc::clone(&self.trees),
            snapshots: Arc::clone(&self.snapshots),
            signal: Arc::clone(&self.signal),
            health: Arc::clone(&self.health),
            work: Arc::clone(&self.work),
            counters: Arc::clone(&self.counters),
            room: Arc::clone(&self.room),
            pace: Arc::clone(&self.pace),
            wal: Arc::clone(&self.wal),
            state: Arc::clone(&self.state),
            syncs: Arc::clone(syncs),
            waits: Arc::clone(waits),
            events: Arc::clone(&self.events),
            workers: self.options.workers,
        }
    }

    pub fn compactor(&self, moves: &Arc<MoveCommits>) -> Compactor {
        Compactor {
            clock: Arc::clone(&self.env.clock),
            dir: self.dir.clone(),
            numbers: self.numbers.clone(),
            snapshots: Arc::clone(&self.snapshots),
            health: Arc::clone(&self.health),
            counters: Arc::clone(&self.counters),
            room: Arc::clone(&self.room),
            pace: Arc::clone(&self.pace),
            state: Arc::clone(&self.state),
            events: Arc::clone(&self.events),
            moves: Arc::clone(moves),
            memtable_bytes: self.plan.memtable,
        }
    }

    pub fn rewrites(
        &self,
        waits: &Arc<Waits>,
        outcomes: &Arc<Outcomes>,
        jobs: (&Arc<Flusher>, &Arc<Compactor>),
    ) -> Rewrites {
        let (flusher, compactor) = jobs;
        Rewrites {
            numbers: self.numbers.clone(),
            signal: Arc::clone(&self.signal),
            health: Arc::clone(&self.health),
            work: Arc::clone(&self.work),
            remover: Arc::clone(self.dir.remover()),
            waits: Arc::clone(waits),
            outcomes: Arc::clone(outcomes),
            flusher: Arc::clone(flusher),
            compactor: Arc::clone(compactor),
        }
    }

    pub fn reclaims(&self, syncs: &Arc<Syncs>) -> Reclaims {
        Reclaims {
            clock: Arc::clone(&self.env.clock),
            snapshots: Arc::clone(&self.snapshots),
            space: Arc::clone(&self.space),
            pace: Arc::clone(&self.pace),
            state: Arc::clone(&self.state),
            syncs: Arc::clone(syncs),
        }
    }

    pub fn reader(&self) -> Reader {
        Reader {
            clock: Arc::clone(&self.env.clock),
            time: Arc::clone(&self.time),
            dir: self.dir.clone(),
            tables: Arc::clone(&self.tables),
            counters: Arc::clone(&self.counters),
            health: Arc::clone(&self.health),
            work: Arc::clone(&self.work),
            visible: Arc::clone(&self.visible),
            _lock: Arc::clone(&self.lock),
        }
    }
}

/// The parts that do something, each with those that it needs.
pub(super) struct Parts {
    pub reader: Arc<Reader>,
    pub waits: Arc<Waits>,
    pub syncs: Arc<Syncs>,
    pub committer: Arc<Committer>,
    pub ingests: Arc<Ingests>,
    pub flusher: Arc<Flusher>,
    pub rewrites: Arc<Rewrites>,
    pub gc: Arc<Gc>,
    pub scheduler: Arc<Scheduler>,
}

impl Parts {
    pub fn new(of: &Shared) -> Self {
        let (reader, waits, syncs) = (Arc::new(of.reader()), Arc::new(of.waits()), Arc::new(of.syncs()));
        let committer = Arc::new(of.committer(&waits, &syncs));
        let outcomes = Arc::new(of.outcomes());
        let moves = Arc::new(MoveCommits::new(&reader, &committer));
        let (flusher, compactor) = (Arc::new(of.flusher(&waits, &syncs)), Arc::new(of.compactor(&moves)));
        let rewrites = Arc::new(of.rewrites(&waits, &outcomes, (&flusher, &compactor)));
        let reclaims = Arc::new(of.reclaims(&syncs));
        let gc = Arc::new(Gc {
            clock: Arc::clone(&of.env.clock),
            numbers: of.numbers.clone(),
            signal: Arc::clone(&of.signal),
            health: Arc::clone(&of.health),
            work: Arc::clone(&of.work),
            space: Arc::clone(&of.space),
            counters: Arc::clone(&of.counters),
            room: Arc::clone(&of.room),
            pace: Arc::clone(&of.pace),
            state: Arc::clone(&of.state),
            waits: Arc::clone(&waits),
            outcomes: Arc::clone(&outcomes),
            reader: Arc::clone(&reader),
            moves,
            reclaims: Arc::clone(&reclaims),
            flusher: Arc::clone(&flusher),
            rewrites: Arc::clone(&rewrites),
            events: Arc::clone(&of.events),
        });
        let ingests = Arc::new(of.ingests((&waits, &syncs, &committer), (&flusher, &outcomes)));
        let scheduler = Arc::new(Scheduler {
            threads: Arc::clone(&of.env.threads),
            workers: of.options.workers,
            access: of.options.access,
            numbers: of.numbers.clone(),
            trees: Arc::clone(&of.trees),
            snapshots: Arc::clone(&of.snapshots),
            signal: Arc::clone(&of.signal),
            health: Arc::clone(&of.health),
            work: Arc::clone(&of.work),
            space: Arc::clone(&of.space),
            room: Arc::clone(&of.room),
            state: Arc::clone(&of.state),
            remover: Arc::clone(of.dir.remover()),
            waits: Arc::clone(&waits),
            outcomes,
            flusher: Arc::clone(&flusher),
            ingests: Arc::clone(&ingests),
            compactor,
            gc: Arc::clone(&gc),
            reclaims,
            pace: Arc::clone(&of.pace),
            events: Arc::clone(&of.events),
            _lock: Arc::clone(&of.lock),
        });
        // The files of a database that is only read are its writer's.
        let has_work = of.options.access.writes() || planted!("readers_do_due_work");
        if of.options.workers == Workers::Caller && has_work {
            let works: Weak<Scheduler> = Arc::downgrade(&scheduler);
            let _is_first = waits.in_caller.set(works);
        }
        Self { reader, waits, syncs, committer, ingests, flusher, rewrites, gc, scheduler }
    }
}
