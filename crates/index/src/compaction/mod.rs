//! Compaction: which tables to rewrite, and the one loop that rewrites them.
//!
//! | file | what it is |
//! |---|---|
//! | [`run`] | the merge loop of flush, compaction and split |
//! | `cut` | where one output table ends and the next begins |

mod cut;
pub mod run;
