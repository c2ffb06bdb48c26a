//! What an open database has done, counted where it happens. Statistics are made of it.

pub(crate) mod counters;
pub(crate) mod histogram;
pub(crate) mod slow;
