//! Compaction: which tables to rewrite, and the loop that rewrites them.
//!
//! | file | what it is |
//! |---|---|
//! | [`leveled`] | policy: one run per level, few runs to read, little dead space |
//! | [`tiered`] | policy: several runs per level, few bytes written |
//! | [`two_layer`] | policy: an unsorted layer and a sorted one (UniKV) |
//! | [`by_partition`] | applies a policy to each partition of a tree |
//! | [`split`] | where a partition is split |
//! | `shape` | helpers for policies: which tables overlap and must go together |
//! | [`run`] | the merge loop of flush, compaction and the rewrite of a key range |
//! | `cut` | where one output table ends and the next begins |
//! | [`parts`] | where flushes cut level 0, so that it is merged down in parts |
//! | [`narrow`] | where to cut tables if the disk has no space to merge their part |
//!
//! A policy looks at the tree's shape and at what is running, and answers a plan; it changes nothing and remembers
//! nothing.

pub mod by_partition;
mod cut;
pub mod leveled;
pub mod narrow;
pub mod parts;
pub mod run;
mod shape;
pub mod split;
pub mod tiered;
pub mod two_layer;

#[cfg(test)]
mod model;
