//! The only path of writes: values to their files, the record to the log, the entries to the newest layer. Moves of GC
//! are commits of new addresses.

use std::sync::atomic::Ordering::{Relaxed, Release};

use bifold_contract::{Error, Result, SeqNo, planted};
use bifold_values::placement::{Moved, WriteOp};

use crate::{
    batch::Batch,
    core::{Core, Signal, hold},
    index::{Entry, ForeignIndex},
    log::Log,
    options::Workers,
};

/// The largest commit, in bytes: what one record of the log can hold, with a margin.
const COMMIT_BYTES_MAX: u64 = (2 << 30) - (1 << 20);

impl<I: ForeignIndex> Core<I> {
    /// Commits a batch. It survives the end of the process, and with [`Core::sync`] a power loss.
    pub fn commit(&self, batch: &Batch) -> Result<()> {
        self.commit_within(batch, COMMIT_BYTES_MAX)
    }

    /// Commits a batch of at most so many bytes. A larger one is refused before anything is written: once a commit has
    /// failed, nobody knows how much of it is in the files.
    fn commit_within(&self, batch: &Batch, most: u64) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let bytes = batch.bytes();
        if bytes > most {
            return Err(Error::invalid("batch", format!("{bytes} bytes are too many for one commit; split it")));
        }
        self.health.well()?;
        self.wait_for_room()?;
        // Under the lock: the next commit must not append behind a part of this one.
        let has_filled = {
            let mut log = hold(&self.log);
            self.health.guard("a commit", || self.commit_batch(&mut log, batch))?
        };
        self.note_written(batch, has_filled)
    }

    /// Commits a batch, by who holds the commit lock. Returns whether it has filled the newest layer, or the logs.
    fn commit_batch(&self, log: &mut Log, batch: &Batch) -> Result<bool> {
        self.health.well()?;
        let filled_before = log.bytes() / self.options.log_bytes;
        let mut entries = Vec::with_capacity(batch.len());
        for (seqno, op) in (log.next()..).zip(batch.ops()) {
            entries.push(self.health.watch(self.separate(op, seqno))?);
        }
        self.commit_held(log, entries)?;
        let is_full = self.layers.newest().bytes() >= self.options.layer_bytes;
        if is_full {
            self.seal_held(log)?;
        }
        // Deletes of a few keys, and empty values, fill neither layers nor value files. Whoever works looks by itself
        // for what is left to do while logs are full.
        Ok(is_full || log.bytes() / self.options.log_bytes > filled_before)
    }

    /// Writes a value to its file if it is to be separated.
    fn separate<'b>(&self, op: WriteOp<'b>, seqno: SeqNo) -> Result<(&'b [u8], Entry)> {
        let address = self.values.write(op, seqno)?;
        Ok(match (op, address) {
            (WriteOp::Put { key, .. }, Some(address)) => (key, Entry::Separated(address)),
            (WriteOp::Put { key, value }, None) => (key, Entry::Inline(value.into())),
            (WriteOp::Delete { key } | WriteOp::DeleteRange { start: key, .. }, _) => (key, Entry::Deleted),
        })
    }

    /// Logs entries and makes them visible. Their values are in their files.
    fn commit_held<K: AsRef<[u8]>>(&self, log: &mut Log, entries: Vec<(K, Entry)>) -> Result<()> {
        let first = log.next();
        self.health.watch(log.commit(&entries))?;
        let newest_snapshot = self.snapshots.newest();
        let entries = entries.iter().map(|(key, entry)| (key.as_ref(), entry.clone()));
        self.layers.newest().insert(first, entries, newest_snapshot);
        self.visible.store(log.next() - 1, Release);
        Ok(())
    }

    /// Commits moves, by who holds the commit lock. The caller knows that their old addresses are the newest.
    pub fn commit_moves(&self, log: &mut Log, moves: &[&Moved]) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        let entries = moves.iter().map(|moved| (&moved.key[..], Entry::Separated(moved.to))).collect();
        self.commit_held(log, entries)?;
        self.counters.moved(moves);
        if self.layers.newest().bytes() >= self.options.layer_bytes {
            self.seal_held(log)?;
            self.signal.notify();
        }
        Ok(())
    }

    /// Commits those of these moves whose old address is still the newest of its key.
    pub fn commit_current(&self, log: &mut Log, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<()> {
        let mut current = Vec::with_capacity(moves.len());
        for moved in moves {
            let is_newest = self.newest(&moved.key)? == Some(Entry::Separated(moved.from));
            if is_newest || planted!("over_moves_unchecked") {
                current.push(moved);
            } else {
                refused(moved);
            }
        }
        self.counters.lookups.fetch_add(moves.len() as u64, Relaxed);
        self.commit_moves(log, &current)
    }

    /// Starts work that a commit has left. It is due at once if a layer or the logs have filled.
    fn note_written(&self, batch: &Batch, has_filled: bool) -> Result<()> {
        let bytes: usize =
            batch.ops().map(|op| if let WriteOp::Put { value, .. } = op { value.len() } else { 0 }).sum();
        let each = (self.settings.now().file_bytes / 16).clamp(1 << 10, 1 << 20);
        let before = self.counters.put_bytes.fetch_add(bytes as u64, Relaxed);
        let is_due = has_filled || before / each != (before + bytes as u64) / each;
        match self.options.workers {
            Workers::Thread if is_due => {
                self.note_space();
                self.signal.notify();
                Ok(())
            }
            Workers::Caller if is_due => self.work_all(),
            Workers::Thread | Workers::Caller => Ok(()),
        }
    }

    /// Waits while too many layers wait for the index, or value files are far beyond their target.
    fn wait_for_room(&self) -> Result<()> {
        if self.options.workers == Workers::Caller {
            return Ok(());
        }
        loop {
            let seen = self.signal.calls();
            if !self.is_behind() {
                return Ok(());
            }
            self.health.well()?;
            self.signal.wait(seen, Signal::PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::Bound, path::Path, sync::Arc};

    use bifold_io::{Env, memory::MemoryFs};

    use super::*;
    use crate::{
        index::{Changes, Entries, ForeignView},
        options::Options,
        recover,
    };

    /// An index that nothing gets to: layers are not full.
    struct Empty;

    impl ForeignIndex for Empty {
        type View<'a> = Self;

        fn name(&self) -> &'static str {
            "empty"
        }

        fn get(&self, _key: &[u8], _see: &mut dyn FnMut(&[u8])) -> Result<bool> {
            Ok(false)
        }

        fn write(&self, _changes: &Changes) -> Result<()> {
            Ok(())
        }

        fn snapshot(&self) -> Result<Self> {
            Ok(Self)
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    impl ForeignView for Empty {
        fn get(&self, _key: &[u8], _see: &mut dyn FnMut(&[u8])) -> Result<bool> {
            Ok(false)
        }

        fn scan<'s>(&'s self, _start: Bound<&[u8]>, _end: Bound<&[u8]>) -> Result<Entries<'s>> {
            Ok(Box::new(std::iter::empty()))
        }
    }

    #[test]
    fn a_batch_that_is_too_large_for_a_record_is_refused_and_ends_nothing() {
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let options = Options { workers: Workers::Caller, ..Options::default() };
        let core = recover::open(&env, Path::new("/db"), Empty, options).unwrap();
        let mut batch = Batch::new();
        batch.put(b"key", &[1; 1000]).unwrap();
        batch.delete(b"other").unwrap();
        let bytes = batch.bytes();
        assert!(bytes > 3 + 1000 + 5);
        assert!(matches!(core.commit_within(&batch, bytes - 1), Err(Error::InvalidArgument { .. })));
        assert!(core.get(b"key").unwrap().is_none());
        core.commit_within(&batch, bytes).unwrap();
        assert_eq!(core.get(b"key").unwrap().as_deref(), Some(&[1; 1000][..]));
    }
}
