//! Moves an end to a key.
//!
//! A seek takes three steps: it stays where it is if nothing lies between; it moves those sources of the merge that
//! are not there yet; it places all of them. The last one is needed only to go back to what the end has passed.

use bifold_contract::{Result, SeqNo, planted};

use super::{At, Back, Front, Outcome, Visible, after, is_above, is_below};
use crate::{cursor::Cursor, merge::MergeCursor};

impl Visible {
    /// Moves the front before the first entry at or after `key`, forwards or back, within the bounds. The back stays
    /// where it is, and so does what it has yielded.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn seek_front(&mut self, key: &[u8]) -> Result<()> {
        let is_outside = is_below(key, &self.lower) && !planted!("seek_ignores_bound");
        let going = self.reopen().and_then(|()| {
            let front = self.front.get_or_insert_with(|| Front::new((self.make)()));
            match is_outside {
                true => front.go_to_bound(&self.lower, self.snapshot)?,
                false => front.go_to(key, self.snapshot)?,
            }
            set_fence((&mut front.key, &mut front.at), (key, At::Key));
            Ok(true)
        });
        self.record_outcome(going).map(drop)
    }

    /// Moves the back behind the last entry at or before `key`, backwards or forwards again, within the bounds. The
    /// front stays where it is, and so does what it has yielded.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        let is_outside = is_above(key, &self.upper);
        let going = self.reopen().and_then(|()| {
            let back = self.back.get_or_insert_with(|| Back::new((self.make)()));
            match is_outside {
                true => back.go_to_bound(&self.upper)?,
                false => back.go_to(key)?,
            }
            set_fence((&mut back.key, &mut back.at), (key, At::Key));
            Ok(true)
        });
        self.record_outcome(going).map(drop)
    }

    /// Moves the front behind `key`, which is between the bounds, as if it had yielded it last.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn pass_front(&mut self, key: &[u8]) -> Result<()> {
        let going = self.reopen().and_then(|()| {
            let front = self.front.get_or_insert_with(|| Front::new((self.make)()));
            // No version has number 0.
            front.cursor.seek(key, 0)?;
            set_fence((&mut front.key, &mut front.at), (key, At::Passed));
            Ok(true)
        });
        self.record_outcome(going).map(drop)
    }

    /// Moves the back before `key`, which is between the bounds, as if it had yielded it last.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn pass_back(&mut self, key: &[u8]) -> Result<()> {
        let going = self.reopen().and_then(|()| {
            let back = self.back.get_or_insert_with(|| Back::new((self.make)()));
            back.cursor.seek_before(key)?;
            set_fence((&mut back.key, &mut back.at), (key, At::Passed));
            Ok(true)
        });
        self.record_outcome(going).map(drop)
    }

    /// Ends that have met may be moved away from each other.
    fn reopen(&mut self) -> Result<()> {
        if let Outcome::Over = self.outcome {
            self.outcome = Outcome::Going;
        }
        self.begin().map(drop)
    }
}

fn set_fence((fence, at): (&mut Vec<u8>, &mut At), (key, now): (&[u8], At)) {
    fence.clear();
    fence.extend_from_slice(key);
    *at = now;
}

impl Front {
    fn go_to(&mut self, key: &[u8], snapshot: SeqNo) -> Result<()> {
        let has_passed = self.excludes(key) && !(self.at == At::Entry && *self.key == *key);
        if has_passed {
            return self.cursor.seek(key, snapshot);
        }
        // The cursor is on the first entry at or after the fence.
        match self.cursor.entry() {
            Some(entry) if entry.key < key => self.cursor.seek_on(key, snapshot),
            _ => Ok(()),
        }
    }
}

impl Back {
    fn go_to(&mut self, key: &[u8]) -> Result<()> {
        if self.excludes(key) {
            return self.cursor.seek_before(&after(key));
        }
        // The cursor is on the last entry at or before the fence.
        match self.cursor.entry() {
            Some(entry) if entry.key > key => self.cursor.seek_back_before(&after(key)),
            _ => Ok(()),
        }
    }
}

/// Seeks in the direction in which the merge goes.
impl MergeCursor {
    /// As [`Cursor::seek`] to an entry after the current one. Sources that are there already stay.
    fn seek_on(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        if !self.goes_forward() {
            return self.seek(key, seqno);
        }
        self.move_forward(|source| match source.entry() {
            Some(entry) if entry.key < key => source.seek(key, seqno),
            _ => Ok(()),
        })
    }

    /// As [`Cursor::seek_before`] to an entry before the current one. Sources that are there already stay.
    fn seek_back_before(&mut self, key: &[u8]) -> Result<()> {
        if self.goes_forward() {
            return self.seek_before(key);
        }
        self.move_backward(|source| match source.entry() {
            Some(entry) if entry.key >= key => source.seek_before(key),
            _ => Ok(()),
        })
    }
}
