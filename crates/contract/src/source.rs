//! On whose behalf bytes are read and written.

/// The part of the engine on whose behalf a file is read or written. Statistics and rate limits are kept per source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum IoSource {
    /// The commit log.
    Log = 0,
    /// Writing a memtable to tables.
    Flush = 1,
    /// Merging tables.
    Compaction = 2,
    /// Values that commits write to value files.
    Value = 3,
    /// Garbage collection of value files.
    Gc = 4,
    /// The manifest.
    Manifest = 5,
    /// Point reads.
    Get = 6,
    /// Iterators.
    Scan = 7,
    /// Opening the database after a stop or a crash.
    Recovery = 8,
    /// Table footers, indexes and filters.
    Metadata = 9,
    /// Checkpoints, verification and other maintenance.
    Maintenance = 10,
}

impl IoSource {
    /// The number of sources.
    pub const COUNT: usize = 11;

    /// Every source, in numeric order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Log,
        Self::Flush,
        Self::Compaction,
        Self::Value,
        Self::Gc,
        Self::Manifest,
        Self::Get,
        Self::Scan,
        Self::Recovery,
        Self::Metadata,
        Self::Maintenance,
    ];

    /// The name used in statistics and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Value => "value",
            Self::Gc => "gc",
            Self::Manifest => "manifest",
            Self::Get => "get",
            Self::Scan => "scan",
            Self::Recovery => "recovery",
            Self::Metadata => "metadata",
            Self::Maintenance => "maintenance",
        }
    }
}
