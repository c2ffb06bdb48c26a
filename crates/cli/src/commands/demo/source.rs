//! The source of the demo's data.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use super::writer;
use crate::{
    failure::{Failure, Result},
    formats::{Format, escape, lines, tree},
};

/// The most bytes to import: a debug build on two slow cores takes less than a minute for them.
const BYTES_MAX: u64 = 200 << 20;

/// The most files, lines or entries to import.
const ENTRIES_MAX: usize = 50_000;

/// The entries to import.
pub enum Source {
    /// Files of a directory.
    Files(PathBuf, tree::Tree),
    /// A file of entries.
    Entries(PathBuf, Format, u64),
    /// A file of lines; a key is the file's name and the line's number.
    Lines(PathBuf, u64),
}

impl Source {
    /// The given source, or the current repository or directory; never the new database. What the demo would refuse
    /// later is found here, where there is no database yet.
    pub fn find(from: Option<&Path>, db: &Path) -> Result<Self> {
        let path = match from {
            Some(path) => path.to_owned(),
            None => here()?,
        };
        let meta = fs::metadata(&path).map_err(|e| Failure::file("open", &path, &e))?;
        if !meta.is_dir() {
            let extension = path.extension().and_then(|extension| extension.to_str());
            let source = match extension {
                Some("tsv") => Self::Entries(path, Format::Tsv, meta.len()),
                Some("jsonl" | "ndjson") => Self::Entries(path, Format::Jsonl, meta.len()),
                _ => Self::Lines(path, meta.len()),
            };
            // A pipe can be read only once.
            if meta.is_file() {
                source.each(|_, _| Ok(()))?;
            }
            return Ok(source);
        }
        // Git's files and build output are of no interest.
        let leave_out =
            |dir: &Path| dir == db || dir.file_name().is_some_and(|name| name == ".git" || name == "target");
        let unreadable = tree::Unreadable::Skip;
        let walk = tree::Walk { leave_out: &leave_out, unreadable, files_max: ENTRIES_MAX, bytes_max: BYTES_MAX };
        let tree = tree::list(&path, &walk)?;
        if tree.files.is_empty() {
            return Err(Failure::trouble(format!("{} holds no files: name another FILE or DIR", path.display())));
        }
        tree.files.iter().try_for_each(|file| check_key(&path, &file.key))?;
        Ok(Self::Files(path, tree))
    }

    /// Approximate number of bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Files(_, tree) => tree.bytes,
            Self::Entries(_, _, bytes) | Self::Lines(_, bytes) => (*bytes).min(BYTES_MAX),
        }
    }

    /// The noun for several of its entries.
    pub fn noun(&self) -> &'static str {
        match self {
            Self::Files(..) => "files",
            Self::Entries(..) => "entries",
            Self::Lines(..) => "lines",
        }
    }

    /// Where it is, and what is left out.
    pub fn describe(&self) -> String {
        match self {
            Self::Files(path, tree) => {
                let limited = if tree.is_limited { ", up to the limits of the demo" } else { "" };
                format!("the files in {}{limited}", path.display())
            }
            Self::Entries(path, ..) | Self::Lines(path, _) => format!("the {} of {}", self.noun(), path.display()),
        }
    }

    /// Calls `each` for every entry.
    pub fn each(&self, mut each: impl FnMut(Vec<u8>, Vec<u8>) -> Result<()>) -> Result<()> {
        match self {
            Self::Files(_, tree) => tree.files.iter().try_for_each(|file| each(file.key.clone(), tree::content(file)?)),
            Self::Entries(path, format, _) => each_entry(path, *format, each),
            Self::Lines(path, _) => each_line(path, each),
        }
    }
}

fn each_entry(path: &Path, format: Format, mut each: impl FnMut(Vec<u8>, Vec<u8>) -> Result<()>) -> Result<()> {
    let file = File::open(path).map_err(|e| Failure::file("open", path, &e))?;
    let (mut entries, mut bytes) = (0, 0);
    lines::read_while(file, path, format, |entry, _| {
        bytes += (entry.key.len() + entry.value.len()) as u64;
        if entries == ENTRIES_MAX || bytes > BYTES_MAX {
            return Ok(ControlFlow::Break(()));
        }
        entries += 1;
        check_key(path, &entry.key)?;
        each(entry.key, entry.value).map(|()| ControlFlow::Continue(()))
    })?;
    if entries == 0 {
        return Err(Failure::trouble(format!("{} has no entry to show: name another FILE or DIR", path.display())));
    }
    Ok(())
}

/// Refuses a key by which the demo knows what its writer has written.
fn check_key(from: &Path, key: &[u8]) -> Result<()> {
    if writer::number(key).is_none() {
        return Ok(());
    }
    let (from, key) = (from.display(), escape::escaped(key));
    let why = "the demo's own writer has such keys: name another FILE or DIR";
    Err(Failure::trouble(format!("{from} has key `{key}`, and {why}")))
}

fn each_line(path: &Path, mut each: impl FnMut(Vec<u8>, Vec<u8>) -> Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = File::open(path).map_err(|e| Failure::file("open", path, &e))?;
    let mut bytes = 0;
    for (number, line) in BufReader::new(file.take(BYTES_MAX + 1)).split(b'\n').take(ENTRIES_MAX).enumerate() {
        let line = line.map_err(|e| Failure::file("read", path, &e))?;
        bytes += line.len() as u64;
        if bytes > BYTES_MAX {
            break;
        }
        each(format!("{name}:{:08}", number + 1).into_bytes(), line)?;
    }
    if bytes == 0 {
        return Err(Failure::trouble(format!("{} is empty: name another FILE or DIR", path.display())));
    }
    Ok(())
}

/// The repository around the current directory, or the directory itself.
fn here() -> Result<PathBuf> {
    let current =
        std::env::current_dir().map_err(|e| Failure::trouble(format!("there is no current directory: {e}")))?;
    let root = current.ancestors().find(|dir| dir.join(".git").exists()).map(Path::to_owned);
    Ok(root.unwrap_or(current))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_file_of_entries_no_more_is_taken_than_of_one_of_lines() {
        let text: String = (0..ENTRIES_MAX + 10).map(|n| format!("{n}\tvalue\n")).collect();
        for extension in ["tsv", "txt"] {
            let path = std::env::temp_dir().join(format!("bifold-source-{}.{extension}", std::process::id()));
            fs::write(&path, &text).unwrap();
            let source = Source::find(Some(&path), Path::new("no.db")).unwrap();
            let mut taken = 0;
            let each = source.each(|_, _| {
                taken += 1;
                Ok(())
            });
            each.unwrap();
            assert_eq!(taken, ENTRIES_MAX, "{extension}");
            fs::remove_file(path).unwrap();
        }
    }
}
