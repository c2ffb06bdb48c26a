//! The source of the demo's data.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use crate::{
    failure::{Failure, Result},
    formats::{Format, lines, tree},
};

/// The most bytes to import: a debug build on two slow cores takes less than a minute for them.
const BYTES_MAX: u64 = 200 << 20;

/// The most files or lines to import.
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
    /// The given source, or the current repository or directory; never the new database.
    pub fn find(from: Option<&Path>, db: &Path) -> Result<Self> {
        let path = match from {
            Some(path) => path.to_owned(),
            None => here()?,
        };
        let meta = fs::metadata(&path).map_err(|e| Failure::file("open", &path, &e))?;
        if !meta.is_dir() {
            let extension = path.extension().and_then(|extension| extension.to_str());
            return Ok(match extension {
                Some("tsv") => Self::Entries(path, Format::Tsv, meta.len()),
                Some("jsonl" | "ndjson") => Self::Entries(path, Format::Jsonl, meta.len()),
                _ => Self::Lines(path, meta.len()),
            });
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
            Self::Entries(path, format, _) => {
                let file = File::open(path).map_err(|e| Failure::file("open", path, &e))?;
                lines::read(file, path, *format, |entry, _| each(entry.key, entry.value))
            }
            Self::Lines(path, _) => each_line(path, each),
        }
    }
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
