//! File names of a database directory.

use bifold_contract::FileId;

/// The manifest.
pub const MANIFEST: &str = "MANIFEST";

/// A manifest being written; renamed to [`MANIFEST`] when it is whole.
pub const MANIFEST_TEMPORARY: &str = "MANIFEST.tmp";

/// The file a process locks while it has the database open.
pub const LOCK: &str = "LOCK";

/// A file that is never read: it reserves space for when the disk is full.
pub const RESERVE: &str = "RESERVE";

/// The largest number of a file. No database gets there: it would take a file each nanosecond for a century. What
/// says that a file has a larger one is damaged or not ours, so numbers behind those that are there never run out.
pub const NUMBER_MAX: FileId = (1 << 62) - 1;

/// The kind of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `000012.log`: a commit log.
    Log(FileId),
    /// `000013.tbl`: a sorted table.
    Table(FileId),
    /// `000014.val`: a value file.
    Value(FileId),
    /// `000015.large`: a large value.
    Large(FileId),
    /// `000016.ingest`: the entries of an ingest, for the change feed.
    Ingest(FileId),
    /// The manifest.
    Manifest,
    /// A file that a crash left unfinished.
    Temporary,
    /// The lock file.
    Lock,
    /// Space reserved for when the disk is full.
    Reserve,
    /// Not ours.
    Unknown,
}

/// The name of a commit log.
#[must_use]
pub fn log(id: FileId) -> String {
    format!("{id:06}.log")
}

/// The name of a table.
#[must_use]
pub fn table(id: FileId) -> String {
    format!("{id:06}.tbl")
}

/// The name of a value file.
#[must_use]
pub fn value(id: FileId) -> String {
    format!("{id:06}.val")
}

/// The name of the file of a large value.
#[must_use]
pub fn large(id: FileId) -> String {
    format!("{id:06}.large")
}

/// The name of the file with an ingest's entries for the change feed.
#[must_use]
pub fn ingest(id: FileId) -> String {
    format!("{id:06}.ingest")
}

/// The second name that a log or a value file has for a moment while recovery makes its name durable.
#[must_use]
pub fn again(name: &str) -> String {
    format!("{name}{AGAIN}")
}

/// The name of the log or value file that has this second name.
#[must_use]
pub fn named_again(name: &str) -> Option<&str> {
    name.strip_suffix(AGAIN).filter(|known| matches!(parse(known), FileKind::Log(_) | FileKind::Value(_)))
}

const AGAIN: &str = ".again";

/// The ending of a copy of a log or a value file that is being made: it takes the place of a file that has other
/// names, too.
const UNFINISHED_COPY: &str = "own";

/// The kind of the file called `name`. Only the form that [`log`], [`table`], [`value`], [`large`] and [`ingest`]
/// write is recognised.
#[must_use]
pub fn parse(name: &str) -> FileKind {
    match name {
        MANIFEST => return FileKind::Manifest,
        MANIFEST_TEMPORARY => return FileKind::Temporary,
        LOCK => return FileKind::Lock,
        RESERVE => return FileKind::Reserve,
        _ => {}
    }
    let Some((stem, extension)) = name.rsplit_once('.') else { return FileKind::Unknown };
    if extension == UNFINISHED_COPY && matches!(parse(stem), FileKind::Log(_) | FileKind::Value(_)) {
        return FileKind::Temporary;
    }
    match (stem.parse().ok().filter(|&id| id <= NUMBER_MAX), extension) {
        (Some(id), "log") if log(id) == name => FileKind::Log(id),
        (Some(id), "tbl") if table(id) == name => FileKind::Table(id),
        (Some(id), "val") if value(id) == name => FileKind::Value(id),
        (Some(id), "large") if large(id) == name => FileKind::Large(id),
        (Some(id), "ingest") if ingest(id) == name => FileKind::Ingest(id),
        _ => FileKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised_again() {
        for id in [0, 7, 999_999, 1_000_000, NUMBER_MAX] {
            assert_eq!(parse(&log(id)), FileKind::Log(id));
            assert_eq!(parse(&table(id)), FileKind::Table(id));
            assert_eq!(parse(&value(id)), FileKind::Value(id));
            assert_eq!(parse(&large(id)), FileKind::Large(id));
            assert_eq!(parse(&ingest(id)), FileKind::Ingest(id));
        }
        assert_eq!(log(12), "000012.log");
    }

    #[test]
    fn logs_and_value_files_have_a_second_name_for_a_moment() {
        for name in [log(12), value(12)] {
            assert_eq!((named_again(&again(&name)), parse(&again(&name))), (Some(&*name), FileKind::Unknown));
            assert_eq!(named_again(&name), None);
        }
        for name in [table(12), MANIFEST.into(), "notes".into()] {
            assert_eq!(named_again(&again(&name)), None, "{name}");
        }
    }

    #[test]
    fn copies_left_by_a_crash_are_temporary() {
        for name in [log(12), value(12)] {
            assert_eq!(parse(&format!("{name}.{UNFINISHED_COPY}")), FileKind::Temporary);
        }
        for name in [table(12), MANIFEST.into(), "notes".into(), value(12) + ".own"] {
            assert_eq!(parse(&format!("{name}.{UNFINISHED_COPY}")), FileKind::Unknown, "{name}");
        }
    }

    #[test]
    fn other_names_are_not_ours() {
        for name in ["", "12.log", "+00012.log", "0000012.log", "000012.sst", "notes.txt", "manifest", "000012.log.bak"]
        {
            assert_eq!(parse(name), FileKind::Unknown, "{name}");
        }
        for id in [NUMBER_MAX + 1, FileId::MAX - 1, FileId::MAX] {
            assert_eq!(parse(&log(id)), FileKind::Unknown, "{id}: no number would be left for the next file");
            assert_eq!((parse(&table(id)), parse(&value(id))), (FileKind::Unknown, FileKind::Unknown));
        }
    }
}
