//! Where values live in Bifold. This crate knows values and pointers, and nothing of the LSM-tree.
//!
//! | folder | what is in it |
//! |---|---|
//! | [`placements`] | one file per design: the answers a placement gives to the engine |
//! | [`parts`] | what designs are made of: value files, scans of them, groups of them, choice of victims |
#![forbid(unsafe_code)]

pub mod parts;
pub mod placements;
