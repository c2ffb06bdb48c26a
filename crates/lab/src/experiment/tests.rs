use std::collections::BTreeSet;

use super::*;

#[test]
fn every_experiment_has_a_name_of_its_own_and_says_what_it_claims() {
    let mut names = BTreeSet::new();
    for experiment in all(Scale::Tiny, 1) {
        let name = experiment.name;
        assert!(names.insert(name), "{name} comes twice");
        let paper = experiment.paper.name().to_lowercase();
        assert!(experiment.paper == Paper::Bifold || name.starts_with(&paper), "{name} is not of {paper}");
        assert!(!experiment.checks.is_empty() && !experiment.views.is_empty(), "{name}");
        assert!(!experiment.title.is_empty() && !experiment.place.is_empty(), "{name}");
    }
}

/// At every scale: a large one is not run by any test.
#[test]
fn every_arm_can_be_run() {
    for scale in Scale::ALL {
        for experiment in all(scale, 1) {
            let mut seen = BTreeSet::new();
            for arm in &experiment.arms {
                let label = format!("{} {}, {scale}", experiment.name, arm.label());
                assert!(seen.insert(arm.label()), "{label} comes twice");
                arm.spec.options().unwrap_or_else(|e| panic!("{label}: {e}"));
                for step in &arm.spec.steps {
                    step.changes
                        .apply(&arm.spec.plan)
                        .check()
                        .unwrap_or_else(|e| panic!("{label}, {}: {e}", step.name));
                }
                let steps: BTreeSet<_> = arm.spec.steps.iter().map(|step| &step.name).collect();
                assert_eq!(steps.len(), arm.spec.steps.len(), "{label}: two steps have one name");
            }
        }
    }
}

#[test]
fn names_of_papers_and_all_stand_for_many() {
    let names = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        select(all(Scale::Tiny, 1), &words).map(|found| found.iter().map(|e| e.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&["hashkv-e1"]).unwrap(), ["hashkv-e1"]);
    assert!(names(&["hashkv"]).unwrap().iter().all(|name| name.starts_with("hashkv")));
    assert_eq!(names(&["all"]).unwrap().len(), all(Scale::Tiny, 1).len());
    assert!(names(&["hashkv-e99"]).unwrap_err().to_string().contains("hashkv-e1"));
    assert!(names(&["nonsense"]).unwrap_err().to_string().contains("lab list"));
}

/// The keys of the runs in `docs/results`. A renamed option or step must not separate stored results from their
/// experiments. Since they were made, `unikv-e6` has got another space target, `unikv-e1`, `unikv-e8`, `rivals` and
/// `diffkv-f10` to `f13` have got more arms, and the baselines of other stores have changed: LevelDB's settings where
/// `inline` stood for LevelDB, level 1 of the others as large as ours.
#[test]
fn stored_results_belong_to_the_experiments_of_today() {
    let stored: BTreeSet<&str> = include_str!("stored-keys.txt").lines().collect();
    let is_of_then = |experiment: &Experiment, arm: &Arm| {
        let is_baseline = arm.spec.store != "bifold" || arm.series == setup::LIKE_LEVELDB;
        let new_arms = [
            ("unikv-e1", "leveldb-like, no filters"),
            ("unikv-e1", "unikv, any space"),
            ("unikv-e1", "unikv, runs never merged"),
            ("unikv-e1", "unikv, GC by partition"),
            ("unikv-e8", "unikv, runs never merged"),
            ("unikv-e8", "unikv, GC by partition"),
            ("rivals", "streams"),
        ];
        let is_new_arm = new_arms.contains(&(experiment.name, &arm.series))
            || ["logs, GC", "diffkv, space 2", "diffkv, deep"].contains(&&*arm.series);
        experiment.name != "unikv-e6" && !is_baseline && !is_new_arm
    };
    let mut compared = 0;
    for experiment in &all(Scale::Small, 1) {
        for arm in experiment.arms.iter().filter(|arm| is_of_then(experiment, arm)) {
            assert!(stored.contains(&*arm.spec.key()), "{} {}", experiment.name, arm.label());
            compared += 1;
        }
    }
    assert!(compared >= 150, "{compared}");
}
