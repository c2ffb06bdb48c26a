//! Bring your own placement: the interface between the engine and the code that decides where values live.
//!
//! A [`Placement`] answers the engine's questions: where a value is written, what GC takes next, how much space there
//! is. The engine does the rest: syncs, the manifest, recovery, snapshots, deleting files. Bifold's own placements
//! implement the same trait. What only they need, such as sorted tables and forwarding files, is not in this module.
//!
//! 1. Implement [`Placement`]. Six methods are required; [`ValueFiles`] has the files, [`ValueLog`] appends,
//!    [`relocate`] moves what is live.
//! 2. Register it by a name in [`Options::placements`](crate::Options::placements), whenever the database is opened.
//! 3. Create a keyspace with [`bifold::PlacementKind::own`](crate::PlacementKind::own)`(name)`. The manifest records
//!    the name.
//! 4. Run the battery of the crate `bifold-conformance` on it.
//!
//! `docs/own-placement.md` has the invariants, `examples/own_placement.rs` a whole placement with GC. The least that a
//! placement can be is a log without GC:
//!
//! ```
//! use std::sync::Arc;
//!
//! use bifold::{
//!     Db, KeyspaceOptions, Options, Result, SeqNo,
//!     placement::{
//!         CountDead, Explained, GcClaim, GcJob, Placement, Pointer, Profile, Registry, RewriteJob, Rewriter,
//!         Settings, SpacePressure, ValueFiles, ValueLog, ValueSpace, WriteOp,
//!     },
//! };
//!
//! struct KeepAll {
//!     files: Arc<ValueFiles>,
//!     log: ValueLog,
//! }
//!
//! impl Placement for KeepAll {
//!     fn profile(&self) -> Profile {
//!         let separates_from = Some(1);
//!         Profile {
//!             name: "keep_all",
//!             separates_from,
//!             hears_of_short_values: false,
//!             separates_at_rewrite: false,
//!             learns_from_rewrites: None,
//!             finds_overwritten: false,
//!             reads_by_address: true,
//!             copies_percent: Profile::COPIES_PERCENT,
//!         }
//!     }
//!
//!     fn write(&self, op: WriteOp<'_>, seqno: SeqNo) -> Result<Option<Pointer>> {
//!         match op {
//!             WriteOp::Put { key, value } if !value.is_empty() => self.log.append(seqno, key, value).map(Some),
//!             _ => Ok(None),
//!         }
//!     }
//!
//!     fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
//!         Ok(Box::new(CountDead::default()))
//!     }
//!
//!     fn pick(&self, _pressure: &SpacePressure, _running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
//!         None
//!     }
//!
//!     fn space(&self) -> ValueSpace {
//!         let (files, total_bytes, drained_bytes) = self.files.sizes();
//!         let live_bytes = total_bytes - drained_bytes;
//!         ValueSpace { files, total_bytes, live_bytes, drained_bytes, left_out_bytes: self.files.left_out_bytes() }
//!     }
//!
//!     fn explain(&self, _pressure: &SpacePressure) -> Vec<Explained> {
//!         Vec::new()
//!     }
//!
//!     fn seal(&self, _files: &ValueFiles) {
//!         self.log.seal();
//!     }
//! }
//!
//! fn keep_all(files: &Arc<ValueFiles>, options: &Settings) -> Result<Box<dyn Placement>> {
//!     let log = ValueLog::new(Arc::clone(files), options);
//!     Ok(Box::new(KeepAll { files: Arc::clone(files), log }))
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("bifold-own-{}", std::process::id()));
//! let options = Options { placements: Registry::default().with("keep_all", keep_all)?, ..Options::default() };
//! let db = Db::open_with(&dir, options)?;
//! let placement = bifold::PlacementKind::own("keep_all")?;
//! let papers = db.keyspace("papers", KeyspaceOptions { placement, ..KeyspaceOptions::default() })?;
//! papers.put("a key", "its value, in a file of the placement")?;
//! assert_eq!(papers.get("a key")?.as_deref(), Some(&b"its value, in a file of the placement"[..]));
//! assert_eq!(db.stats().space.value_files, 1);
//! # drop((papers, db)); std::fs::remove_dir_all(dir).ok();
//! # Ok::<(), bifold::Error>(())
//! ```

use std::{collections::BTreeMap, fmt, sync::Arc};

use bifold_contract::{Error, Result};

use crate::settings::options::{self, KeyspaceOptions, PlacementName};

#[doc(inline)]
pub use bifold_contract::{Entry, FileId, IoSource, KeyspaceId, Kind, Pointer, SeqNo, Value, ValueEdit, ValueFileMeta};
#[doc(inline)]
pub use bifold_format::{
    compression::Compressor,
    pointer,
    value::{ValueKind, ValueRecord, encode_value},
};
#[doc(inline)]
pub use bifold_values::{
    parts::{
        buffers::Buffers,
        dead_counts::{CountDead, DeadCounts},
        garbage_estimate::GarbageEstimate,
        relocation::{Relocated, relocate},
        scan::{Met, Scan},
        stale_estimate::StaleEstimate,
        value_files::{
            APPENDED, COLD, COLLECTED, Copy as FileCopy, Extent, Finished, ORDERED, ReadBy, Stretches, ValueFile,
            ValueFiles,
        },
        value_log::ValueLog,
    },
    placement::{
        Commits, Explained, FilesHeld, GcClaim, GcContext, GcJob, GcOutcome, IndexView, Kept, LevelOrder, Located,
        Moved, NewestAbove, Order, Placement, Profile, Replayed, RewriteJob, Rewriter, RewrittenTables, SpacePressure,
        StaleReads, ValueSpace, WriteOp,
    },
    placements::Settings,
};

/// Opens a placement over the value files of one keyspace. [`Registry::with`] takes functions, too.
///
/// The files are those that the manifest records and those that commits began after it; during recovery their ends may
/// still be torn ([`Placement::recovered`] follows). The options of values are those of the keyspace, and may change
/// later: read them where you decide ([`Settings::now`]). Nothing may be written yet: the database may be open for
/// reading only.
pub type Factory = dyn Fn(&Arc<ValueFiles>, &Settings) -> Result<Box<dyn Placement>> + Send + Sync;

/// Placements of others, by name, for [`Options::placements`](crate::Options::placements). Cheap to clone.
#[derive(Clone, Default)]
pub struct Registry {
    factories: Arc<BTreeMap<PlacementName, Arc<Factory>>>,
}

impl Registry {
    /// The same with one more: keyspaces whose placement is called `name` are opened by `open`. The placement must call
    /// itself by that name ([`Profile::name`]).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `name` is not allowed ([`PlacementName`]) or is there already.
    pub fn with(
        self,
        name: &str,
        open: impl Fn(&Arc<ValueFiles>, &Settings) -> Result<Box<dyn Placement>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let key = PlacementName::new(name)?;
        let mut factories = (*self.factories).clone();
        if factories.insert(key, Arc::new(open)).is_some() {
            return Err(Error::invalid("placement", format!("`{name}` is registered twice")));
        }
        Ok(Self { factories: Arc::new(factories) })
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = PlacementName> {
        self.factories.keys().copied()
    }

    /// Checks that the placement of a keyspace is Bifold's or registered.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the keyspace and the placement.
    pub(crate) fn check(&self, keyspace: &str, options: &KeyspaceOptions) -> Result<()> {
        match options.placement {
            options::PlacementKind::Own(name) if !self.factories.contains_key(&name) => {
                let reason = format!(
                    "keyspace `{keyspace}` has placement `{name}`, which is none of Bifold's and is not registered: \
                     open the database with a program that has it in `Options::placements`"
                );
                Err(Error::invalid("option `placements`", reason))
            }
            _ => Ok(()),
        }
    }

    /// Opens the placement `name`, which [`Registry::check`] has found.
    ///
    /// # Errors
    /// Its own, and [`Error::InvalidArgument`] when it calls itself by another name.
    pub(crate) fn open(
        &self,
        name: PlacementName,
        files: &Arc<ValueFiles>,
        options: &Settings,
    ) -> Result<Box<dyn Placement>> {
        let Some(open) = self.factories.get(&name) else {
            return Err(Error::invalid("placement", format!("`{name}` is not registered")));
        };
        let placement = open(files, options)?;
        match placement.profile().name {
            same if same == name.as_str() => Ok(placement),
            other => {
                Err(Error::invalid("placement", format!("the placement registered as `{name}` calls itself `{other}`")))
            }
        }
    }
}

/// The names alone.
impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Whether both have the same functions by the same names.
impl PartialEq for Registry {
    fn eq(&self, other: &Self) -> bool {
        let is_theirs = |(name, open): (&PlacementName, &Arc<Factory>)| {
            other.factories.get(name).is_some_and(|theirs| Arc::ptr_eq(open, theirs))
        };
        self.factories.len() == other.factories.len() && self.factories.iter().all(is_theirs)
    }
}
