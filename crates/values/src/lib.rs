//! Where values live in Bifold. This crate knows values and pointers, and nothing of the LSM-tree.
//!
//! | file | what it is |
//! |---|---|
//! | [`placements`] | one file per design: the answers a placement gives to the engine |
#![forbid(unsafe_code)]

pub mod placements;
