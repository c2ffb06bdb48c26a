//! What a user can choose: for a database, and for each keyspace.
//!
//! Every option has a default that suits a server with a few hundred MiB to spare. Options come from code
//! ([`Options`] is plain data), from TOML ([`Options::from_toml`]) or from `key=value` words ([`Options::set`]).
//! Sizes in TOML are numbers of bytes or strings such as `"64MiB"`.

mod compaction;
mod keyspace;
mod own;
mod placement_kind;
mod reads;
mod text;
mod values;

pub use bifold_contract::option::{parse_duration, parse_size};
use bifold_contract::{
    Error, Result,
    option::{at_least, optional_size, size, within},
};
pub use bifold_format::compression::Compression;
use serde::{Deserialize, Serialize};

use self::text::{current_names, insert_at, overlay, rename_old};
pub use self::{
    compaction::{Compaction, HashIndex, Leveled, Tiered, TwoLayer},
    keyspace::KeyspaceOptions,
    own::PlacementName,
    placement_kind::PlacementKind,
    reads::Reads,
    text::Renamed,
    values::{CachedValues, Cold, DiffKv, GcUnit, HashKv, MergePolicy, NovKv, UniKv, Values, Victim},
};
use super::{events::Listener, merge::MergeOperators, placement::Registry, retain_changes::RetainChanges};

/// What an acknowledged commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing until the next `sync`, `flush` or `close`, or until the log's buffer fills.
    Memory,
    /// The end of the process, however abrupt. A power loss may take the last commits, never one from the middle. The
    /// default.
    #[default]
    Buffered,
    /// Power loss: the log is synced before the call returns; concurrent commits share one sync.
    Sync,
}

/// Whether the database may be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Reads and writes; excludes every other process but those with [`Access::Follow`]. The default.
    #[default]
    ReadWrite,
    /// Reads only; admits other readers, changes no file. Nobody can open the database for writing meanwhile. Logs that
    /// are not in tables yet are read into memory.
    ReadOnly,
    /// Reads only, while another process may be writing. Sees the state after one of its commits, and after
    /// [`Db::refresh`](crate::Db::refresh) that after a later one. Never makes the writer wait. It creates a file in
    /// the directory `readers`, by which the writer knows what it still needs.
    Follow,
}

impl Access {
    /// Whether this one writes. Nobody else does then.
    #[must_use]
    pub fn writes(self) -> bool {
        self == Self::ReadWrite
    }
}

/// What to do when there is no database at the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfMissing {
    /// Create one, with its directory. Where access is read-only, as [`IfMissing::Fail`]. The default.
    #[default]
    Create,
    /// Fail with [`Error::NotFound`].
    Fail,
}

/// Who runs flushes, compactions and GC. The default is `Threads(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workers {
    /// This many background threads, 1 to 256; 1 means 2. Flushes come first. Those of different keyspaces run at once,
    /// and idle threads write key ranges of a flush that another thread has begun. One thread never compacts or runs
    /// GC: it flushes and reclaims drained value files, in turns if both are due. If another thread becomes free after
    /// a flush, and compaction or GC is due and not running, it does that first. A further thread deletes files, and
    /// others call the [listener](Options::listener) and sync for [notices](crate::CommitNotice), if there are any.
    Threads(u32),
    /// The calling thread, at the end of the commit that makes a job due: slower, and entirely deterministic. If such a
    /// job poisons the database, the commit has succeeded, and later ones return [`Error::Poisoned`].
    Caller,
}

impl Default for Workers {
    fn default() -> Self {
        Self::Threads(2)
    }
}

/// Options of a database. [`Options::check`] refuses a value outside of its bounds, and so does opening a database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Whether the database may be changed. Default: [`Access::ReadWrite`].
    pub access: Access,
    /// What to do if there is no database. Default: [`IfMissing::Create`].
    pub if_missing: IfMissing,
    /// What a commit survives unless it says otherwise. Default: [`Durability::Buffered`].
    pub durability: Durability,
    /// One cap, in bytes, over memtables, block cache, filters and indexes (also those of separated values), and
    /// compaction buffers. At least 1 MiB. Default: 512 MiB.
    #[serde(with = "size")]
    pub memory_limit: u64,
    /// A memtable of this size, in bytes, is written as tables. At least 4 KiB. Default: 64 MiB. No more than 2/15 of
    /// `memory_limit` is used: three memtables may exist at once.
    #[serde(with = "size")]
    pub memtable_bytes: u64,
    /// Bytes for the block cache: at most `memory_limit`, of which it gets what the other uses leave. Unset, it gets
    /// all of that.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// How many files may be open at once, 2 to 1 048 576, but no more than the process's limit (`ulimit -n`). 0, the
    /// default: half of that limit. Other files are opened again when they are read. Files being written stay open and
    /// count, even beyond this number. If a process has several databases, each takes up to half: set a smaller number
    /// then.
    pub open_files_max: u32,
    /// How separated values and blocks of tables are read. Default: [`Reads::Auto`].
    pub reads: Reads,
    /// The most bytes of files that are read through mapped pages, if any are. Files beyond that are read by calls,
    /// until files that were not read recently have given their pages back to the system, which may keep them in its
    /// cache. Unset: half of the machine's memory. This is not part of `memory_limit`: these pages are the system's,
    /// which takes them back when it needs them.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub mapped_bytes_max: Option<u64>,
    /// Who runs flushes, compactions and GC. Default: two threads.
    pub workers: Workers,
    /// Bytes per second that compactions may write, at least 1: tables, and the values that they move. Flushes, and
    /// what GC copies without a compaction, are not limited. Unset: no limit.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub background_bytes_per_second: Option<u64>,
    /// If the logs from a memtable's first entry on exceed this, in bytes, the memtable is flushed before it is full: a
    /// keyspace with few writes must not keep the logs of all. Logs may exceed it by what is being flushed. At least 4
    /// KiB. Default: 512 MiB.
    #[serde(with = "size")]
    pub log_bytes: u64,
    /// Puts are refused with [`Error::Full`] if the disk has fewer bytes free than this plus what memtables still have
    /// to write: deletes, compactions and GC need these to free space. Unset: three quarters of what tables and value
    /// files take, at most 64 MiB or a sixteenth of that, whichever is more. With 0, puts continue until the disk is
    /// nearly full, and freeing space may fail for want of room.
    ///
    /// The file `RESERVE` holds space in case other programs fill the disk: a thirty-second of what tables and value
    /// files take, 4 to 64 MiB, or what a rewrite of the largest table or unit of values needs if that is more; but no
    /// more than a quarter of what they take, or than this option.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub free_bytes_min: Option<u64>,
    /// The most bytes that all open transactions and write caches together take: for writes, and for what transactions
    /// have read. The block cache gives them up meanwhile. Beyond them transactions get
    /// [`Error::TransactionTooLarge`], and write caches commit early. Unset: a sixteenth of `memory_limit`. Never more
    /// than `memory_limit` leaves for the block cache.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub transaction_bytes_max: Option<u64>,
    /// How long commits are kept for [`Db::changes`](crate::Db::changes). Logs stay that long. They then hold separated
    /// values, too, so these are written twice; each flush syncs the log. Unset: as when the database was last written
    /// to; in a new one no commits are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_changes: Option<RetainChanges>,
    /// Placements of others, for keyspaces with [`PlacementKind::Own`]. Opening fails if a keyspace has one that is not
    /// here. Not in TOML, where there is no code.
    #[serde(skip)]
    pub placements: Registry,
    /// Merge operators of the user, for keyspaces that have one. Opening fails if a keyspace has one that is not here,
    /// unless [`MergeOperators::or_unknown`] was called. Not in TOML, where there is no code.
    #[serde(skip)]
    pub merge_operators: MergeOperators,
    /// Is told what the database does. Default: nobody is. Not in TOML.
    #[serde(skip)]
    pub listener: Listener,
    /// Options of the keyspace "default". Unless they are the default ones, an existing keyspace gets them when it is
    /// opened: see [`Db::open_with`](crate::Db::open_with).
    pub keyspace: KeyspaceOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Access::default(),
            if_missing: IfMissing::default(),
            durability: Durability::default(),
            memory_limit: 512 << 20,
            memtable_bytes: 64 << 20,
            cache_bytes: None,
            open_files_max: 0,
            reads: Reads::default(),
            mapped_bytes_max: None,
            workers: Workers::default(),
            background_bytes_per_second: None,
            log_bytes: 512 << 20,
            free_bytes_min: None,
            transaction_bytes_max: None,
            retain_changes: None,
            placements: Registry::default(),
            merge_operators: MergeOperators::default(),
            listener: Listener::default(),
            keyspace: KeyspaceOptions::default(),
        }
    }
}

impl Options {
    /// Options written as TOML; those that are not mentioned have their defaults. Former names of options are read as
    /// well: [`Options::renamed`] says which.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the line for text that is not TOML, unknown options and unusable values.
    ///
    /// ```
    /// let options = bifold::Options::from_toml("memory_limit = \"1GiB\"\n[keyspace]\ncompression = \"lz4\"")?;
    /// assert_eq!(options.memory_limit, 1 << 30);
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self> {
        let read = match with_current_names(text) {
            // Without the lines of the text, which are those of another one now.
            Some(Ok((table, renamed))) if !renamed.is_empty() => {
                table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())
            }
            Some(Err(both)) => Err(both),
            _ => toml::from_str(text).map_err(|e| e.to_string()),
        };
        let options: Self = read.map_err(|e| Error::invalid("options", e))?;
        options.check()?;
        Ok(options)
    }

    /// The options that `text`, as for [`Options::from_toml`], gives by former names.
    #[must_use]
    pub fn renamed(text: &str) -> Vec<Renamed> {
        with_current_names(text).and_then(std::result::Result::ok).map(|(_, renamed)| renamed).unwrap_or_default()
    }

    /// The current name of the option in `name=value`, as for [`Options::set`], if `name` is a former one.
    #[must_use]
    pub fn renamed_word(key_value: &str) -> Option<Renamed> {
        let old = key_value.split('=').next().unwrap_or_default().trim();
        let new = current_names(old.strip_prefix("keyspace.")?)?;
        Some(Renamed { old: old.to_owned(), new: new.iter().map(|new| format!("keyspace.{new}")).collect() })
    }

    /// These options as TOML, without those that only code can give.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Changes the options that `text`, as for [`Options::from_toml`], names, and no others.
    ///
    /// # Errors
    /// As [`Options::from_toml`]; nothing is changed then.
    ///
    /// ```
    /// let mut options = bifold::Options { memtable_bytes: 1 << 20, ..bifold::Options::default() };
    /// options.set_toml("[keyspace]\ncompression = \"lz4\"")?;
    /// assert_eq!(options.memtable_bytes, 1 << 20);
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn set_toml(&mut self, text: &str) -> Result<()> {
        let invalid = |reason: String| Error::invalid("options", reason);
        let named = match with_current_names(text) {
            Some(Ok((named, _))) => named,
            // With the line.
            None => return Err(unreadable(text)),
            Some(Err(both)) => return Err(invalid(both)),
        };
        let mut tree = toml::Table::try_from(&*self).map_err(|e| invalid(e.to_string()))?;
        overlay(&mut tree, named);
        let Ok(changed) = tree.try_into::<Self>() else { return Err(unreadable(text)) };
        self.take(changed)
    }

    /// Takes over what text can say: all but what only code can give.
    fn take(&mut self, mut changed: Self) -> Result<()> {
        (changed.placements, changed.listener) = (self.placements.clone(), self.listener.clone());
        changed.merge_operators = self.merge_operators.clone();
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Changes one option given as `name=value`, nested names joined by dots: `memory_limit=256MiB`,
    /// `keyspace.compression=lz4`, `keyspace.compaction.leveled.size_ratio=8`. `keyspace.preset=unikv` stands for a
    /// placement and the tree it is meant for: see [`KeyspaceOptions::with_placement`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unknown names and unusable values; nothing is changed then.
    pub fn set(&mut self, key_value: &str) -> Result<()> {
        let invalid = |reason: String| Error::invalid(format!("option `{key_value}`"), reason);
        let (name, value) = key_value
            .split_once('=')
            .ok_or_else(|| invalid("write it as name=value, such as memory_limit=1GiB".into()))?;
        let preset = name.trim() == "keyspace.preset";
        let mut tree = toml::Table::try_from(&*self).map_err(|e| invalid(e.to_string()))?;
        match Self::renamed_word(key_value) {
            Some(renamed) => renamed.new.iter().for_each(|name| insert_at(&mut tree, name, value.trim())),
            None if preset => insert_at(&mut tree, "keyspace.placement", value.trim()),
            None => insert_at(&mut tree, name.trim(), value.trim()),
        }
        let mut changed: Self = tree.try_into().map_err(|e: toml::de::Error| invalid(e.message().to_owned()))?;
        if preset {
            changed.keyspace = self.keyspace.clone().with_placement(changed.keyspace.placement);
        }
        self.take(changed)
    }

    /// Checks that the options can be used together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option.
    pub fn check(&self) -> Result<()> {
        at_least("memory_limit", self.memory_limit, 1 << 20)?;
        at_least("memtable_bytes", self.memtable_bytes, 4 << 10)?;
        at_least("log_bytes", self.log_bytes, 4 << 10)?;
        if let Some(cache) = self.cache_bytes.filter(|&cache| cache > self.memory_limit) {
            return Err(Error::invalid(
                "option `cache_bytes`",
                format!("{cache} is more than memory_limit = {}, which covers the cache too", self.memory_limit),
            ));
        }
        if self.background_bytes_per_second == Some(0) {
            return Err(Error::invalid("option `background_bytes_per_second`", "0 would stop compactions forever"));
        }
        if self.open_files_max > 0 {
            // One that is read and one that is written.
            within("open_files_max", u64::from(self.open_files_max), 2, 1 << 20)?;
        }
        if let Workers::Threads(threads) = self.workers {
            within("workers.threads", u64::from(threads), 1, 256)?;
        }
        self.keyspace.check()
    }
}

/// Why options cannot be read from `text`, with the line.
fn unreadable(text: &str) -> Error {
    // The reader of options takes larger integers than a table of TOML can hold.
    let too_large = || Error::invalid("options", "a number is too large: write it with a unit, such as \"64GiB\"");
    Options::from_toml(text).err().unwrap_or_else(too_large)
}

/// TOML with current option names, and which options had old ones.
type Current = (toml::Table, Vec<Renamed>);

/// `text` with current option names; `None` if it is not TOML, an error in words if an option has two names in it.
fn with_current_names(text: &str) -> Option<std::result::Result<Current, String>> {
    let mut table: toml::Table = text.parse().ok()?;
    let renamed = table.get_mut("keyspace").and_then(toml::Value::as_table_mut).map(rename_old);
    Some(renamed.unwrap_or(Ok(Vec::new())).map(|renamed| (table, renamed)))
}

#[cfg(test)]
mod tests;
