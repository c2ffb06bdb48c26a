//! Large values of a history: some puts read their values piece by piece, and most of these are long enough for a file
//! of their own.

use super::{History, Op, Write};
use crate::{random::Random, value::Spec};

/// A longer value has a file of its own.
const SMALL_BYTES: u64 = 64 << 10;

/// Such a file has pieces of this length.
const PIECE_BYTES: u64 = 256 << 10;

impl History {
    /// This history with large values, if its extras say so. Operations keep their positions.
    #[must_use]
    pub(super) fn with_large_values(self) -> Self {
        if !self.extras.large {
            return self;
        }
        let mut random = Random::new(self.seed, "which puts are large");
        let mut with_large = |op| match op {
            Op::Write(Write::Put(name, key, value)) if random.below(4) == 0 => {
                Op::PutReader(name, key, long(value, &mut random))
            }
            other => other,
        };
        Self { ops: self.ops.into_iter().map(|(at, op)| (at, with_large(op))).collect(), ..self }
    }
}

/// Mostly a little more than what has no file; one in sixteen has two pieces, one in four has no file at all.
fn long(value: Spec, random: &mut Random) -> Spec {
    let bytes = match random.weighted(&[4, 1, 11]) {
        0 => return value,
        1 => PIECE_BYTES + random.within(0, 2000),
        _ => SMALL_BYTES + random.within(0, 2000),
    };
    Spec { len: bytes as u32, ..value }
}
