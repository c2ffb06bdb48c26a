use super::*;

#[test]
fn short_runs_are_made_again_at_device_unless_rounds_are_given() {
    let (out, data, minutes, memory) = (None, None, None, None);
    let how = How { out, data, rounds: None, minutes, seed: 1, cold: false, memory, tune_system: false };
    let limit = Some(Duration::from_secs(900));
    assert_eq!(how.rounds(Scale::Device).unwrap(), Rounds { most: 3, again_within: limit });
    assert_eq!([Scale::Tiny, Scale::Small].map(|scale| how.rounds(scale).unwrap()), [1, 3].map(Rounds::of));
    let given = How { rounds: Some(2), ..how };
    assert_eq!(given.rounds(Scale::Device).unwrap(), Rounds::of(2));
}

#[test]
fn runs_that_may_be_made_again_are_announced() {
    let session = Session { scale: Scale::Device, ..Session::default() };
    let experiments = session.named(&["hashkv-e1".to_owned()]).unwrap();
    let arm = &experiments[0].arms[0];
    let again_within = Some(Duration::from_secs(60));
    let jobs: Vec<_> = (1..=3).map(|round| Job { experiment: "hashkv-e1", arm, round, again_within }).collect();
    // A load of 6 GiB, and three steps of at most two minutes; then twice a minute.
    let said = beforehand(&jobs, 6 << 30, Scale::Device);
    assert!(said.starts_with("1 runs, and up to 2 more of those that take less than 60 s, with up to 6"), "{said}");
    assert!(said.contains("at most about 12 min;"), "{said}");
    // It is known that they are made.
    let said = beforehand(&jobs[1..], 6 << 30, Scale::Device);
    assert!(said.starts_with("2 runs with up to") && said.contains("at most about 2 min;"), "{said}");
    let each = jobs.iter().map(|job| Job { again_within: None, ..job.clone() }).collect::<Vec<_>>();
    let said = beforehand(&each, 6 << 30, Scale::Device);
    assert!(said.starts_with("3 runs with up to") && said.contains("at most about 28 min;"), "{said}");
}

#[test]
fn names_with_commas_can_be_chosen() {
    let known = ["hashkv", "hashkv, tuned", "wisckey"].map(str::to_owned).into();
    let all = |list| chosen(list, &known).map(|names| names.into_iter().collect::<Vec<_>>());
    assert_eq!(all("hashkv").unwrap(), ["hashkv"]);
    assert_eq!(all("hashkv, tuned").unwrap(), ["hashkv, tuned"]);
    assert_eq!(all("wisckey,hashkv, tuned,hashkv").unwrap(), ["hashkv", "hashkv, tuned", "wisckey"]);
    assert!(matches!(all("hashkv,tuned"), Err(Failure::Trouble(why)) if why.starts_with("`tuned` is not measured")));
    assert!(all("hashkv, ").is_err());
}
