//! Value files of a keyspace in memory, for tests.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::ValueEdit;
use bifold_io::{Dir, FileSystem, memory::MemoryFs};

use super::{FileAccess, StoreContext, ValueFiles};
use crate::parts::budget::Memory;

/// No files yet, of keyspace 1, in a new directory of `fs` with at most so many open files.
pub fn value_files(fs: &MemoryFs, open_files_max: usize) -> ValueFiles {
    value_files_on(Arc::new(fs.clone()), open_files_max)
}

/// The same on any file system.
pub fn value_files_on(fs: Arc<dyn FileSystem>, open_files_max: usize) -> ValueFiles {
    let dir = Dir::new(fs, Path::new("/db")).with_open_files_max(open_files_max);
    dir.create_dir().unwrap();
    let next = AtomicU64::new(1);
    let context = StoreContext {
        dir,
        keyspace: 1,
        new_file: Arc::new(move || next.fetch_add(1, Relaxed)),
        access: FileAccess::Write,
        memory: Memory::new(1 << 20, 1 << 20),
        unsynced: Arc::default(),
    };
    ValueFiles::open(context, &ValueEdit::default(), &[]).unwrap()
}
