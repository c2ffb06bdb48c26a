//! Where values live in Bifold. This crate knows values and pointers, and nothing of the LSM-tree.
//!
//! | directory or file | what is in it |
//! |---|---|
//! | [`placements`] | one file per design: the answers a placement gives to the engine |
//! | [`placement`] | the interface: what a placement decides |
//! | [`store`] | the values of one keyspace: what every placement does alike, done once |
//! | [`logs`] | which commits have happened: the walk over logs at an opening, below everything that has logs |
//! | [`parts`] | what designs are made of: value files, scans of them, groups of them, choice of victims |
#![forbid(unsafe_code)]

pub mod logs;
pub mod parts;
pub mod placement;
pub mod placements;
pub mod store;
