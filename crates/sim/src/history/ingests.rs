//! Ingests of a history. One is open while a few other operations run, and then finished, or dropped.

use super::{ADDED_FROM, Extras, History, Maker, Mix, Op, Puts, Write, key_bytes};
use crate::{model::Name, random::Random};

/// How an ingest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It becomes visible.
    Finish,
    /// Nothing of it is there.
    Drop,
}

/// One ingest begins after one in so many operations.
const BEGINS: u64 = 12;

/// The most entries of one.
const ENTRIES_MAX: usize = 24;

impl History {
    /// This history with ingests into so many keyspaces, if its extras say so. Operations keep their positions.
    #[must_use]
    pub(super) fn with_ingests(self, mix: Mix, names: Name) -> Self {
        if !self.extras.ingests {
            return self;
        }
        let mut maker = Maker { random: Random::new(self.seed, "ingests"), mix, names, tag: 0 };
        let (mut ops, mut next, mut is_open) = (Vec::new(), ADDED_FROM, false);
        for op in self.ops {
            ops.push(op);
            let added = match is_open {
                false if maker.random.below(BEGINS) == 0 => {
                    maker.tag = next as u32 * 64;
                    maker.ingest(self.extras)
                }
                true if maker.random.below(3) == 0 => {
                    Op::EndIngest(maker.random.pick(&[End::Finish, End::Finish, End::Finish, End::Drop]))
                }
                _ => continue,
            };
            is_open = !is_open;
            ops.push((next, added));
            next += 1;
        }
        Self { ops, ..self }
    }
}

impl Maker {
    /// An ingest of neighbouring keys, all or half of them. Some were never written, and there may be none.
    fn ingest(&mut self, extras: Extras) -> Op {
        let name = self.name();
        let mut keys: Vec<_> = (0..self.mix.keys + self.mix.keys / 4).collect();
        keys.sort_by_key(|&key| key_bytes(key));
        let first = self.random.below(keys.len() as u64) as usize;
        let count = self.random.below(ENTRIES_MAX as u64 + 1) as usize;
        let share = self.random.pick(&[50, 100]);
        // A put with an instant can be ingested, an operand cannot.
        let extras = Extras { puts: if extras.puts == Puts::Instants { extras.puts } else { Puts::Plain }, ..extras };
        let mut writes = Vec::new();
        for key in keys.into_iter().skip(first).take(count) {
            if self.random.chance(share) {
                let put = Write::Put(name, key, self.value());
                writes.push(extras.change(&mut self.random, put));
            }
        }
        Op::Ingest(name, writes)
    }
}
