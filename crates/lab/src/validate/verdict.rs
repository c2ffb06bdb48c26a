//! Compares measurement and prediction.
//!
//! ```text
//! measured    (flushes + compactions + value log, read and written, until all data are in the last level) / user bytes
//! predicted   A in place, p·A + 1 with a log, where A is
//!             2·l − 1 + α·l·(f − 1) + 2        leveling, whole levels     the 2 is level 0, which is
//!             2·l − 1 + 2·α·l·f + 2            leveling, by table         written and read on its way
//!             2·l − 1                          tiering
//! ```
//!
//! α is what the engine measured, at most 1; p is the bytes in tables per byte put in.

use bifold_vat::{Compaction, Design, Growth, KeyShare, Levels, MergeAmplification, OutOfRange, Tree};
use serde::Serialize;

use super::{
    config::{Config, Load, MergePolicy, Place, Tables},
    run::{RunOutcome, Traffic},
};
use crate::{Failure, Result};

/// The largest accepted difference.
const TOLERANCE: f64 = 0.15;

/// A larger share of a table that is not keys and values is reported.
const OVERHEAD: f64 = 0.03;

/// A tree that was run.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The tree.
    #[serde(flatten)]
    pub config: Config,
    /// The largest size of its tables.
    pub table_bytes: u64,
    /// The number of flushes that filled it.
    pub flushes: u64,
    /// Mean over all merges, as the engine reports it.
    pub alpha: f64,
    /// p with values in a log: bytes of flushed tables over bytes put in.
    pub key_share: Option<f64>,
    /// The measured amplification.
    pub measured: f64,
    /// The predicted amplification.
    pub predicted: f64,
    /// Measured over predicted.
    pub ratio: f64,
    /// Whether the two differ by at most 15 %.
    pub within: bool,
    /// Amplification of the last quarter of the data, when levels are about as large as at the end.
    pub last_quarter: f64,
    /// The components of `measured`.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Compactions that merged tables.
    pub merges: u64,
    /// Compactions that only moved tables.
    pub moves: u64,
    /// Bytes of each level at the end of the load, level 0 first.
    pub level_bytes: Vec<u64>,
    /// What the model leaves out, for a row that is not within the tolerance.
    pub causes: Vec<String>,
}

/// Compares the result of a tree with the prediction.
///
/// # Errors
/// [`Failure::Plan`] for figures that the model does not allow.
pub fn row(config: Config, load: &Load, outcome: RunOutcome) -> Result<Row> {
    let RunOutcome { whole, last_quarter, merges, moves, alpha, level_bytes, until_last_level, .. } = outcome;
    let key_share = match config.place {
        Place::Inline => None,
        Place::Log => Some((whole.flush_bytes_written as f64 / whole.user_bytes.max(1) as f64).min(1.0)),
    };
    let predicted = predicted(&config, alpha, key_share).map_err(|error| Failure::Plan(error.to_string()))?;
    let measured = until_last_level.amplification();
    let ratio = measured / predicted;
    let mut row = Row {
        config,
        table_bytes: config.table_bytes(load),
        flushes: config.flushes(),
        alpha,
        key_share,
        measured,
        predicted,
        ratio,
        within: is_within(ratio),
        last_quarter: last_quarter.amplification(),
        traffic: until_last_level,
        merges,
        moves,
        level_bytes,
        causes: Vec::new(),
    };
    if !row.within {
        row.causes = row.find_causes();
    }
    Ok(row)
}

fn is_within(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= TOLERANCE
}

/// The model's D/Sₗ, plus level 0 of leveling.
fn predicted(config: &Config, alpha: f64, key_share: Option<f64>) -> std::result::Result<f64, OutOfRange> {
    let tree = Tree::new(Levels::new(config.levels)?, Growth::new(f64::from(config.growth))?)?;
    // The engine reports more than 1 where tables at both ends of a merge overlap it only partly; the model has no
    // such tables.
    let alpha = MergeAmplification::new(alpha.min(1.0))?;
    let (compaction, level0) = match (config.shape, config.tables) {
        (MergePolicy::Leveling, Tables::Whole) => (Compaction::Leveling(alpha), 2.0),
        (MergePolicy::Leveling, Tables::Quarter | Tables::Small) => (Compaction::PerTable(alpha), 2.0),
        (MergePolicy::Tiering, _) => (Compaction::Tiering, 0.0),
    };
    let design = Design::new(compaction);
    Ok(match key_share {
        None => design.amplification(tree) + level0,
        Some(p) => design.with_log(KeyShare::new(p)?).amplification(tree) + p * level0,
    })
}

impl Row {
    /// For a curve.
    #[must_use]
    pub fn measured(&self) -> f64 {
        self.measured
    }

    /// For a curve.
    #[must_use]
    pub fn predicted(&self) -> f64 {
        self.predicted
    }

    /// The head of the table.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:<9} {:<7} {:<7} {:>6} {:>7}  {:>5} {:>5}  {:>8} {:>9} {:>5}",
            "merges", "values", "tables", "levels", "flushes", "alpha", "p", "measured", "predicted", "ratio"
        )
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let (shape, place, tables) = (self.config.shape.name(), self.config.place.name(), self.config.tables.name());
        let p = self.key_share.map_or_else(|| "-".to_owned(), |p| format!("{p:.3}"));
        let Self { flushes, alpha, measured, predicted, ratio, .. } = self;
        let levels = self.config.levels;
        format!(
            "{shape:<9} {place:<7} {tables:<7} {levels:>6} {flushes:>7}  {alpha:>5.2} {p:>5}  {measured:>8.2} \
            {predicted:>9.2} {ratio:>5.2}"
        )
    }

    /// What the model leaves out, as far as the figures of this tree show it.
    fn find_causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        if self.config.shape == MergePolicy::Tiering {
            causes.extend(self.merges_of_everything());
        } else {
            causes.extend(self.growing());
        }
        if self.alpha > 1.0 {
            causes.push(format!("alpha is {:.2}, and the model takes at most 1", self.alpha));
        }
        let overhead = self.traffic.flush_bytes_written as f64 / self.traffic.user_bytes.max(1) as f64 - 1.0;
        if overhead > OVERHEAD {
            let percent = overhead * 100.0;
            causes.push(format!(
                "tables are {percent:.0} % larger than the keys and values in them: blocks, index, filter"
            ));
        }
        if causes.is_empty() {
            causes.push("none that shows in the figures".to_owned());
        }
        causes
    }

    /// The model's tiering merges a level when it is full and at no other time, and all data end up in one run.
    fn merges_of_everything(&self) -> Option<String> {
        let growth = u64::from(self.config.growth);
        let pure: u64 = (1..self.config.levels).map(|depth| self.flushes / growth.saturating_pow(depth)).sum();
        let filled = self.level_bytes.iter().filter(|&&bytes| bytes > 0).count();
        (self.merges > pure || filled > 1).then(|| {
            format!(
                "{} merges and data in {} at the end, where full levels make {pure} merges and one run: to bound \
                space, the engine also merges everything when newer runs have twice the bytes of the oldest",
                self.merges,
                if filled == 1 { "one level".to_owned() } else { format!("{filled} levels") }
            )
        })
    }

    /// The model's levels are nearly full at all times.
    fn growing(&self) -> Option<String> {
        let ratio = self.last_quarter / self.predicted;
        let then = if is_within(ratio) { "within 15 %" } else { "not within 15 % either" };
        (self.ratio < 1.0 && self.last_quarter > self.measured).then(|| {
            format!(
                "levels grow with the data and were smaller than the model's for most of the load; its last quarter \
                cost {:.2}, a ratio of {ratio:.2}: {then}",
                self.last_quarter
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(shape: MergePolicy, place: Place) -> Config {
        Config { shape, place, tables: Tables::Quarter, levels: 3, growth: 4 }
    }

    const LOAD: Load = Load { entries: 100, key_bytes: 24, value_bytes: 1000, seed: 1 };

    /// 2·3 − 1 + 2·0.5·3·4 = 17 for leveling and 5 for tiering.
    #[test]
    fn predictions_are_those_of_the_model_and_level_0() {
        for (shape, place, expected) in [
            (MergePolicy::Leveling, Place::Inline, 19.0),
            (MergePolicy::Tiering, Place::Inline, 5.0),
            (MergePolicy::Leveling, Place::Log, 0.1 * 19.0 + 1.0),
            (MergePolicy::Tiering, Place::Log, 0.1 * 5.0 + 1.0),
        ] {
            let p = (place == Place::Log).then_some(0.1);
            let predicted = predicted(&config(shape, place), 0.5, p).unwrap();
            assert!((predicted - expected).abs() < 1e-12, "{shape:?} {place:?}: {predicted}");
        }
        // More than the model accepts counts as 1.
        assert!(predicted(&config(MergePolicy::Leveling, Place::Inline), 1.3, None).is_ok());
    }

    fn outcome(amplification: u64, merges: u64) -> RunOutcome {
        let traffic = Traffic {
            user_bytes: 1000,
            flush_bytes_written: 1000,
            compaction_bytes_read: (amplification - 1) * 1000,
            ..Traffic::default()
        };
        RunOutcome {
            whole: traffic,
            last_quarter: traffic,
            until_last_level: traffic,
            merges,
            moves: 0,
            alpha: 0.5,
            level_bytes: vec![0, 1],
        }
    }

    #[test]
    fn rows_that_are_not_within_the_tolerance_have_a_cause() {
        let tiering = config(MergePolicy::Tiering, Place::Inline);
        let pure = row(tiering, &LOAD, outcome(5, 5)).unwrap();
        assert!(pure.within && pure.causes.is_empty(), "{pure:?}");
        // 16 flushes make 4 merges into level 1 and one into level 2.
        let bounded = row(tiering, &LOAD, outcome(9, 7)).unwrap();
        assert!(
            !bounded.within
                && bounded.causes[0].contains("7 merges and data in one level at the end, where full levels make 5"),
            "{bounded:?}"
        );
        let unknown = row(tiering, &LOAD, outcome(9, 5)).unwrap();
        assert_eq!(unknown.causes, ["none that shows in the figures"]);
        for amplification in [17, 19, 21] {
            assert!(
                row(config(MergePolicy::Leveling, Place::Inline), &LOAD, outcome(amplification, 5)).unwrap().within
            );
        }
    }
}
