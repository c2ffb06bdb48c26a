//! Work that nobody waits for: the jobs themselves.

pub(crate) mod alone;
#[cfg(test)]
pub(crate) mod bed;
pub(crate) mod compact;
pub(crate) mod filter;
pub(crate) mod flush;
pub(crate) mod gc;
pub(crate) mod narrow;
pub(crate) mod outcome;
pub(crate) mod prune;
pub(crate) mod reclaim;
pub(crate) mod rewrite;
pub(crate) mod split;
