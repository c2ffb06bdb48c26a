//! What a rewrite does with entries that have expired.
//!
//! ```text
//! instant │        expired, dropped              expired, kept
//! ────────┼──▶ time of snapshots ──▶ now     snapshot ──▶ instant ──▶ now
//! ```
//!
//! Of the snapshots that see an entry the oldest has the earliest time. If the entry had expired by then, it has to
//! everyone: those that are opened later have later times than the rewrite itself.

use bifold_contract::{Entry, Millis, Result, planted};

use super::RewriteState;

/// What time it is to a rewrite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times<'a> {
    /// Entries with instants up to this have expired. It was taken before the list of snapshots. 0: none has.
    pub now: Millis,
    /// The time with which each of the plan's snapshots reads; of several with one number, the earliest.
    pub of_snapshots: &'a [Millis],
}

impl RewriteState<'_> {
    /// The tombstone that takes the place of an entry which nothing overwrites, if the entry has expired to everyone.
    pub(super) fn tombstone_of_expired<'e>(&mut self, entry: &Entry<'e>, stripe: usize) -> Result<Option<Entry<'e>>> {
        if !self.has_expired(entry) || self.is_seen_alive(entry, stripe) {
            return Ok(None);
        }
        self.output.entries_expired += 1;
        self.rewriter.discard(&entry.plain(), entry.seqno)?;
        Ok(Some(Entry::delete(entry.key, entry.seqno)))
    }

    /// Whether an entry has expired now.
    pub(super) fn has_expired(&self, entry: &Entry<'_>) -> bool {
        entry.expires_at().is_some_and(|instant| instant <= self.plan.times.now)
    }

    /// Whether a snapshot sees an entry as it was before it expired.
    fn is_seen_alive(&self, entry: &Entry<'_>, stripe: usize) -> bool {
        if planted!("expires_under_snapshots") {
            return false;
        }
        let read_with = self.plan.times.of_snapshots.get(stripe);
        read_with.zip(entry.expires_at()).is_some_and(|(&time, instant)| time < instant)
    }
}
