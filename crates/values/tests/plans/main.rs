//! Golden plans: value files in text, a command, and what the placement picks for GC. `plans/*.txt` hold the cases;
//! after a wanted change `BIFOLD_WRITE_PLANS=1 cargo test -p bifold-values --test plans` writes the new plans, and the
//! diff shows what has changed. The compaction policies have the same in `bifold-index`.
//!
//! ```text
//! == what this case shows
//! placement wisckey file_bytes=4096        a keyspace with these options of values, as in TOML
//! put a-z 1000                             each key of the range gets a value of so many bytes
//! ingest a-z 1000                          the same by an ingest
//! delete a-c                               deletes them
//! flush                                    a rewrite of everything since the last: what is overwritten is dropped
//! merge 0 1                                a rewrite of everything from level 0 to level 1
//! record                                   syncs, records what the manifest should know, and ends the files
//! leave out 3                              something in file 3 cannot be read
//! space target=1.5 index=0 above=0.5       how tight space is: see `SpacePressure`
//! space split=h,q                          the same; three partitions
//! pick 2                                   picks a job, takes it as running, picks another
//! meanwhile a-c 1000                       before the edit of the next job these keys are put, and the placement is
//!                                          told what that overwrites
//! run                                      runs the job that is picked now
//! explain 3                                the first units that GC knows, and why it does not take them
//! -> files 1 2, alone
//! -> nothing
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod bed;

use std::{fmt::Write as _, fs, path::Path};

use self::bed::Bed;

#[test]
fn wisckey_picks_what_its_plans_say() {
    check("wisckey");
}

#[test]
fn hashkv_picks_what_its_plans_say() {
    check("hashkv");
}

#[test]
fn novkv_picks_what_its_plans_say() {
    check("novkv");
}

#[test]
fn diffkv_picks_what_its_plans_say() {
    check("diffkv");
}

#[test]
fn unikv_picks_what_its_plans_say() {
    check("unikv");
}

#[test]
fn streams_picks_what_its_plans_say() {
    check("streams");
}

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/plans/{name}.txt"));
    let golden = fs::read_to_string(&path).unwrap();
    let cases = golden.split_inclusive('\n').filter(|line| line.starts_with("== ")).count();
    assert!(cases >= 5, "{name} has {cases} cases");
    let (mut now, mut bed) = (String::new(), None);
    for line in golden.lines().filter(|line| !line.starts_with("->")) {
        writeln!(now, "{line}").unwrap();
        match line.split_once(' ') {
            _ if line.is_empty() || line.starts_with("==") || line.starts_with('#') => {}
            Some(("placement", options)) => bed = Some(Bed::new(options)),
            _ => now += &bed.as_mut().unwrap().read(line),
        }
    }
    if std::env::var_os("BIFOLD_WRITE_PLANS").is_some() {
        fs::write(&path, now).unwrap();
    } else if now != golden {
        let differs = |(_, (now, golden)): &(usize, (&str, &str))| now != golden;
        let first = now.lines().zip(golden.lines()).enumerate().find(differs);
        let (at, (is, should)) = first.unwrap_or((golden.lines().count(), ("", "")));
        let line = at + 1;
        panic!("{name}.txt, line {line}:\n  planned {is}\n  golden  {should}\nBIFOLD_WRITE_PLANS=1 writes new plans");
    }
}
