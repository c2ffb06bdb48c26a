//! The VAT cost model of insert-path amplification, as pure functions: numbers in, numbers out.
//!
//! VAT (Variable Amplification-Throughput; Batsaras, Saloustros, Papagiannis, Fatourou, Bilas, 2020) counts the bytes
//! that a store of several levels reads and writes until a data set has reached its last level, and divides by the
//! speed at which it does so. The model is asymptotic: it has no updates, fills every level in turn, and leaves out
//! the commit log and GC.
//!
//! | file | what it is |
//! |---|---|
//! | [`input`] | the figures that go in, each checked |
//! | [`tree`] | levels, size ratio and size: `f^l = N` |
//! | [`design`] | the equations: amplification, cost ratio, space amplification |
//! | [`optimum`] | the best size ratio and the best number of levels |
//! | [`figures`] | the paper's projections, as curves |
//! | [`device`] | β of a device, from measurements |
//! | [`advise`] | which design fits a workload |
//!
//! | paper | here | unit |
//! |---|---|---|
//! | S₀ | the level in memory | bytes |
//! | Sₗ | the last level, which holds the whole data set | bytes |
//! | Sₗ / S₀, below N | [`SizeRatio`] | – |
//! | l | [`Levels`], those on the device | – |
//! | f | [`Growth`], the size of a level over that of the level above it | – |
//! | α | [`MergeAmplification`], the share of the lower level that a merge reads and writes | 0 to 1 |
//! | β | [`Throughput`], what the device gives at the store's unit over what it gives at best | above 0, to 1 |
//! | p = K / (K + V) | [`KeyShare`], keys over keys and values | above 0, to 1 |
//! | D | the bytes read and written on the device until all data are in the last level | bytes |
//! | D / Sₗ | [`Design::amplification`] | bytes per byte |
//! | T / Tₒₚₜ | [`Design::cost_ratio`] | – |
//!
//! The formulas are missing from our copy of the paper. The equations here are derived from its prose, and
//! `tests/all/golden.rs` checks them against every figure in the prose.
//!
//! ```
//! use bifold_vat::*;
//!
//! let tree = Tree::new(Levels::new(5)?, Growth::new(4.0)?)?;
//! let leveling = Compaction::Leveling(MergeAmplification::new(1.0)?);
//! let in_place = Design::new(leveling);
//! assert_eq!(in_place.amplification(tree), 24.0);
//!
//! let with_log = in_place.with_log(KeyShare::new(0.01)?);
//! assert_eq!(with_log.amplification(tree), 1.24);
//!
//! let best = in_place.optimum(tree.size_ratio());
//! assert_eq!(best.levels.get(), 5);
//! # Ok::<(), OutOfRange>(())
//! ```
#![forbid(unsafe_code)]

pub mod advise;
pub mod design;
pub mod device;
pub mod figures;
pub mod input;
mod lambert;
pub mod optimum;
pub mod tree;

pub use design::{Compaction, Design, Parts, ValuePlace};
pub use device::{BadProfile, Beta, Caching, Measured, Profile};
pub use input::{Growth, KeyShare, Levels, MergeAmplification, OutOfRange, SizeRatio, Throughput};
pub use optimum::Optimum;
pub use tree::Tree;
