//! One file per design.
//!
//! | placement | paper |
//! |---|---|
//! | [`inline`] | none: a plain LSM-tree |
//! | [`wisckey`] | WiscKey, FAST 2016, as HashKV §2 and §4 describe and compare it |
//! | [`hashkv`] | HashKV, ATC 2018 |
//! | [`novkv`] | NovKV, MSST 2020 |
//! | [`diffkv`] | DiffKV, ATC 2021 |
//! | [`unikv`] | UniKV, ICDE 2020 |
//! | [`streams`] | none: ours |

pub mod diffkv;
pub mod hashkv;
pub mod inline;
pub mod novkv;
pub mod options;
pub mod streams;
pub mod unikv;
pub mod wisckey;

#[cfg(test)]
pub(crate) use self::options::SMALL;
pub use self::options::{SEPARATE_FROM_BYTES, Settings, ValueOptions};
