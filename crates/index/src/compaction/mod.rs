//! Compaction: which tables to rewrite, and the one loop that rewrites them.
//!
//! | file | what it is |
//! |---|---|
//! | [`run`] | the merge loop of flush, compaction and split |
//! | [`leveled`], [`tiered`], [`two_layer`] | policies: pure, from the shape of the tree to the next job |
//! | `cut` | where one output table ends and the next begins |

mod cut;
pub mod leveled;
pub mod run;
pub mod tiered;
pub mod two_layer;
