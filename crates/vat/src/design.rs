//! The equations: how many bytes a design moves, how long that takes, and how much space it needs (Table 2 of the
//! paper).

use crate::{
    input::{KeyShare, MergeAmplification, Throughput},
    tree::Tree,
};

/// How levels are merged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compaction {
    /// A whole level is merged into the share α of the next (§3.3, Eq. 3 to 5).
    Leveling(MergeAmplification),
    /// One table at a time is merged into the share α of those that it overlaps (§5, Eq. 12 and 13; App. A.4).
    PerTable(MergeAmplification),
    /// A level is sorted and handed to the next one, which is left untouched: α = 0 (§3.3, Eq. 9).
    Tiering,
}

/// Where values are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValuePlace {
    /// Inline: with their keys, in the levels.
    InPlace,
    /// In a log that holds all keys and values; the levels hold keys (§3.3, Eq. 6 to 8).
    Log(KeyShare),
}

/// A point in the design space of the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Design {
    /// How levels are merged.
    pub compaction: Compaction,
    /// Where values are.
    pub values: ValuePlace,
    /// β: how much of the device's throughput the store achieves.
    pub throughput: Throughput,
}

/// The two costs that make up what the levels move, in bytes per byte that the levels hold (§3.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parts {
    /// The paper's *level amplification*: every byte is read and written on its way through the levels.
    pub level: f64,
    /// The paper's *merge amplification*: the bytes of the lower level that merges read and write.
    pub merge: f64,
}

impl Parts {
    /// The sum of both.
    pub fn total(self) -> f64 {
        self.level + self.merge
    }
}

impl Compaction {
    /// α. For tiering it is 0 (§3.3).
    pub fn alpha(self) -> f64 {
        match self {
            Self::Leveling(alpha) | Self::PerTable(alpha) => alpha.0,
            Self::Tiering => 0.0,
        }
    }

    /// D / Sₗ of the levels alone, by cause (§3.1 Eq. 1, §3.3 Eq. 4, §5 Eq. 13):
    ///
    /// ```text
    /// level part, all designs    2·l − 1
    /// merge part, leveling       α·l·(f − 1)
    /// merge part, per table      2·α·l·f
    /// merge part, tiering        0
    /// ```
    ///
    /// *Level part.* Between level i and i + 1 there are Sₗ/Sᵢ merges, each of which reads and writes the upper
    /// level, 2·Sᵢ: 2·Sₗ in all. There are l such pairs of levels; the level in memory is not read from the device,
    /// hence −1.
    ///
    /// *Merge part, leveling.* The lower level is empty at the first merge and holds j times the upper level at merge
    /// j, for j from 0 to f − 1. It is read and written: 2·α·Sᵢ·(0 + 1 + … + (f − 1)) = α·Sᵢ·f·(f − 1) for each f
    /// merges, and f·Sᵢ bytes have then come down. That is α·(f − 1) for each byte and pair of levels.
    ///
    /// *Merge part, per table.* Levels are nearly full at all times, so every byte that comes down is merged with α·f
    /// bytes, which are read and written: 2·α·f for each byte and pair of levels.
    pub fn parts(self, tree: Tree) -> Parts {
        let merge = match self {
            Self::Leveling(alpha) => alpha.0 * tree.levels * tree.growth_less_one,
            Self::PerTable(alpha) => 2.0 * alpha.0 * tree.levels * tree.growth,
            Self::Tiering => 0.0,
        };
        Parts { level: 2.0 * tree.levels - 1.0, merge }
    }
}

impl Design {
    /// Inline values, and the device at its best.
    pub fn new(compaction: Compaction) -> Self {
        Self { compaction, values: ValuePlace::InPlace, throughput: Throughput::FULL }
    }

    /// The same with values in a log.
    #[must_use]
    pub fn with_log(self, key_share: KeyShare) -> Self {
        Self { values: ValuePlace::Log(key_share), ..self }
    }

    /// The same with β.
    #[must_use]
    pub fn with_throughput(self, throughput: Throughput) -> Self {
        Self { throughput, ..self }
    }

    /// D / Sₗ: bytes read and written on the device for each byte of the data set, until all are in the last level.
    ///
    /// ```text
    /// in place        D/Sₗ = A                 (§3.3, Eq. 4; tiering: Eq. 9)
    /// with a log      D/Sₗ = p·A + 1           (§3.3, Eq. 6 and 7; tiering: Eq. 10)
    /// ```
    ///
    /// A is [`Compaction::parts`]; with a log it covers the keys alone. The 1 is the log, to which everything is
    /// appended once.
    pub fn amplification(&self, tree: Tree) -> f64 {
        self.with_log_traffic(self.compaction.parts(tree).total())
    }

    /// The bytes of [`Design::amplification`] that are written.
    ///
    /// The paper gives no formula for this half. It follows from Eq. 1: each factor 2 there is one read and one
    /// write, and the level in memory is not read. So the levels write `l + merge part / 2`.
    pub fn write_amplification(&self, tree: Tree) -> f64 {
        self.with_log_traffic(tree.levels + self.compaction.parts(tree).merge / 2.0)
    }

    /// T / Tₒₚₜ = (D/Sₗ) / β: the time to write the data set over that of appending it to one file on the same device
    /// (§3.3, Eq. 2, 5 and 8; tiering: Eq. 9 and 10).
    pub fn cost_ratio(&self, tree: Tree) -> f64 {
        self.amplification(tree) / self.throughput.0
    }

    /// Extra bytes on the device for each byte of the data set, when all levels above the last are full of newer
    /// versions of what the last one holds (§6, *Space amplification matters as well*).
    ///
    /// ```text
    /// in place        1/(f − 1)
    /// with a log      p + p·1/(f − 1) = p·f/(f − 1)
    /// ```
    ///
    /// The levels above the last hold 1/f + 1/f² + … of it: at most 1/(f − 1), which the paper uses. It says nothing
    /// about the log; with one, keys are in the log and in the levels, so all levels count. Garbage in the log comes
    /// on top and depends on its GC (§8). For tiering this is a lower bound: runs of the last level may overlap, too.
    pub fn space_amplification(&self, tree: Tree) -> f64 {
        let above_the_last = tree.growth_less_one.recip();
        match self.values {
            ValuePlace::InPlace => above_the_last,
            ValuePlace::Log(p) => p.0 * (1.0 + above_the_last),
        }
    }

    fn with_log_traffic(&self, levels: f64) -> f64 {
        match self.values {
            ValuePlace::InPlace => levels,
            ValuePlace::Log(p) => p.0 * levels + 1.0,
        }
    }
}
