//! Figure 3: the bytes that trees of several depths move, compared with the equations for the measured α.
//!
//! ```text
//! measured    flushes, merges and value log, read and written, until all data have come down,
//!             for each byte of keys and values put in
//! predicted   A in place, p·A + 1 with a log, where A is
//!             2·l − 1 + α·l·(f − 1) + 2        leveling, levels merged as a whole      the 2 is level 0, which is
//!             2·l − 1 + 2·α·l·f + 2            leveling, a table at a time             memory in the model
//!             2·l − 1                          tiering
//! ```
//!
//! The last merge, which brings all data down, is made of every tree and counted with the load, so that all figures are
//! of whole trees. Tiers merge when they are full and at no other time, as in the model: their bound on space is off.
//!
//! Each commit has the size of the model's memory, and memtables take one commit, so each flush has the same bytes.
//! Keys are distinct, in the order of their hashes. `bifold vat validate` does the same with more trees, and gives the
//! causes of differences.

use bifold_vat::{Compaction, Design, Growth, KeyShare, Levels, MergeAmplification, OutOfRange, Tree};

use crate::experiment::{
    Arm, Data, Experiment, Paper, View,
    check::{Check, Rule},
    setup::{KEY_BYTES, Setup, plan, settle, step},
    view::LinePoint,
};
use crate::{Plan, Workload, scale::Scale};

/// f.
const GROWTH: u32 = 4;
/// Bytes of a value.
const VALUE_BYTES: usize = 1000;
/// The steps after which all data are flushed, and all data are in the last level.
const LOADED: &str = "settle";
const DOWN: &str = "compact";

/// So much space, in percent of the oldest run, that it never makes a merge due.
const SPACE_UNBOUNDED: u64 = 1_000_000;

const ALPHA: &str = "/facts/alpha";
const USER: &str = "/user_bytes_written";
const FLUSHED: &str = "/bytes_written/flush";
/// Bytes that the insert path moves on the device.
const MOVED: [&str; 5] =
    [FLUSHED, "/bytes_read/flush", "/bytes_read/compaction", "/bytes_written/compaction", "/bytes_written/value"];

/// A kind of tree.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    series: &'static str,
    /// The name of the prediction in the legend.
    predicted: &'static str,
    merges: Merges,
    tables: TableSize,
    values: ValuePlace,
}

#[derive(Clone, Copy, PartialEq)]
enum Merges {
    /// A level as a whole into the next.
    Level,
    /// One table of a level at a time.
    Table,
    /// Runs of a level into one of the next.
    Tier,
}

#[derive(Clone, Copy, PartialEq)]
enum ValuePlace {
    Inline,
    Log,
}

/// How large tables are.
#[derive(Clone, Copy, PartialEq)]
enum TableSize {
    /// A level is one: merges take it as a whole.
    Whole,
    /// A quarter of what a flush brings.
    Quarter,
    /// A few dozen keys: 8 KiB at most.
    Small,
}

const KINDS: [Kind; 4] = [
    Kind {
        series: "leveling",
        predicted: "leveling, predicted",
        merges: Merges::Table,
        tables: TableSize::Quarter,
        values: ValuePlace::Inline,
    },
    Kind {
        series: "leveling, log",
        predicted: "leveling, log, predicted",
        merges: Merges::Level,
        tables: TableSize::Whole,
        values: ValuePlace::Log,
    },
    Kind {
        series: "leveling, log, small tables",
        predicted: "leveling, log, small tables, predicted",
        merges: Merges::Table,
        tables: TableSize::Small,
        values: ValuePlace::Log,
    },
    Kind {
        series: "tiering",
        predicted: "tiering, predicted",
        merges: Merges::Tier,
        tables: TableSize::Quarter,
        values: ValuePlace::Inline,
    },
];

/// How deep trees are: the deepest holds all data of the scale.
fn depths(scale: Scale) -> &'static [u32] {
    if scale == Scale::Tiny { &[2] } else { &[2, 3, 4] }
}

/// Entries of a flush: as many as leave the deepest tree the scale's data, and not so few that their keys fill no
/// memtable.
fn entries(scale: Scale) -> u64 {
    (scale.data_bytes() / u64::from(GROWTH).pow(4) / (KEY_BYTES + VALUE_BYTES) as u64).max(128)
}

impl Kind {
    fn is_tiering(self) -> bool {
        self.merges == Merges::Tier
    }

    fn setup(self, scale: Scale, levels: u32) -> Setup {
        let flush = entries(scale) * (KEY_BYTES + VALUE_BYTES) as u64;
        let table_bytes = match self.tables {
            TableSize::Whole => 1 << 40,
            TableSize::Quarter => flush / 4,
            TableSize::Small => (flush / 128).clamp(1 << 10, 8 << 10),
        };
        let placement = if self.values == ValuePlace::Log { "wisckey" } else { "inline" };
        let mut setup = Setup::bifold(scale, placement).named(self.series);
        let whole: [(&str, u64); 5] = [
            // Any commit is larger, so each has a memtable of its own.
            ("memtable_bytes", 4 << 10),
            ("memory_limit", (64 * flush).max(16 << 20)),
            ("log_bytes", 64 * flush),
            ("keyspace.table_bytes", table_bytes),
            ("keyspace.values.separate_from_bytes", 1),
        ];
        let tree: &[(&str, u64)] = if self.is_tiering() {
            &[
                ("tiered.growth", u64::from(GROWTH)),
                ("tiered.levels", u64::from(levels)),
                ("tiered.space_percent", SPACE_UNBOUNDED),
            ]
        } else {
            // With a small base all levels are there from the beginning; level 0 is the model's memory on its way.
            &[
                ("leveled.growth", u64::from(GROWTH)),
                ("leveled.levels", u64::from(levels) + 1),
                ("leveled.level0_runs", 1),
                ("leveled.base_bytes", 1 << 10),
            ]
        };
        for (name, value) in whole {
            setup = setup.set(format!("{name}={value}"));
        }
        for (name, value) in tree {
            setup = setup.set(format!("keyspace.compaction.{name}={value}"));
        }
        setup.set("workers=caller").set("durability=memory")
    }

    /// The tree of so many levels, filled.
    fn arm(self, scale: Scale, seed: u64, levels: u32) -> Arm {
        // A tier of the model's first level is a flush: one level fewer to grow.
        let depth = if self.is_tiering() { levels - 1 } else { levels };
        let entries = entries(scale);
        let keys = entries * u64::from(GROWTH).pow(depth);
        let batch = usize::try_from(entries).unwrap_or(usize::MAX);
        let plan = Plan { keys, batch, ..plan(scale.data_bytes(), VALUE_BYTES, seed) };
        let steps = [step(Workload::Load), settle(), step(Workload::Compact)];
        self.setup(scale, levels).arm_at(f64::from(levels), &plan, &steps)
    }

    /// D / Sₗ as measured at so many levels.
    fn measured(self, d: &Data<'_>, levels: f64) -> Option<f64> {
        let steps = ["load", LOADED, DOWN];
        let moved = MOVED.iter().map(|source| d.sum(self.series, Some(levels), &steps, source)).sum::<Option<f64>>()?;
        Some(moved / d.at(self.series, levels, "load", USER)?)
    }

    /// And as predicted with what was measured of α and, with a log, of the share of keys.
    fn predicted(self, d: &Data<'_>, levels: f64) -> Option<f64> {
        let alpha = d.at(self.series, levels, LOADED, ALPHA)?;
        let p =
            d.sum(self.series, Some(levels), &["load", LOADED], FLUSHED)? / d.at(self.series, levels, "load", USER)?;
        self.predict(levels, alpha, p).ok()
    }

    fn predict(self, levels: f64, alpha: f64, p: f64) -> Result<f64, OutOfRange> {
        let tree = Tree::new(Levels::new(levels as u32)?, Growth::new(f64::from(GROWTH))?)?;
        // The engine says more than 1 where tables at both ends of a merge overlap it only in part.
        let alpha = MergeAmplification::new(alpha.min(1.0))?;
        let (compaction, level0) = match self.merges {
            Merges::Level => (Compaction::Leveling(alpha), 2.0),
            Merges::Table => (Compaction::PerTable(alpha), 2.0),
            Merges::Tier => (Compaction::Tiering, 0.0),
        };
        let design = Design::new(compaction);
        Ok(match self.values {
            ValuePlace::Inline => design.amplification(tree) + level0,
            ValuePlace::Log => design.with_log(KeyShare::new(p.min(1.0))?).amplification(tree) + p * level0,
        })
    }

    /// Measured over predicted where they differ most.
    fn furthest(self, d: &Data<'_>) -> Option<f64> {
        let ratios = self.points(d, |levels| Some(self.measured(d, levels)? / self.predicted(d, levels)?));
        ratios.into_iter().map(|(_, ratio)| ratio).max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))
    }

    fn points(self, d: &Data<'_>, y: impl Fn(f64) -> Option<f64>) -> Vec<(f64, f64)> {
        d.over(self.series, LOADED, ALPHA).into_iter().filter_map(|(levels, _)| Some((levels, y(levels)?))).collect()
    }
}

/// Measured and predicted of the kinds that have values in such a place.
fn curves(d: &Data<'_>, values: ValuePlace) -> Vec<(String, Vec<LinePoint>)> {
    let line = |points: Vec<(f64, f64)>| points.into_iter().map(|(x, y)| (x, [y; 3])).collect();
    let both = |kind: Kind| {
        let measured = kind.points(d, |levels| kind.measured(d, levels));
        let predicted = kind.points(d, |levels| kind.predicted(d, levels));
        [(kind.series.to_owned(), line(measured)), (kind.predicted.to_owned(), line(predicted))]
    };
    KINDS.into_iter().filter(|kind| kind.values == values).flat_map(both).collect()
}

/// One kind's traffic over another one's, at as many levels, where it is the most.
fn most(d: &Data<'_>, a: Kind, b: Kind) -> Option<f64> {
    let ratios = a.points(d, |levels| Some(a.measured(d, levels)? / b.measured(d, levels)?));
    ratios.into_iter().map(|(_, ratio)| ratio).reduce(f64::max)
}

pub(super) fn f3(scale: Scale, seed: u64) -> Experiment {
    let arms = KINDS.iter().flat_map(|kind| depths(scale).iter().map(|&levels| kind.arm(scale, seed, levels)));
    let [inline, log, small, tiering] = KINDS;
    let close = |kind: Kind| {
        let what = format!("{}, measured over predicted, the largest difference", kind.series);
        Check::new(what, "close to the actual measurements", Rule::Between(0.85, 1.15), move |d| kind.furthest(d))
    };
    let deepest = depths(scale).last().map_or(0.0, |&levels| f64::from(levels));
    let mut checks: Vec<Check> = KINDS.map(close).into();
    checks.extend([
        Check::new(
            "leveling, traffic with a log over that without, largest ratio",
            "reduced significantly (the direction alone)",
            Rule::AtMost(1.0),
            move |d| most(d, log, inline),
        ),
        Check::new(
            "traffic of tiering over that of leveling, largest ratio",
            "decreased (the direction alone)",
            Rule::AtMost(1.0),
            move |d| most(d, tiering, inline),
        ),
        Check::new(
            "alpha with a log, small tables over whole levels",
            "0.25 (Kreon) for 0.8 (BlobDB)",
            Rule::Saving(1.0 - 0.25 / 0.8),
            move |d| d.ratio_at(small.series, log.series, deepest, LOADED, ALPHA),
        ),
    ]);
    Experiment {
        name: "vat-f3",
        paper: Paper::Vat,
        place: "§5, figure 3 and table 1",
        title: "What trees move, measured and predicted",
        note: "Bifold's own trees in place of RocksDB, Kreon, BlobDB and PebblesDB, with size ratio 4, by the \
               number of levels and not by size ratio. Bytes are those that the engine counts; the throughput of a \
               device (beta) is left out. The bounds of 15 % are those of `bifold vat validate`.",
        arms: arms.collect(),
        views: vec![
            View::curves("Inline values", "bytes moved for each byte", "levels on the device", |d| {
                curves(d, ValuePlace::Inline)
            }),
            View::curves("Values in a log", "bytes moved for each byte", "levels on the device", |d| {
                curves(d, ValuePlace::Log)
            }),
            View::lines(
                "Merge amplification, alpha",
                ALPHA,
                ("share of the lower level", 1.0),
                LOADED,
                "levels on the device",
                false,
            ),
        ],
        checks,
    }
}

#[cfg(test)]
mod tests {
    use bifold::options::Compaction as TreePolicy;
    use serde_json::json;

    use super::*;
    use crate::record::Run;

    #[test]
    fn all_of_every_tree_comes_down_and_is_counted() {
        for kind in KINDS {
            let arm = kind.arm(Scale::Tiny, 1, 2);
            let step = |name: &str, flushed: u64, merged: u64| {
                let written = json!({"flush": flushed, "compaction": merged, "value": 0});
                json!({
                    "step": name, "user_bytes_written": 100, "bytes_written": written,
                    "bytes_read": {"flush": 0, "compaction": merged},
                })
            };
            let steps = [("load", 100, 50), (LOADED, 10, 0), (DOWN, 0, 200)];
            let names: Vec<&str> = arm.spec.steps.iter().map(|step| step.name.as_str()).collect();
            assert_eq!(names, steps.map(|(name, ..)| name), "{}", kind.series);
            let run = Run::made_up(&arm.spec, steps.map(|(name, flushed, merged)| step(name, flushed, merged)).into());
            let (arms, runs) = ([arm], [run]);
            assert_eq!(kind.measured(&Data::new(&arms, &runs), 2.0), Some(6.1), "{}", kind.series);
        }
    }

    #[test]
    fn tiers_merge_only_when_they_are_full() {
        let mut tiered = 0;
        for kind in KINDS {
            let options = kind.arm(Scale::Tiny, 1, 2).spec.options().unwrap();
            if let TreePolicy::Tiered(of) = options.keyspace.compaction {
                assert_eq!((u64::from(of.space_percent), of.size_ratio, of.levels), (SPACE_UNBOUNDED, GROWTH, 2));
                tiered += 1;
            }
        }
        assert_eq!(tiered, 1);
    }
}
