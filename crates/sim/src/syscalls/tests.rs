//! Tests of what is required of a checkpoint.

use super::*;

/// A writer of thirty commits has made a checkpoint after so many of them, and has said that it was after 29.
fn compared(commits_before: CommitNo) -> Result<u64, Trouble> {
    const SEED: u64 = 0;
    let lab = Lab::new(Path::new("nothing is run"), SEED)?;
    let db = Db::open_with(lab.dir(), options(SEED))?;
    let second = db.keyspace(NAMES[1], keyspace(options(SEED).keyspace, SEED + 1))?;
    let (trees, commits) = ([db.default_keyspace().clone(), second], Commits::batches_of(SEED));
    for n in 1..=30 {
        commits.commit((&db, &trees), (0, n), Durability::Buffered)?;
        if n == commits_before {
            db.checkpoint(checkpoint_of(&lab.dir()))?;
        }
    }
    drop((trees, db));
    let mut report = Report::default();
    let said = Said { acked: vec![30], checkpoint: Some(vec![(29, 29)]) };
    Left::of(lab, said)?.check(FailurePlace::default(), &mut report)?;
    Ok(report.of("checkpoints compared"))
}

#[test]
fn a_checkpoint_must_have_what_was_acknowledged_before_it_and_nothing_else() {
    assert_eq!(compared(29).unwrap(), 1);
    for wrong in [28, 30] {
        let trouble = compared(wrong).unwrap_err().to_string();
        assert!(trouble.contains("the checkpoint"), "after {wrong}: {trouble}");
    }
}
