//! Ingests while transactions run: blind puts of several keys of a keyspace in one commit.
//!
//! Nobody says which number an ingest gets, but it skips far over all commits before it. So a number that is a little
//! larger than the last one before it lies between all commits before it and all later ones.

use std::{collections::BTreeSet, thread, time::Duration};

use bifold::{Isolation, SeqNo};

use super::{
    KEYS, Session,
    check::{Done, Step, TransactionEnd},
    work::{key_bytes, value_of},
};
use crate::{model::NAMES, random::Random, read::Trouble};

/// Ingests of a life.
pub(super) const INGESTS: u32 = 3;

/// More numbers than all commits of a life take, and fewer than an ingest skips (`docs/ingest.md`).
const SKIPPED: SeqNo = 1 << 20;

impl Session {
    /// Ingests now and then, with these numbers for what is appended.
    pub(super) fn ingest_all(&self, first_id: u32) -> Result<Vec<Done>, Trouble> {
        let mut random = Random::new(self.seed, "ingests");
        let mut all = Vec::new();
        for id in first_id..first_id + INGESTS {
            for _ in 0..random.below(40) {
                thread::yield_now();
            }
            if self.is_over() {
                break;
            }
            all.push(self.ingest(&mut random, id)?);
        }
        Ok(all)
    }

    fn ingest(&self, random: &mut Random, id: u32) -> Result<Done, Trouble> {
        let tree = random.below(NAMES.len() as u64) as usize;
        let keys: BTreeSet<u8> = (0..random.within(1, 4)).map(|_| random.below(u64::from(KEYS)) as u8).collect();
        let snapshot = self.db.snapshot().seqno();
        let mut done =
            Done { id, snapshot, outcome: TransactionEnd::Nothing, isolation: Isolation::Serializable, steps: vec![] };
        let mut ingest = self.trees[tree].ingest()?;
        for key in keys {
            let value = value_of(&[id], random.below(1200) as usize);
            let step = match random.below(6) {
                0 if self.extras.expiry => {
                    ingest.put_with_ttl(key_bytes(key), value, Duration::ZERO)?;
                    Step::WroteExpired((tree, key), vec![id])
                }
                _ => {
                    ingest.put(key_bytes(key), value)?;
                    Step::Wrote((tree, key), Some(vec![id]))
                }
            };
            done.steps.push(step);
            thread::yield_now();
        }
        if random.chance(10) {
            return Ok(done);
        }
        let before = self.db.snapshot().seqno();
        ingest.finish()?;
        let after = self.db.snapshot().seqno();
        if after < before + SKIPPED {
            return Err(Trouble::wrong(format!("an ingest has skipped only from {before} to {after}")));
        }
        let number = before + SKIPPED;
        done.outcome = TransactionEnd::Ingested(number);
        self.is_durable(number);
        Ok(done)
    }
}
