//! Several keyspaces: atomic batches, snapshots that do not change, compare-and-swap.
//!
//! ```sh
//! cargo run -p bifold --example transfers
//! ```

use std::thread;

use bifold::{Db, Durability, KeyspaceOptions, Result, Swap};

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("bifold-transfers-{}", std::process::id()));
    let db = Db::open(&dir)?;
    let accounts = db.keyspace("accounts", KeyspaceOptions::default())?;
    let journal = db.keyspace("journal", KeyspaceOptions::default())?;
    accounts.put("ada", "100")?;
    accounts.put("grace", "0")?;

    // Keyspaces share one log, so after a crash a batch over several of them is there as a whole or not at all.
    let before = db.snapshot();
    let mut transfer = db.batch();
    transfer.put(&accounts, "ada", "70")?.put(&accounts, "grace", "30")?.put(&journal, "0001", "ada to grace: 30")?;
    println!("transfer of {} operations, {} bytes", transfer.len(), transfer.bytes());
    db.commit_with(transfer, Durability::Sync)?;
    println!("committed; it now survives a power loss");

    let (then, now) = (before.get(&accounts, "ada")?, accounts.get("ada")?);
    println!("ada had 100 when the snapshot was taken, and has 70 now");
    assert_eq!((then.as_deref(), now.as_deref()), (Some(&b"100"[..]), Some(&b"70"[..])));
    assert_eq!((before.iter(&journal).count(), journal.iter().count()), (0, 1));
    drop(before);

    // Four threads take numbers from one counter. No number is taken twice.
    let mut taken = thread::scope(|scope| -> Result<Vec<u64>> {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..25).map(|_| take_next(&db)).collect::<Result<Vec<u64>>>())).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(all)
    })?;
    taken.sort_unstable();
    println!("four threads took {} numbers, {} to {}", taken.len(), taken[0], taken[taken.len() - 1]);
    assert_eq!(taken, (0..100).collect::<Vec<u64>>());

    drop((accounts, journal));
    db.close()?;
    std::fs::remove_dir_all(dir).ok();
    Ok(())
}

/// Takes the next number of a counter that other threads use at the same time.
fn take_next(db: &Db) -> Result<u64> {
    let mut seen = db.get("next number")?;
    loop {
        let number = seen.as_deref().and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
        let next = (number + 1).to_be_bytes();
        match db.compare_and_swap("next number", seen.as_deref(), Some(&next))? {
            Swap::Done => return Ok(number),
            Swap::Mismatch { current } => seen = current,
        }
    }
}
