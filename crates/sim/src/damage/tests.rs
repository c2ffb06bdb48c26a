//! Tests of the judgement: what counts as lost, and what a get may find.

use bifold::Corruption;

use super::*;
use crate::{history::Write, value::Spec};

/// A database of two puts, and its files as they were after the first one.
fn two_puts(is_killed: bool) -> Fixture {
    let mut set = OptionSet::new(1, 0, Durability::Buffered);
    set.database.memory_limit = MEMORY_LIMIT;
    let fs = MemoryFs::default();
    let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set.clone(), Model::default(), Blind);
    let put = |key: u16| Op::Write(Write::Put(0, key, Spec { tag: u32::from(key), len: 100 }));
    driver.open().unwrap();
    driver.step(&put(1)).unwrap();
    let older = env::files_of(&fs, env::DIR.as_ref()).unwrap();
    driver.step(&put(2)).unwrap();
    driver.close().unwrap();
    let files = env::files_of(&fs, env::DIR.as_ref()).unwrap();
    Fixture { files, older, model: driver.into_parts().0, set, is_killed }
}

/// The files after the first put, as if an engine had lost the second one for this damage.
fn without_the_second(fixture: &Fixture, kind: Harm, name: &str) -> Mutation {
    let touched = BTreeSet::from([Path::new(env::DIR).join(name)]);
    Mutation { kind, files: fixture.older.clone(), touched, what: name.into() }
}

#[test]
fn damage_that_verification_reports_costs_a_closed_database_no_commit() {
    let (fixture, calls) = (two_puts(false), Calls { max: u64::MAX });
    let open = |change: &Mutation| {
        let look = Look { fixture: &fixture, change, calls: &calls };
        look.open(Access::ReadWrite, Reported::Yes, &mut Report::default())
    };
    for name in ["000001.tbl", "000001.val", "000001.log", "MANIFEST"] {
        let lost = open(&without_the_second(&fixture, Harm::Flip, name));
        assert!(matches!(lost, Err(Trouble::Wrong(_))), "{name}: {lost:?}");
    }
    open(&without_the_second(&fixture, Harm::Truncate, "000001.log")).unwrap();
}

#[test]
fn of_a_killed_database_only_logs_and_the_manifest_may_cost_commits_that_verification_reports() {
    let (fixture, calls) = (two_puts(true), Calls { max: u64::MAX });
    let floor = |name: &str, reported, tails| {
        let change = without_the_second(&fixture, Harm::Flip, name);
        Look { fixture: &fixture, change: &change, calls: &calls }.floor(reported, tails)
    };
    for (name, least) in [("000001.log", 0), ("MANIFEST", 0), ("000001.tbl", 2), ("000001.val", 2)] {
        assert_eq!(floor(name, Reported::Yes, Tails::AreKept), least, "{name}");
        assert_eq!(floor(name, Reported::No, Tails::AreKept), 2, "{name}");
        assert_eq!(floor(name, Reported::Yes, Tails::MayBeLost), 0, "{name}");
    }
}

#[test]
fn a_get_finds_what_iterating_yields_or_names_a_file() {
    let value = |text: &str| Value::copy_of(text.as_bytes());
    let entries: Entries = vec![(Box::from(&b"key"[..]), value("right"))];
    let judged = |key: &str, found| judge_get(key.as_bytes(), found, Some(&entries)).is_ok();
    assert!(judged("key", Ok(Some(value("right")))) && judged("other", Ok(None)));
    assert!(!judged("key", Ok(None)), "a key that is there");
    assert!(!judged("key", Ok(Some(value("older")))) && !judged("other", Ok(Some(value("right")))));
    let damage = |path: &str| Err(Corruption::new(0, "table", "a block", "another").of(path));
    assert!(judged("key", damage("/sim/db/000001.tbl")) && !judged("key", damage("elsewhere")));
    assert!(judge_get(b"key", Ok(None), None).is_ok(), "iterating has ended with an error");
}
