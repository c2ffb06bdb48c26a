//! Bugs planted on purpose: tests of the tests.
//!
//! A build with `--cfg planted` contains every planted bug, inactive; the environment variable [`VARIABLE`] names the
//! one to activate. In any other build [`planted!`](crate::planted!) is the constant `false`, and the compiler removes
//! what it guards. `crates/sim/src/planted.rs` lists the bugs and the test that must catch each.

use std::{env, sync::OnceLock};

/// The environment variable that names the bug to activate.
pub const VARIABLE: &str = "BIFOLD_PLANTED";

/// Whether the bug with this name is active. For use by [`planted!`](crate::planted!) only.
#[must_use]
pub fn is_awake(name: &str) -> bool {
    static AWAKE: OnceLock<Option<String>> = OnceLock::new();
    AWAKE.get_or_init(|| env::var(VARIABLE).ok()).as_deref() == Some(name)
}

/// Whether the planted bug with this name is active: `false` unless built with `--cfg planted`.
///
/// ```
/// # fn sync() {}
/// if !bifold_contract::planted!("skip_table_sync") {
///     sync();
/// }
/// ```
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        cfg!(planted) && $crate::planted::is_awake($name)
    };
}
