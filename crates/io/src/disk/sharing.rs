//! Lets those who use a directory read what this process has made in it: it may run as another user, or with a mask
//! that makes new files private.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::Path,
};

use bifold_contract::planted;
use rustix::fs::{Dir as Entries, DirEntry, OFlags};

/// The permissions in a mode.
const MODE: u32 = 0o7777;

/// Gives `path` the permissions that the directory `dir` gives to its group and to others, an empty file only those to
/// read. A directory that has just been made is given to the owner and the group of `dir`, where this process may do
/// that. What then belongs to another user or group can be read by everybody: whoever may not enter `dir` does not
/// reach it.
///
/// # Errors
/// The system's.
pub(super) fn share(dir: &Path, path: &Path) -> io::Result<()> {
    if planted!("pins_stay_private") {
        return Ok(());
    }
    let users = fs::metadata(dir)?;
    // By an open file, and never through a link: another user who may write to `dir` could have put something else in
    // its place, and this process may be allowed to change everything.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let made = file.metadata()?;
    if made.is_file() && made.len() > 0 {
        // Not the one that was made.
        return Ok(());
    }
    let (read, shared) = if made.is_dir() { (0o055, 0o077) } else { (0o044, 0o044) };
    let is_theirs = (made.uid(), made.gid()) == (users.uid(), users.gid())
        || (is_empty_dir(&file) && fchown(&file, Some(users.uid()), Some(users.gid())).is_ok());
    let mode = (made.mode() & MODE) | (users.mode() & shared) | if is_theirs { 0 } else { read };
    file.set_permissions(Permissions::from_mode(mode))
}

/// Whether this is a directory with nothing in it, so that its owner makes no difference.
fn is_empty_dir(file: &File) -> bool {
    let is_itself =
        |entry: rustix::io::Result<DirEntry>| entry.is_ok_and(|entry| [c".", c".."].contains(&entry.file_name()));
    Entries::read_from(file).is_ok_and(|mut entries| entries.all(is_itself))
}
