//! What a database is: its trees, the manifest that records them, and how opening finds them again.

pub(crate) mod changing;
pub(crate) mod configure;
pub(crate) mod expires;
pub(crate) mod follow;
pub(crate) mod health;
pub(crate) mod install;
pub(crate) mod manifest;
pub(crate) mod numbers;
pub(crate) mod presets;
pub(crate) mod recover;
pub(crate) mod snapshot;
pub(crate) mod time;
pub(crate) mod tree;
pub(crate) mod trees;
