//! Options of a store.

use bifold_contract::{
    Result,
    option::{at_least, within},
};
use bifold_values::placements::ValueOptions;

/// Where values live. It is decided when a store is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Grouped by the hash of their keys: GC asks the index nothing (HashKV). The default.
    #[default]
    HashKv,
    /// In the order of arrival: GC asks the index which values are live (WiscKey).
    WiscKey,
}

impl Placement {
    pub(crate) const ALL: [Self; 2] = [Self::HashKv, Self::WiscKey];

    /// Its name, as in Bifold's options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HashKv => "hashkv",
            Self::WiscKey => "wisckey",
        }
    }
}

/// Who hands layers to the index and collects garbage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// A thread of the store. The default.
    #[default]
    Thread,
    /// The callers of writes, at the end of the write that makes work due.
    Caller,
}

/// Options of a store. Those of values mean what they mean in Bifold; the space target is for value files alone, since
/// nobody knows what a foreign index takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Where values live. A store that exists must have the same.
    pub placement: Placement,
    /// How separated values are kept. Shorter ones are in the index.
    pub values: ValueOptions,
    /// A layer of entries goes to the index when it takes this many bytes of memory: 1 KiB to 1 TiB. Default: 16 MiB.
    /// Writers wait while three sealed layers wait for the index, so up to four are in memory.
    pub layer_bytes: u64,
    /// The index is synced when logs have more than this many bytes: at least 1 KiB. Default: 128 MiB. Opening a store
    /// replays up to about this much, and the commits in layers.
    pub log_bytes: u64,
    /// Memory for filters of groups (`hashkv`), in bytes: at least 64 KiB. Default: 32 MiB.
    pub filter_bytes: u64,
    /// Who does the work that writes leave.
    pub workers: Workers,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            placement: Placement::default(),
            values: ValueOptions::default(),
            layer_bytes: 16 << 20,
            log_bytes: 128 << 20,
            filter_bytes: 32 << 20,
            workers: Workers::default(),
        }
    }
}

impl Options {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) that names the option.
    pub fn check(&self) -> Result<()> {
        self.values.check("values")?;
        within("layer_bytes", self.layer_bytes, 1 << 10, 1 << 40)?;
        at_least("log_bytes", self.log_bytes, 1 << 10)?;
        at_least("filter_bytes", self.filter_bytes, 64 << 10)
    }
}
