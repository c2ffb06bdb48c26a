//! All short histories: every sequence of up to three operations from a fixed list, on a database with a little data,
//! with a power loss at every moment. Most known crash bugs of file systems and databases need no more than three
//! operations. Random histories reach them by chance; this reaches them for sure.

use std::ops::Bound::Unbounded;

use bifold::Durability;

use crate::{
    history::{End, Extras, History, Op, Span, Write},
    options::OptionSet,
    power::{self, PowerSizes},
    report::Report,
    value::Spec,
};

/// The longest sequence.
const LENGTH_MAX: u32 = 3;

/// How many operations there are to choose from.
const CHOICES: u64 = 18;

/// How many sequences there are: 18 + 324 + 5 832.
pub const SEQUENCES: u64 = CHOICES + CHOICES.pow(2) + CHOICES.pow(3);

/// Runs sequence number `index` and judges its images, or only one of them.
#[must_use]
pub fn run(index: u64, only: Option<u64>) -> Report {
    let sizes = PowerSizes::of_given_history();
    let set = OptionSet::new(index, 1, Durability::Buffered);
    let mut report = power::run_history(&format!("exhaustive --seed {index}"), &history(index), &set, sizes, only);
    report.count("sequences", 1);
    report
}

/// Sequence number `index`, after the operations that fill the database.
#[must_use]
pub fn history(index: u64) -> History {
    let mut left = index % SEQUENCES;
    let mut length = 1;
    while length < LENGTH_MAX && left >= CHOICES.pow(length) {
        left -= CHOICES.pow(length);
        length += 1;
    }
    let mut ops = prelude();
    for position in 0..length {
        ops.extend(choice(left % CHOICES, 100 + position));
        left /= CHOICES;
    }
    let ops = ops.into_iter().enumerate().collect();
    History { seed: index, durability: Durability::Buffered, extras: Extras::default(), ops }
}

/// Two keyspaces, each with something in a table and something in the log.
fn prelude() -> Vec<Op> {
    let put = |name, key| Write::Put(name, key, Spec { tag: u32::from(key) * 2 + u32::from(name), len: 40 });
    vec![
        Op::Create(1),
        Op::Batch(Durability::Buffered, (0..6).flat_map(|key| [put(0, key), put(1, key)]).collect()),
        Op::Flush,
        Op::Batch(Durability::Buffered, vec![put(0, 6), put(1, 6), Write::Delete(0, 1)]),
    ]
}

fn choice(number: u64, tag: u32) -> Vec<Op> {
    let put = |name, key| Write::Put(name, key, Spec { tag: tag * 4 + u32::from(name), len: 600 });
    let op = match number {
        0 => Op::Write(put(0, 2)),
        1 => Op::Batch(Durability::Buffered, vec![put(0, 3), put(1, 3), Write::Delete(1, 2)]),
        2 => Op::Batch(Durability::Sync, vec![put(1, 4), put(0, 4)]),
        3 => Op::Batch(Durability::Memory, vec![put(0, 5), put(1, 5)]),
        4 => Op::Write(Write::Delete(0, 2)),
        5 => Op::Write(Write::DeleteRange(1, Span(std::ops::Bound::Included(0), Unbounded))),
        6 => Op::Write(Write::DeleteRange(0, Span(Unbounded, Unbounded))),
        7 => Op::Flush,
        8 => Op::Compact,
        9 => Op::Snapshot(0),
        10 => Op::DropSnapshot(0),
        11 => Op::Checkpoint,
        12 => Op::Sync,
        13 => Op::Reopen,
        14 => Op::Drop(1),
        15 => Op::Create(2),
        16 => Op::PutReader(0, 2, Spec { tag: tag * 4, len: (64 << 10) + 1 }),
        _ => return vec![Op::Ingest(0, vec![put(0, 2), put(0, 7)]), Op::EndIngest(End::Finish)],
    };
    vec![op]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_sequence_occurs_once() {
        let all: BTreeSet<String> = (0..SEQUENCES).map(|i| format!("{:?}", history(i).ops)).collect();
        assert_eq!(all.len() as u64, SEQUENCES);
    }
}
