//! The placements: one file each.

pub mod inline;
