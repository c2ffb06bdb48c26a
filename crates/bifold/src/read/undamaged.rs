//! Iterators that go on behind damaged blocks of tables.
//!
//! The cursors of tables note the blocks that they leave out (`index/src/table/left_out.rs`), each before the first key
//! that may have been in it is yielded. A key between the fences of such a block is left out, too: its newest version,
//! or its tombstone, may have been in the block, and what another table has of it may be older.

use std::{collections::VecDeque, fmt, path::PathBuf, sync::Arc};

use bifold_contract::{Error, Result, planted};
use bifold_index::table::left_out::{LeftOutBlock, LeftOutBlocks};

use super::{
    pair::Pair,
    scan::{Range, ScanState},
};

/// A block of a table that cannot be read: see [`Range::undamaged`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DamagedBlock {
    /// The table.
    pub file: PathBuf,
    /// Where the block starts, in bytes from the start of the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// No key below this was left out.
    pub first: Box<[u8]>,
    /// No key above this was left out.
    pub last: Box<[u8]>,
    /// Why it cannot be read.
    pub error: Error,
}

/// An iterator that leaves out what is damaged: see [`Range::undamaged`].
pub struct Undamaged {
    range: Range,
    noted: Arc<LeftOutBlocks>,
    /// Blocks that the next keys may have been in.
    around: Vec<DamagedBlock>,
    found: VecDeque<DamagedBlock>,
}

impl Range {
    /// The same entries, without those that damaged blocks of tables hold, in ascending order. Every key in
    /// [`DamagedBlock::first`]`..=`[`DamagedBlock::last`] of such a block is left out, whatever other tables have of
    /// it: that may be an older value, or one that was deleted. All other keys have the values that they would have
    /// without the damage.
    ///
    /// Separated values are read as always: if one is damaged, [`Pair::value`] says so, also where operands are above
    /// it. Damage of anything else is an error as always, and nothing follows it. It must be called before any entry is
    /// asked for; after that it yields an error.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-undamaged-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # for key in ["a", "b", "c"] { db.put(key, "value")?; }
    /// let mut entries = db.iter().undamaged();
    /// assert_eq!(entries.by_ref().count(), 3);
    /// assert!(entries.left_out().is_none());
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn undamaged(mut self) -> Undamaged {
        let noted = Arc::new(LeftOutBlocks::default());
        self.leaves_out = true;
        match &mut self.state {
            ScanState::Fresh(fresh) => fresh.left_out = Some(Arc::clone(&noted)),
            ScanState::Failed(_) | ScanState::Done => {}
            ScanState::Walking(_) | ScanState::Met(_) => {
                let reason = "an entry has been asked for already: call it on a new iterator";
                self.state = ScanState::Failed(Some(Error::invalid("Range::undamaged", reason)));
                (self.front, self.back) = Default::default();
            }
        }
        Undamaged { range: self, noted, around: Vec::new(), found: VecDeque::new() }
    }
}

impl Undamaged {
    /// A block that was left out, each once; `None` if no other has been met so far.
    pub fn left_out(&mut self) -> Option<DamagedBlock> {
        self.collect();
        self.found.pop_front()
    }

    /// Takes what the cursors have noted. Blocks behind the current key may be noted twice.
    fn collect(&mut self) {
        for LeftOutBlock { first, last, offset, bytes, error } in self.noted.take() {
            let file = match &error {
                Error::Corruption { path, .. } | Error::Io { path, .. } => path.clone(),
                _ => PathBuf::new(),
            };
            if self.around.iter().any(|known| known.file == file && known.offset == offset) {
                continue;
            }
            let left_out = DamagedBlock { file, offset, bytes, first, last, error };
            self.around.push(left_out.clone());
            self.found.push_back(left_out);
        }
    }

    /// Whether `key` may have been in a block that was left out.
    fn is_left_out(&mut self, key: &[u8]) -> bool {
        self.collect();
        let ends_early = planted!("left_out_ends_early");
        self.around.retain(|left_out| *left_out.last > *key || *left_out.last == *key && !ends_early);
        self.around.iter().any(|left_out| *left_out.first <= *key) && !planted!("left_out_lets_older_through")
    }
}

impl Iterator for Undamaged {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.range.next()? {
                Ok(pair) if self.is_left_out(pair.key()) => {}
                // That is no damage: operands cannot be combined, for example.
                Ok(Pair { unread: Some(error), .. }) if !error.is_unreadable() => {
                    self.range.fail();
                    return Some(Err(*error));
                }
                other => return Some(other),
            }
        }
    }
}

impl fmt::Debug for Undamaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undamaged").field("range", &self.range).field("around", &self.around).finish_non_exhaustive()
    }
}
