use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::{
    Scale, Spec,
    driver::{self, Job, Launch, Watch},
    execute::{self, Part, Seen},
    record::{Account, NotLoaded},
    scale::Rounds,
};

struct Silent;

impl Watch for Silent {
    fn begin(&mut self, _: &Job<'_>, _: usize, _: usize) {}
    fn seen(&mut self, _: &Job<'_>, _: &Seen) {}
    fn end(&mut self, _: &Run) {}
}

/// Runs everything in this process.
struct InThisProcess;

impl Launch for InThisProcess {
    fn launch(&self, spec: &Spec, part: usize, dir: &Path, seen: &mut dyn FnMut(Seen)) -> Result<Part<Value>> {
        let progress = execute::Progress::default();
        let part = execute::execute(spec, part, dir, None, &progress)?;
        seen(progress.look());
        part.erased()
    }
}

/// No store has all keys in time.
struct TooSlow;

impl Launch for TooSlow {
    fn launch(&self, spec: &Spec, _: usize, _: &Path, _: &mut dyn FnMut(Seen)) -> Result<Part<Value>> {
        let not_loaded = Some(NotLoaded { keys: 1, of: spec.plan.keys, seconds: 900.0 });
        let (steps, settings, version) = (Vec::new(), Vec::new(), "1".to_owned());
        Ok(Part { steps, account: Account::default(), version, settings, not_loaded })
    }
}

/// Runs end at once.
struct NothingToDo;

impl Launch for NothingToDo {
    fn launch(&self, _: &Spec, _: usize, _: &Path, _: &mut dyn FnMut(Seen)) -> Result<Part<Value>> {
        let (steps, settings, version) = (Vec::new(), Vec::new(), "1".to_owned());
        Ok(Part { steps, account: Account::default(), version, settings, not_loaded: None })
    }
}

fn fresh(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("bifold-lab-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

#[test]
fn a_session_that_was_cut_short_goes_on_where_it_was() {
    let dir = fresh("resume");
    let session = Session { scale: Scale::Tiny, ..Session::default() };
    let experiments = session.named(&["hashkv-e1".to_owned()]).unwrap();
    let all = {
        let mut results = Results::open(&dir, &session).unwrap();
        assert!(matches!(Results::open(&dir, &session), Err(Failure::Results(_))), "two sessions wrote to one file");
        let jobs = driver::jobs(&experiments, Rounds::of(2), &results);
        let order: Vec<_> = jobs.iter().map(|job| (job.round, job.arm.series.as_str())).collect();
        assert!(order.is_sorted_by_key(|(round, _)| *round) && order[0].1 != order[1].1, "not in turns: {order:?}");
        let held = File::create(dir.join("bifold-lab.lock")).unwrap();
        held.lock().unwrap();
        let refused = driver::drive(&jobs[..1], &dir, &InThisProcess, &mut Silent, &mut |run| results.add(run));
        assert!(refused.unwrap_err().to_string().contains("another session"), "two sessions shared a directory");
        drop(held);
        driver::drive(&jobs[..3], &dir, &InThisProcess, &mut Silent, &mut |run| results.add(run)).unwrap();
        jobs.len()
    };
    // The end of the last line is lost.
    let path = dir.join(FILE_NAME);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 10]).unwrap();
    let results = Results::open(&dir, &session).unwrap();
    assert_eq!((results.runs().len(), driver::jobs(&experiments, Rounds::of(2), &results).len()), (2, all - 2));
    assert_eq!(Results::read(&dir).unwrap().1.len(), 2);
    drop(results);
    let other = Session { seed: 2, ..session.clone() };
    assert!(Results::open(&dir, &other).unwrap_err().to_string().contains("\"seed\":2"));
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_run_that_was_not_loaded_in_time_is_kept_and_not_made_again() {
    let dir = fresh("slow");
    let session = Session { scale: Scale::Tiny, ..Session::default() };
    let experiments = session.named(&["hashkv-e1".to_owned()]).unwrap();
    let mut results = Results::open(&dir, &session).unwrap();
    let jobs = driver::jobs(&experiments, Rounds::of(2), &results);
    driver::drive(&jobs, &dir, &TooSlow, &mut Silent, &mut |run| results.add(run)).unwrap();
    assert_eq!(2 * results.runs().len(), jobs.len(), "a second round takes as long");
    drop(results);
    let results = Results::open(&dir, &session).unwrap();
    assert!(results.runs().iter().all(|run| run.not_loaded.is_some() && run.steps.is_empty() && run.version == "1"));
    assert!(driver::jobs(&experiments, Rounds::of(3), &results).is_empty());
    fs::remove_dir_all(&dir).unwrap();
}

/// Three rounds of runs whose first takes less than this.
fn thrice_within(seconds: u64) -> Rounds {
    Rounds { most: 3, again_within: Some(Duration::from_secs(seconds)) }
}

#[test]
fn only_short_runs_are_made_again_and_only_after_all_were_made_once() {
    let dir = fresh("short");
    let session = Session { scale: Scale::Tiny, ..Session::default() };
    let experiments = session.named(&["hashkv-e1".to_owned(), "hashkv-e2".to_owned()]).unwrap();
    let mut results = Results::open(&dir, &session).unwrap();
    let jobs = driver::jobs(&experiments, thrice_within(900), &results);
    let order: Vec<(&str, usize)> = jobs.iter().map(|job| (job.experiment, job.round)).collect();
    let once = order.iter().filter(|(_, round)| *round == 1).count();
    assert_eq!(jobs.len(), 3 * once);
    assert!(order[..once].is_sorted() && order[..once].iter().all(|(_, round)| *round == 1), "{order:?}");
    assert!(order[once..].is_sorted(), "the others by experiment, round by round: {order:?}");
    // No first round is short enough.
    driver::drive(&jobs_within(&jobs, 0), &dir, &NothingToDo, &mut Silent, &mut |run| results.add(run)).unwrap();
    assert_eq!(results.runs().len(), once);
    assert!(driver::jobs(&experiments, thrice_within(0), &results).is_empty(), "nor in a session that goes on");
    // A number of rounds that was given is made of all, however long they took.
    assert_eq!(driver::jobs(&experiments, Rounds::of(2), &results).len(), once);
    // By this limit all of them are.
    let jobs = driver::jobs(&experiments, thrice_within(900), &results);
    driver::drive(&jobs, &dir, &NothingToDo, &mut Silent, &mut |run| results.add(run)).unwrap();
    assert_eq!(results.runs().len(), 3 * once);
    fs::remove_dir_all(&dir).unwrap();
}

/// The same with another limit.
fn jobs_within<'a>(jobs: &[Job<'a>], seconds: u64) -> Vec<Job<'a>> {
    let within = |job: &Job<'a>| Job { again_within: Some(Duration::from_secs(seconds)), ..job.clone() };
    jobs.iter().map(within).collect()
}

#[test]
fn a_stored_run_that_took_long_has_no_further_round() {
    let dir = fresh("long");
    let session = Session { scale: Scale::Tiny, ..Session::default() };
    let experiments = session.named(&["hashkv-e1".to_owned()]).unwrap();
    let arms = &experiments[0].arms;
    let mut results = Results::open(&dir, &session).unwrap();
    for (arm, seconds) in arms.iter().zip([899.0, 900.0]) {
        results.add(Run { seconds, ..Run::made_up(&arm.spec, Vec::new()) }).unwrap();
    }
    let jobs = driver::jobs(&experiments, Scale::Device.rounds(), &results);
    let rounds = |at: usize| jobs.iter().filter(|job| job.arm.series == arms[at].series).count();
    assert_eq!((rounds(0), rounds(1), rounds(2)), (2, 0, 3));
    assert_eq!(driver::jobs(&experiments, Rounds::of(2), &results).len(), 2 * arms.len() - 2);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_line_that_is_not_ours_is_named() {
    let dir = fresh("foreign");
    let session = Session::default();
    drop(Results::open(&dir, &session).unwrap());
    fs::write(dir.join(FILE_NAME), "{\"a\":1}\n").unwrap();
    for failure in [Results::open(&dir, &session).map(|_| ()), Results::read(&dir).map(|_| ())] {
        let failure = failure.unwrap_err().to_string();
        assert!(failure.contains("runs.jsonl:1"), "{failure}");
    }
    fs::remove_dir_all(&dir).unwrap();
    assert!(Results::read(&dir).unwrap_err().to_string().contains("bifold lab run"));
}
