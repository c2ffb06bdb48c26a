//! Where a separated value lives.

use crate::FileId;

/// The address of one value record. Encoded by `bifold-format` into the payload of a
/// [`Kind::Pointer`](crate::Kind::Pointer) entry.
///
/// NovKV (§III-A) calls this a handle: the file id may outlive the physical file, and `epoch` says which rewrite of
/// the file the offset belongs to. Placements without epochs leave it 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pointer {
    /// The value file.
    pub file: FileId,
    /// How many times the file had been rewritten when `offset` was valid.
    pub epoch: u32,
    /// Where the record starts, in bytes from the start of the file.
    pub offset: u64,
    /// Length of the record in bytes, including its header and key.
    pub len: u32,
}

/// What an entry with a large value says of the file that has it. Encoded by `bifold-format` into the payload of a
/// [`Kind::Large`](crate::Kind::Large) entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LargeRef {
    /// The file. No other entry names it.
    pub file: FileId,
    /// Bytes of the value.
    pub len: u64,
    /// A checksum over the checksums of all chunks.
    pub sum: u64,
}
