//! How separated values are kept.

pub use bifold_values::{
    parts::victim::Victim,
    placements::{
        diffkv::{options::DiffKvOptions as DiffKv, order::MergePolicy},
        hashkv::options::{Cold, HashKvOptions as HashKv},
        novkv::options::NovKvOptions as NovKv,
        options::{CachedValues, ValueOptions as Values},
        unikv::UniKvOptions as UniKv,
    },
};
