//! Seeks: an end of an iterator moves to a key.
//!
//! ```text
//! yielded by the front │ read ahead │ not touched │ read ahead │ yielded by the back
//! ─────────────────────┼────────────┼─────────────┼────────────┼────────────────────
//!        a seek of the front goes here, or further, or back to the lower bound
//! ```
//!
//! A key that was read ahead costs nothing: what comes before it is dropped. Any other moves the end in the merge
//! ([`Visible::seek_front`]); what the other end has read ahead then goes back to it, because the front may yield it.
//! A scan is what is read between two seeks: its length is noted as that of an iterator's.

use bifold_contract::{Result, planted};
use bifold_index::visible::Visible;

use super::scan::{Ahead, End, Range, ScanState};

/// Places an end in the merge.
type Seek = fn(&mut Visible, &[u8]) -> Result<()>;

impl Ahead {
    /// Drops what comes before `key`, if all that lies between was read ahead. Returns whether it was.
    fn skip_to(&mut self, end: End, key: &[u8]) -> bool {
        let comes_before = |other: &[u8]| if end == End::Front { other < key } else { other > key };
        let (Some(first), Some(last)) = (self.items.front(), self.items.back()) else { return false };
        let is_behind_first = first.key() == key || comes_before(first.key());
        if !is_behind_first || comes_before(last.key()) {
            return false;
        }
        while self.items.front().is_some_and(|item| comes_before(item.key())) {
            self.items.pop_front();
        }
        true
    }

    fn forget(&mut self) {
        self.items.clear();
        self.window = 0;
        self.taken = None;
    }

    /// Places its end in the merge where it is for the caller: before what it has read ahead and the other end has not
    /// taken; behind what it has taken from the other end; or before what the other end has `taken` from it.
    fn restore(&self, end: End, visible: &mut Visible, taken: Option<&[u8]>) -> Result<()> {
        let (seek, pass): (Seek, Seek) = match end {
            End::Front => (Visible::seek_front, Visible::pass_front),
            End::Back => (Visible::seek_back, Visible::pass_back),
        };
        match (self.items.front(), &self.taken, taken) {
            (Some(first), ..) => seek(visible, first.key()),
            (None, Some(passed), _) => pass(visible, passed),
            (None, None, Some(taken)) => seek(visible, taken),
            (None, None, None) => Ok(()),
        }
    }
}

impl Range {
    /// Moves the front: [`Iterator::next`] then yields the first entry whose key is `key` or greater, and goes on from
    /// there. It may be moved forwards and back, within the bounds of the range. A key in front of them means the
    /// first entry of the range, one behind them its end.
    ///
    /// The back stays where it is. Entries that it has yielded come from neither end before the back is moved, too.
    /// After both ends have met, a seek of one of them opens the range again between the two.
    ///
    /// Cheap where the key is near: what was read ahead is used, and so are blocks that are open. Otherwise it costs
    /// about as much as a new range, without its view and snapshot. An error is what the next call yields.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-seek-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// for key in ["ann/1", "ann/2", "bob/1", "bob/2", "eve/1"] {
    ///     db.put(key, "")?;
    /// }
    /// // The first entry of each name.
    /// let (mut names, mut range) = (Vec::new(), db.range("b"..));
    /// while let Some(entry) = range.next() {
    ///     let name = entry?.key()[..3].to_vec();
    ///     range.seek([&name[..], &[0xff]].concat());
    ///     names.push(name);
    /// }
    /// assert_eq!(names, [b"bob", b"eve"]);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.go_to(End::Front, key.as_ref());
    }

    /// Moves the back: [`DoubleEndedIterator::next_back`] then yields the last entry whose key is `key` or less, and
    /// goes on backwards from there. Everything that [`Range::seek`] says applies, the other way round.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-seek-prev-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # for hour in [9u8, 12, 15] { db.put([hour], "price")?; }
    /// // The last price at or before 14 o'clock.
    /// let mut prices = db.iter();
    /// prices.seek_for_prev([14]);
    /// assert_eq!(prices.next_back().unwrap()?.key(), [12]);
    /// # drop(prices); db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) {
        self.go_to(End::Back, key.as_ref());
    }

    fn go_to(&mut self, end: End, key: &[u8]) {
        self.begin(end, Some(key));
        let (this, other) = match end {
            End::Front => (&mut self.front, &mut self.back),
            End::Back => (&mut self.back, &mut self.front),
        };
        if this.skip_to(end, key) {
            return;
        }
        let taken = this.taken.take();
        this.forget();
        let (ScanState::Walking(visible) | ScanState::Met(visible)) = &mut self.state else { return };
        let other_end = if end == End::Front { End::Back } else { End::Front };
        let restored = match planted!("seek_forgets_read_ahead") {
            true => Ok(()),
            false => other.restore(other_end, visible, taken.as_deref()),
        };
        other.forget();
        let seek = if end == End::Front { Visible::seek_front } else { Visible::seek_back };
        let sought = restored.and_then(|()| seek(visible, key));
        self.note_length();
        self.state = match (sought, std::mem::replace(&mut self.state, ScanState::Done)) {
            (Err(error), _) => ScanState::Failed(Some(error)),
            (Ok(()), ScanState::Met(visible)) => ScanState::Walking(visible),
            (Ok(()), other) => other,
        };
    }
}
