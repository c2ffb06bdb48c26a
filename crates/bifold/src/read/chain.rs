//! Operands that an iterator meets: combined from its own streams if they are few, by a lookup if not.
//!
//! The merge stands on the newest version, and the others come next. A key with many has them in a memtable, where a
//! lookup ends at a step.

use bifold_contract::{Kind, Millis, Result, Value, planted};
use bifold_index::visible::Visible;

use super::{
    get::Looked,
    operands::{Operands, Payload},
    pair::Pair,
    scan::{Range, ScanState},
};

/// A lookup costs about as much as so many versions.
const VERSIONS_MAX: usize = 8;

/// Takes the versions of the key whose newest one, an operand, the front has moved to. `None`: there are too many.
///
/// # Errors
/// Those of the streams.
pub(super) fn take(visible: &mut Visible) -> Result<Option<Box<Operands<'static>>>> {
    let (mut operands, mut expires) = (Operands::default(), false);
    let seen = visible.pass_versions(VERSIONS_MAX, &mut |kind: Kind, seqno, payload| {
        let is_alive = |_instant| {
            // Nothing does in a keyspace with operands. A lookup knows what to do.
            expires = true;
            false
        };
        operands.take(kind, seqno, Payload::InBlock(payload), is_alive)
    })?;
    Ok(Some(Box::new(operands)).filter(|_| seen && !expires))
}

impl Range {
    /// The entry of a key whose newest version is an operand. An error ends both ends, unless damage is left out: then
    /// the entry says why its value cannot be read.
    #[cold]
    pub(super) fn resolved(&mut self, key: Box<[u8]>, chain: Option<Box<Operands<'static>>>) -> Result<Pair> {
        let mut expires_at = None;
        let (value, unread) = match self.folded(&key, chain, &mut expires_at) {
            Ok(value) => (value, None),
            Err(error) if self.leaves_out => (Value::copy_of(&[]), Some(Box::new(error))),
            Err(error) => {
                self.fail();
                return Err(error);
            }
        };
        self.pinned.reader.counters.read_value(value.len());
        Ok(Pair { unread, ..self.pair_of(&key, value, expires_at) })
    }

    /// Yields nothing more at either end: an error is being yielded.
    pub(super) fn fail(&mut self) {
        self.state = ScanState::Failed(None);
        self.front.items.clear();
        self.back.items.clear();
    }

    /// The value of that key: of `chain`, or by a lookup.
    pub(super) fn folded(
        &self,
        key: &[u8],
        chain: Option<Box<Operands<'static>>>,
        expires_at: &mut Option<Millis>,
    ) -> Result<Value> {
        let pinned = &*self.pinned;
        let (reader, tree, values) = (&pinned.reader, &pinned.tree, &pinned.values);
        let view = self.merging.as_deref().filter(|_| !planted!("scan_yields_operands"));
        let found = match (view, chain) {
            (None, _) => None,
            (Some(view), Some(chain)) => match reader.fold(tree, (view, values), key, *chain)? {
                Looked::Answer(value) => value,
                Looked::Moved(_) => reader.find_moved(tree, values, key, pinned.sight())?,
            },
            (Some(view), None) => reader.find_pinned(tree, (view, values), (key, pinned.sight()), expires_at)?,
        };
        // The iterator has met an operand that nothing covers.
        Ok(found.unwrap_or_else(|| Value::copy_of(&[])))
    }
}
