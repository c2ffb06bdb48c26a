//! The formats of all Bifold files, without I/O.
//!
//! | file | what it is | page |
//! |---|---|---|
//! | [`bytes`] | integers and checked decoding | |
//! | [`checksum`] | checksums bound to a position in a file | |
//! | [`names`] | file names | |
//! | [`frame`] | records of append-only files; how a torn one differs from a damaged one | `docs/formats/log.md` |
//! | [`walk`] | walks the records of a file, whatever it contains | |
//! | [`log`] | the commit log | `docs/formats/log.md` |
//! | [`manifest`] | the manifest | `docs/formats/manifest.md` |
//! | [`mod@pointer`] | addresses of values | `docs/formats/pointer.md` |
//! | [`block`], [`filter`], [`table`], [`compression`] | sorted tables | `docs/formats/table.md` |
//! | [`value`] | separated values | `docs/formats/value.md` |
//! | [`sorted`] | drop-keys, and the index of a sorted table of values | `docs/formats/value.md` |
//! | [`forward`] | where values have moved | `docs/formats/value.md` |
//! | [`large`] | large values | `docs/formats/large.md` |
//! | [`backup`] | generations of a backup | `docs/formats/backup.md` |
//!
//! Little-endian throughout; sizes are checked against the bytes at hand before anything is allocated; no decoder
//! panics.
#![forbid(unsafe_code)]

pub mod backup;
pub mod block;
pub mod bytes;
pub mod checksum;
pub mod compression;
pub mod filter;
pub mod forward;
pub mod frame;
pub mod large;
pub mod log;
pub mod manifest;
pub mod names;
pub mod pointer;
pub mod sorted;
pub mod table;
pub mod value;
pub mod walk;
