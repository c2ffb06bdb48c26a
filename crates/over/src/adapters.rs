//! Foreign engines as indexes: each is a feature of this crate.

#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
