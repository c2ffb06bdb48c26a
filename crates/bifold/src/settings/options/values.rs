//! How separated values are kept.

pub use bifold_values::{
    parts::{ordered_values::order::MergePolicy, victim::Victim},
    placements::{
        diffkv::options::DiffKvOptions as DiffKv,
        hashkv::options::{Cold, HashKvOptions as HashKv},
        novkv::options::NovKvOptions as NovKv,
        options::{CachedValues, ValueOptions as Values},
        unikv::{GcUnit, UniKvOptions as UniKv},
    },
};
