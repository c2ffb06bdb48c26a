use std::{collections::BTreeMap, path::PathBuf, sync::Mutex};

use super::*;
use crate::{choose::Distribution, store::Entries, values::Sizes};

/// A store in memory, with a fault if asked for.
#[derive(Default)]
struct MapStore {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    fault: Option<Fault>,
    /// A file of 1 MiB that is there for a second while the store waits for background work.
    needs: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Gets of one key in 50 find nothing.
    Forgets,
    /// The last byte of every value is off.
    Garbles,
    /// Scans pass entries in the wrong order.
    Reverses,
    /// Its background work never ends.
    Works,
}

impl MapStore {
    fn with(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }

    fn show(&self, mut entries: Vec<(&Vec<u8>, &Vec<u8>)>, seen: &mut dyn FnMut(&[u8], &[u8])) -> usize {
        if self.fault == Some(Fault::Reverses) {
            entries.reverse();
        }
        entries.iter().for_each(|(key, value)| seen(key, value));
        entries.len()
    }
}

impl Store for MapStore {
    fn name(&self) -> &'static str {
        "map"
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut value = value.to_vec();
        if self.fault == Some(Fault::Garbles) {
            *value.last_mut().unwrap() ^= 1;
        }
        self.map.lock().unwrap().insert(key.to_vec(), value);
        Ok(())
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        entries.iter().try_for_each(|(key, value)| self.put(key, value))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.map.lock().unwrap().remove(key);
        Ok(())
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        if self.fault == Some(Fault::Forgets) && key[3].is_multiple_of(50) {
            return Ok(false);
        }
        Ok(self.map.lock().unwrap().get(key).inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let map = self.map.lock().unwrap();
        Ok(self.show(map.range(from.to_vec()..).take(limit).collect(), seen))
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let map = self.map.lock().unwrap();
        Ok(self.show(map.range(..=from.to_vec()).rev().take(limit).collect(), seen))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn wait_idle(&self, end: Option<Instant>) -> Result<bool> {
        if let Some(file) = &self.needs {
            std::fs::write(file, vec![0; 1 << 20]).unwrap();
            thread::sleep(Duration::from_secs(1));
            std::fs::remove_file(file).unwrap();
        }
        Ok(end.is_none_or(|end| end > Instant::now()) && self.fault != Some(Fault::Works))
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn totals(&self) -> Totals {
        Totals { written: [("log", 123_000)].into(), ..Totals::default() }
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        Ok(self.totals())
    }
}

fn plan() -> Plan {
    Plan { keys: 1000, sizes: Sizes::Fixed(99), scan_len: 10, ..Plan::default() }
}

fn run(store: &MapStore, plan: &Plan, workloads: &[Workload]) -> Result<Vec<PhaseReport>> {
    let mut runner = Runner::new(store, &std::env::temp_dir().join("bifold-lab-none"), plan.clone(), workloads)?;
    workloads.iter().map(|&workload| runner.phase(workload)).collect()
}

const ALL: [Workload; 15] = [
    Workload::Load,
    Workload::Update,
    Workload::Read,
    Workload::Missing,
    Workload::Scan,
    Workload::ScanBack,
    Workload::Mix,
    Workload::YcsbA,
    Workload::YcsbB,
    Workload::YcsbC,
    Workload::YcsbD,
    Workload::YcsbE,
    Workload::YcsbF,
    Workload::Settle,
    Workload::Compact,
];

#[test]
fn every_workload_finds_a_sound_store_sound() {
    for (threads, batch) in [(1, 1), (3, 7)] {
        for sizes in [Sizes::Fixed(10), Sizes::Fixed(99), Sizes::Pareto] {
            let plan = Plan { threads, batch, sizes, ..plan() };
            let store = MapStore::default();
            let reports = run(&store, &plan, &ALL).unwrap_or_else(|e| panic!("{plan:?}: {e}"));
            for report in &reports[..11] {
                let operations = if report.phase.starts_with("scan") { 100 } else { 1000 };
                assert_eq!(report.operations, operations, "{}", report.phase);
                assert!(report.latency_us.max >= report.latency_us.p50 && report.latency_us.p50 > 0.0, "{report:?}");
            }
            let written: usize = store.map.lock().unwrap().iter().map(|(k, v)| k.len() + v.len()).sum();
            // Two threads that write one key at once may count in another order than they write.
            let off = reports[14].live_bytes.abs_diff(written as u64);
            assert!(off == 0 || (threads > 1 && sizes == Sizes::Pareto && off < written as u64 / 4), "{off} {plan:?}");
        }
    }
}

#[test]
fn figures_are_sums_of_what_was_asked() {
    let reports = run(&MapStore::default(), &plan(), &[Workload::Load, Workload::Read, Workload::Missing]).unwrap();
    assert_eq!(reports[0].user_bytes_written, 1000 * 123);
    assert_eq!(reports[0].write_amp, 1.0);
    assert_eq!(reports[0].live_bytes, 1000 * 123);
    assert_eq!(reports[1].user_bytes_read, 1000 * 123);
    assert_eq!((reports[1].not_found, reports[2].not_found), (0, 1000));
}

#[test]
fn a_run_on_a_loaded_store_knows_what_is_there() {
    let store = MapStore::default();
    let plan = Plan { sizes: Sizes::Pareto, ..plan() };
    let loaded = run(&store, &plan, &[Workload::Load]).unwrap();
    let reread = run(&store, &plan, &[Workload::Read, Workload::Scan]).unwrap();
    assert_eq!(loaded[0].live_bytes, reread[0].live_bytes);
}

#[test]
fn the_same_seed_makes_the_same_database() {
    let database = |seed| {
        let store = MapStore::default();
        run(&store, &Plan { threads: 1, seed, ..plan() }, &[Workload::Load, Workload::Update]).unwrap();
        store.map.into_inner().unwrap()
    };
    assert_eq!(database(1), database(1));
    assert_ne!(database(1), database(2));
}

#[test]
fn wrong_answers_end_the_run() {
    for (fault, workload) in [
        (Fault::Forgets, Workload::Read),
        (Fault::Garbles, Workload::Read),
        (Fault::Reverses, Workload::Scan),
        (Fault::Reverses, Workload::ScanBack),
    ] {
        let result = run(&MapStore::with(fault), &plan(), &[Workload::Load, workload]);
        assert!(matches!(result, Err(Failure::WrongAnswer { .. })), "{workload}: {result:?}");
    }
    let never_loaded = run(&MapStore::default(), &plan(), &[Workload::Read]);
    assert!(matches!(never_loaded, Err(Failure::WrongAnswer { .. })), "{never_loaded:?}");
}

#[test]
fn a_time_limit_ends_a_phase_but_never_the_load() {
    let plan = Plan { time_max: Some(Duration::ZERO), ..plan() };
    let workloads = [Workload::Load, Workload::Update, Workload::Settle];
    let operations = |store: &MapStore| -> Vec<u64> {
        run(store, &plan, &workloads).unwrap().iter().map(|report| report.operations).collect()
    };
    assert_eq!(operations(&MapStore::default()), [1000, 1, 1], "a wait for background work has time");
    assert_eq!(operations(&MapStore::with(Fault::Works)), [1000, 1, 0]);
}

#[test]
fn a_load_ends_by_a_limit_of_its_own() {
    let store = MapStore::default();
    let plan = Plan { threads: 1, ..plan() };
    let mut runner = Runner::new(&store, Path::new("/nonexistent"), plan, &[Workload::Load]).unwrap();
    runner.limit_load(Some(Duration::ZERO));
    assert_eq!(runner.phase(Workload::Load).unwrap().operations, 1);
    assert_eq!(store.map.lock().unwrap().len(), 1);
}

#[test]
fn what_background_work_needs_for_a_moment_counts() {
    let dir = std::env::temp_dir().join(format!("bifold-lab-needs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let store = MapStore { needs: Some(dir.join("merge")), ..MapStore::default() };
    let workloads = [Workload::Load, Workload::Settle];
    let mut runner = Runner::new(&store, &dir, plan(), &workloads).unwrap();
    let [load, settle] = workloads.map(|workload| runner.phase(workload).unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((load.dir_bytes_max, settle.dir_bytes), (0, 0));
    assert_eq!(settle.dir_bytes_max, 1 << 20);
}

#[test]
fn senseless_plans_are_refused() {
    for plan in [
        Plan { keys: 0, ..plan() },
        Plan { threads: 0, ..plan() },
        Plan { batch: 0, ..plan() },
        Plan { key_bytes: 3, ..plan() },
        Plan { updates: Distribution::Zipf { theta: 1.0 }, ..plan() },
    ] {
        let result = run(&MapStore::default(), &plan, &[Workload::Load, Workload::Update]);
        assert!(matches!(result, Err(Failure::Plan(_))), "{plan:?}");
    }
}

#[test]
fn changes_are_for_one_phase_and_inserts_write_keys_that_were_not_there() {
    let store = MapStore::default();
    let mut runner = Runner::new(&store, Path::new("/nonexistent"), plan(), &[Workload::Load]).unwrap();
    runner.phase(Workload::Load).unwrap();
    runner.change(&Changes { operations: Some(50), ..Changes::default() }).unwrap();
    assert_eq!(runner.phase(Workload::Insert).unwrap().operations, 50);
    assert_eq!(store.map.lock().unwrap().len(), 1050);
    runner.change(&Changes { threads: Some(2), ..Changes::default() }).unwrap();
    assert_eq!(runner.phase(Workload::Read).unwrap().operations, 1000);
}
