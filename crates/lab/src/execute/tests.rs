use super::*;
use crate::{Plan, plan::Changes};

fn spec(steps: Vec<Step>) -> Spec {
    let plan = Plan { keys: 500, sizes: crate::values::Sizes::Fixed(100), ..Plan::default() };
    let set = ["memory_limit=1MiB", "memtable_bytes=16KiB"].map(str::to_owned).into();
    Spec {
        store: "bifold".to_owned(),
        toml: None,
        set,
        plan,
        input: None,
        steps,
        page_cache: PageCache::Cold,
        process_memory: None,
    }
}

fn in_fresh_dir<T>(name: &str, work: impl FnOnce(&Path) -> T) -> T {
    let dir = std::env::temp_dir().join(format!("bifold-lab-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let result = work(&dir);
    std::fs::remove_dir_all(&dir).unwrap();
    result
}

fn recover(name: &str) -> Step {
    Step { name: name.to_owned(), act: Act::Recover, changes: Changes::default() }
}

#[test]
fn steps_are_done_in_turn_and_streams_repeat_their_choices() {
    let stream = || Changes { stream: Some(7), ..Changes::default() };
    let steps = vec![
        Step::new("P0", Workload::Load),
        Step::new("first", Workload::Read).with(stream()),
        Step::new("other", Workload::Read),
        Step::new("again", Workload::Read).with(stream()),
    ];
    let progress = Progress::default();
    let part = in_fresh_dir("steps", |dir| execute(&spec(steps), 0, dir, None, &progress)).unwrap();
    let names: Vec<_> = part.steps.iter().map(|s| (s.step.as_str(), s.report.phase, s.report.operations)).collect();
    assert_eq!(names, [("P0", "load", 500), ("first", "read", 500), ("other", "read", 500), ("again", "read", 500)]);
    let digests: Vec<_> = part.steps.iter().map(|s| s.report.operations_digest.as_str()).collect();
    assert!(digests[1] == digests[3] && digests[1] != digests[2], "{digests:?}");
    assert!(part.steps[0].facts["memory_memtables"] > 0.0);
    assert_eq!(progress.look(), Seen { step: "again".to_owned(), done: 500, total: 500 });
}

#[test]
fn a_load_that_takes_too_long_ends_the_run_without_figures() {
    let spec = spec(vec![Step::new("load", Workload::Load), Step::new("read", Workload::Read)]);
    let run = |limit| in_fresh_dir("too-slow", |dir| within(limit, &spec, 0, dir, None, &Progress::default())).unwrap();
    let part = run(Some(Duration::ZERO));
    assert!(part.steps.is_empty() && part.account.by_source.is_empty());
    // As its process says it.
    let said = serde_json::to_string(&part.erased().unwrap()).unwrap();
    let heard: Part<serde_json::Value> = serde_json::from_str(&said).unwrap();
    assert_eq!(heard.not_loaded.map(|left| (left.keys, left.of)), Some((1, 500)));
    let part = run(Some(LOAD_TIME_MAX));
    assert_eq!((part.not_loaded, part.steps.len()), (None, 2));
}

#[test]
fn loads_are_limited_where_memory_and_steps_are() {
    use crate::{Scale, Session};

    for scale in [Scale::Medium, Scale::Device, Scale::Large] {
        let limit = (scale == Scale::Device).then_some(LOAD_TIME_MAX);
        for experiment in (Session { scale, ..Session::default() }).experiments() {
            for arm in &experiment.arms {
                assert_eq!(load_time_max(&arm.spec), limit, "{} {}, {scale}", experiment.name, arm.label());
            }
        }
    }
    let input = Some(Given::default().input("here", "tsv"));
    let limited = Spec { process_memory: Some(1 << 30), ..spec(Vec::new()) };
    let limited = Spec { plan: Plan { time_max: Some(Duration::ZERO), ..limited.plan.clone() }, ..limited };
    assert_eq!(load_time_max(&limited), Some(LOAD_TIME_MAX));
    assert_eq!(load_time_max(&Spec { input, ..limited }), None, "a user's own entries");
}

#[test]
fn a_run_has_a_part_before_and_after_each_recovery() {
    let steps = vec![Step::new("a", Workload::Load), recover("b"), Step::new("c", Workload::Read), recover("d")];
    assert_eq!(parts(&spec(steps)), [0..1, 1..3, 3..4]);
    let error =
        execute(&spec(vec![Step::new("a", Workload::Load)]), 1, Path::new("/nonexistent"), None, &Progress::default());
    assert!(matches!(error, Err(Failure::Plan(_))));
}

#[test]
fn a_store_nobody_knows_is_an_error() {
    let spec = Spec { store: "mystore".to_owned(), ..spec(vec![Step::new("a", Workload::Load)]) };
    let error = execute(&spec, 0, Path::new("/nonexistent"), None, &Progress::default()).unwrap_err();
    assert!(error.to_string().contains("mystore"), "{error}");
}

#[test]
fn given_pairs_are_loaded_updated_and_checked() {
    let mut given = Given::default();
    for n in 0..300_u32 {
        given.push(format!("key/{}", n.wrapping_mul(2_654_435_761)).as_bytes(), "v".repeat(n as usize).as_bytes());
    }
    let given = Arc::new(given.done().unwrap());
    let steps = [Workload::Load, Workload::Update, Workload::Read, Workload::Missing, Workload::Scan];
    let steps: Vec<Step> = steps.map(|workload| Step::new(workload.name(), workload)).into();
    let input = Some(given.input("here", "tsv"));
    let plan = Plan { keys: 300, ..Plan::default() };
    let spec = Spec { input, plan, ..spec(steps) };
    let run = |given| in_fresh_dir("given", |dir| execute(&spec, 0, dir, given, &Progress::default()));
    let part = run(Some(&given)).unwrap();
    let live = part.steps[0].report.live_bytes;
    assert_eq!(live, spec.input.as_ref().unwrap().bytes);
    assert_eq!(part.steps[3].report.not_found, 300);
    for other in [None, Some(&Arc::new(Given::default()))] {
        assert!(matches!(run(other), Err(Failure::Plan(_))), "ran on another input");
    }
}

/// HashKV's experiment 13 at the smallest scale, in one process: the runner checks every value that it reads.
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn stores_over_other_indexes_answer_right_through_their_experiment() {
    use crate::{experiment, scale::Scale, store::Peer};

    let is_over = |store: &str| store.parse::<Peer>().is_ok_and(Peer::is_over);
    let mut runs = 0;
    for experiment in experiment::all(Scale::Tiny, 1).iter().filter(|of| of.name.starts_with("hashkv-e13")) {
        for arm in experiment.arms.iter().filter(|arm| is_over(&arm.spec.store)) {
            let label = format!("{} {}", experiment.name, arm.label());
            let run = |dir: &Path| execute(&arm.spec, 0, dir, None, &Progress::default());
            let part = in_fresh_dir(&format!("over-{runs}"), run).unwrap_or_else(|error| panic!("{label}: {error}"));
            assert_eq!(part.steps.len(), arm.spec.steps.len(), "{label}");
            let values = part.steps.iter().map(|step| step.facts["value_files"]).fold(0.0, f64::max);
            assert!(values > 0.0 && part.account.by_source["value"] > 0, "{label}: {:?}", part.account);
            assert!(part.version.contains(" over "), "{label}");
            runs += 1;
        }
    }
    assert!(runs >= 8, "{runs} runs");
}
