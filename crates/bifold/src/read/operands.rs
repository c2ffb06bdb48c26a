//! Reads of keys whose newest version is an operand.
//!
//! ```text
//! operand 9 ─▶ operand 7 ─▶ value 4: the base      combine(combine(value, operand 7), operand 9)
//! ```
//!
//! The versions of the key are walked from the newest that the reader sees to the first that is no operand: those of a
//! memtable are a list, and each further one in tables is a lookup of its own. Only keys with operands take this way.

use bifold_contract::{Error, Kind, Millis, Pointer, Result, SeqNo, Value, expiry, key::MAX_SEQNO, planted};
use bifold_index::visible::without_instant;

use super::get::{Live, Looked, Reader, decode_pointer, lookup_of};
use crate::state::{
    time::Sight,
    tree::{Tree, Values, View},
};

/// What a key has, from the newest version to the one that ends the chain.
pub(super) struct Operands {
    /// The newest first.
    operands: Vec<Value>,
    /// What they are combined with.
    base: Base,
}

enum Base {
    /// Nothing, or it is deleted or has expired.
    None,
    Inline(Value),
    /// An encoded pointer, and the version's number.
    Pointer(Value, SeqNo),
}

/// The newest separated value of a key, and what is above it.
pub(crate) struct Chain {
    pub pointer: Pointer,
    /// When the value expires. It may have.
    pub expires_at: Option<Millis>,
    /// Operands above it, the oldest first.
    pub operands: Vec<Value>,
}

impl Operands {
    /// The encoded pointer of the base, if that is a separated value.
    pub fn encoded_pointer(&self) -> Option<&[u8]> {
        match &self.base {
            Base::Pointer(pointer, _) => Some(pointer),
            Base::None | Base::Inline(_) => None,
        }
    }
}

impl Reader {
    /// The operands of `key` in `view` that `sight` sees, and their base.
    #[cold]
    pub(super) fn operands(
        &self,
        view: &View,
        key: &[u8],
        sight: Sight,
        expires_at: &mut Option<Millis>,
    ) -> Result<Box<Operands>> {
        let mut found = Box::new(Operands { operands: Vec::new(), base: Base::None });
        let mut covered_by: SeqNo = 0;
        let mut below = sight.seqno.min(MAX_SEQNO);
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, sight.seqno));
            for entry in layer.memtable.versions(key, below) {
                let ends = entry.seqno < covered_by
                    || self.note(&mut found, (entry.kind, entry.seqno, Value::from(entry.payload)), sight, expires_at);
                if ends {
                    return Ok(found);
                }
                below = entry.seqno.saturating_sub(1);
            }
        }
        // An operand in a run is the only version of its stripe there, so this asks each run about once.
        let mut lookup = lookup_of(view, key, below, covered_by);
        while let Some(entry) = view.version.get(&lookup, &self.counters.lookups)? {
            lookup.snapshot = entry.seqno.saturating_sub(1);
            if self.note(&mut found, (entry.kind, entry.seqno, entry.payload), sight, expires_at) {
                break;
            }
        }
        Ok(found)
    }

    /// Adds the next older version of a key to what was found. Returns whether it is the last one.
    fn note(
        &self,
        found: &mut Operands,
        (kind, seqno, payload): (Kind, SeqNo, Value),
        sight: Sight,
        expires_at: &mut Option<Millis>,
    ) -> bool {
        let is_alive = |instant, expires_at: &mut _| self.is_alive(instant, sight, expires_at);
        match kind {
            Kind::Operand => {
                found.operands.push(payload);
                return planted!("merge_reads_one_operand");
            }
            Kind::Delete => {}
            Kind::Inline => found.base = Base::Inline(payload),
            Kind::Pointer => found.base = Base::Pointer(payload, seqno),
            Kind::InlineUntil | Kind::PointerUntil if !is_alive(expiry::split(&payload).0, expires_at) => {}
            Kind::InlineUntil => found.base = Base::Inline(without_instant(&payload)),
            Kind::PointerUntil => found.base = Base::Pointer(without_instant(&payload), seqno),
        }
        true
    }

    /// The value of a key with operands.
    pub(super) fn fold(
        &self,
        tree: &Tree,
        (view, values): (&View, &Values),
        key: &[u8],
        Operands { operands, base }: Operands,
    ) -> Result<Looked> {
        let live = match base {
            Base::None => None,
            Base::Inline(value) => Some(Live::InBlock(value)),
            Base::Pointer(pointer, seqno) => Some(Live::PointerInBlock(pointer, seqno)),
        };
        let mut value = match live.map(|live| self.value_of(tree, (view, values), key, live)).transpose()? {
            None => None,
            Some(Looked::Answer(value)) => value,
            Some(moved) => return Ok(moved),
        };
        for operand in operands.iter().rev() {
            value = Some(Value::from(combined(tree, key, (value.as_deref(), operand))?));
        }
        Ok(Looked::Answer(value))
    }

    /// The newest separated value of `key`, with the operands above it, expired or not.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn chain(&self, tree: &Tree, key: &[u8]) -> Result<Option<Chain>> {
        let mut expires_at = None;
        let view = tree.view();
        let Some(live) = self.newest(&view, key, Sight::STORED, &mut expires_at)? else { return Ok(None) };
        let Some(pointer) = live.encoded_pointer().map(|encoded| decode_pointer(tree, encoded)).transpose()? else {
            return Ok(None);
        };
        let operands = match live {
            Live::Operands(of) => of.operands.into_iter().rev().collect(),
            _ => Vec::new(),
        };
        Ok(Some(Chain { pointer, expires_at, operands }))
    }
}

/// Combines an operand with what is older.
///
/// # Errors
/// [`Error::Merge`].
pub(crate) fn combined(tree: &Tree, key: &[u8], (older, newer): (Option<&[u8]>, &[u8])) -> Result<Vec<u8>> {
    let failed = |operator: &str, reason: String| Error::Merge {
        keyspace: tree.name.clone(),
        key: key.into(),
        operator: operator.to_owned(),
        reason,
    };
    match &tree.view().settings.options.merge {
        Some(operator) => operator.combine(key, older, newer).map_err(|reason| failed(operator.name(), reason)),
        None => Err(failed("", "the keyspace has no merge operator".to_owned())),
    }
}
