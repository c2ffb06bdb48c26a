//! GC that looks up in the index which values of a file it still points at (HashKV §2.2; DiffKV §4.2, "GC for vLogs").
//!
//! ```text
//! sources ─▶ each value: does the index lead here? ─▶ copied ─▶ moves, each checked once more under the commit lock
//!                                                                └─▶ the sources are drained
//! ```

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, IoSource, Pointer, Result};
use bifold_format::value::ValueKind;

use super::{
    buffers::Held,
    scan::Scan,
    sync::LockExt,
    value_files::{COLLECTED, Copy, ValueFile, ValueFiles},
};
use crate::placement::{GcContext, Moved};

/// A relocation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// Bytes of the files that were read.
    pub read_bytes: u64,
    /// Of these, bytes that were not copied.
    pub freed_bytes: u64,
}

/// Moves what the index points at out of `sources`, into files of about `file_bytes`, and marks the sources as drained.
/// The sources and the copies are among the `busy` files meanwhile: another GC run would take copies that no move
/// leads to yet for garbage. Looks each value up in the index. `None` when the keyspace was dropped.
///
/// # Errors
/// I/O errors and corruption; a source in which something cannot be read is left out from then on.
pub fn relocate(
    files: &Arc<ValueFiles>,
    busy: &Mutex<Vec<FileId>>,
    (sources, file_bytes): (&[FileId], u64),
    gc: &dyn GcContext,
) -> Result<Option<Relocated>> {
    let mut copying = CopyRun::begin(files, busy, sources);
    let mut done = Relocated { read_bytes: 0, freed_bytes: 0 };
    for source in sources.iter().filter_map(|&id| files.get(id)) {
        done.read_bytes += source.len();
        let copied = copying.copy_file(&source, file_bytes, gc);
        copied.inspect_err(|error| {
            let _is_left_out = files.leave_out_source(source.id, error);
        })?;
    }
    files.finish_copies(std::mem::take(&mut copying.outputs))?;
    done.freed_bytes = done.read_bytes.saturating_sub(copying.copied_bytes);
    let mut refused = |moved: &Moved| {
        if let Some(output) = files.get(moved.to.file) {
            output.add_dead(u64::from(moved.to.len));
        }
    };
    let Some(last) = gc.relocate(&copying.moved, &mut refused)? else { return Ok(None) };
    files.mark_drained(sources.iter().copied(), last);
    Ok(Some(done))
}

/// Values copied out of a few files.
struct CopyRun<'a> {
    files: &'a ValueFiles,
    /// The files that GC is copying, in all of this keyspace.
    busy: &'a Mutex<Vec<FileId>>,
    /// The busy files of this run: sources and copies.
    claimed: Vec<FileId>,
    outputs: Vec<Copy>,
    copied_bytes: u64,
    moved: Vec<Moved>,
    /// The memory of the moves, keys included.
    held: Held,
}

impl<'a> CopyRun<'a> {
    fn begin(files: &'a Arc<ValueFiles>, busy: &'a Mutex<Vec<FileId>>, sources: &[FileId]) -> Self {
        let mut taken = busy.hold();
        debug_assert!(sources.iter().all(|id| !taken.contains(id)), "collected by another: {sources:?} of {taken:?}");
        taken.extend(sources);
        drop(taken);
        Self {
            files,
            busy,
            claimed: sources.to_vec(),
            outputs: Vec::new(),
            copied_bytes: 0,
            moved: Vec::new(),
            held: files.buffers().hold(0, 0),
        }
    }

    fn copy_file(&mut self, source: &ValueFile, file_bytes: u64, gc: &dyn GcContext) -> Result<()> {
        let mut scan = Scan::new(source, source.start(), source.len(), IoSource::Gc).within(self.files.buffers());
        while let Some((record, len)) = scan.sound()? {
            let from = Pointer { file: source.id, epoch: 0, offset: record.offset, len };
            if record.kind != ValueKind::Value || gc.look_up(record.key)? != Some(from) {
                continue;
            }
            if self.outputs.last().is_none_or(|output| output.end() >= file_bytes) {
                let output = self.files.begin_copy(COLLECTED, 0)?;
                self.busy.hold().push(output.id());
                self.claimed.push(output.id());
                self.outputs.push(output);
            }
            let Some(output) = self.outputs.last_mut() else { continue };
            let to = output.append(&record)?;
            self.copied_bytes += u64::from(to.len);
            self.held.grow_by(size_of::<Moved>() + record.key.len());
            self.moved.push(Moved { key: record.key.into(), from, to });
        }
        Ok(())
    }
}

impl Drop for CopyRun<'_> {
    fn drop(&mut self) {
        self.busy.hold().retain(|id| !self.claimed.contains(id));
    }
}
