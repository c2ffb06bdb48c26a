//! Work that nobody waits for: which, on which thread, and the jobs themselves.

pub(crate) mod alone;
#[cfg(test)]
pub(crate) mod bed;
pub(crate) mod compact;
pub(crate) mod filter;
pub(crate) mod flush;
pub(crate) mod gc;
pub(crate) mod left_out;
pub(crate) mod narrow;
pub(crate) mod outcome;
pub(crate) mod places;
pub(crate) mod prune;
pub(crate) mod reclaim;
pub(crate) mod rewrite;
pub(crate) mod schedule;
pub(crate) mod shared_flush;
pub(crate) mod space;
pub(crate) mod split;
pub(crate) mod telling;
pub(crate) mod waits;
pub(crate) mod work;
