//! Hash maps that are the same in every run: what is done in their order can be repeated.

use std::hash::{BuildHasherDefault, DefaultHasher};

/// A hash map without a random seed.
pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
