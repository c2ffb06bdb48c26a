//! What a database is while it is open: its trees with their options, snapshots, the work that is running, whether
//! writes are taken. Only [`install`](crate::install) changes trees.

pub(crate) mod changing;
pub(crate) mod expires;
pub(crate) mod files;
pub(crate) mod filter;
pub(crate) mod habits;
pub(crate) mod health;
pub(crate) mod left_out;
pub(crate) mod numbers;
pub(crate) mod op;
pub(crate) mod overwrites;
pub(crate) mod pieces;
pub(crate) mod places;
pub(crate) mod presets;
pub(crate) mod shared_flush;
pub(crate) mod snapshot;
pub(crate) mod telling;
pub(crate) mod time;
pub(crate) mod tree;
pub(crate) mod work;
