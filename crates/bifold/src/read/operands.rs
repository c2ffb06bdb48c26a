//! Reads of keys whose newest version is an operand.
//!
//! ```text
//! operand 9 ─▶ operand 7 ─▶ value 4: the base      combine(combine(value, operand 7), operand 9)
//! ```
//!
//! All versions of the key are walked by a merge of the streams that may have it, from the newest that the reader sees
//! to the first that is no operand. Only keys with operands take this way; it asks no filters.

use bifold_contract::{Error, Kind, Millis, Pointer, Result, SeqNo, Value, key::MAX_SEQNO, planted};
use bifold_index::{
    cursor::Cursor,
    merge::{MergeCursor, Source},
    range_tombstones::RangeTombstones,
    table::ReadMode,
    visible::without_instant,
};

use super::{
    get::{Live, Looked, Reader, decode_pointer},
    scan::visible_tombstones,
};
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
    /// What the version says of the file that has its value.
    Large(Value),
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
            Base::None | Base::Inline(_) | Base::Large(_) => None,
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
        let tombstones = RangeTombstones::new(&visible_tombstones(view, sight.seqno));
        let covered_by = tombstones.covering(key, sight.seqno);
        let memtables = view.layers().filter(|l| !l.memtable.is_empty()).map(|l| Source::Memtable(l.memtable.cursor()));
        let streams = view.version.streams_overlapping(Some(key), Some(key));
        let runs = streams.map(|stream| Source::Run(stream.cursor(ReadMode::Scan)));
        let mut merge = MergeCursor::new(memtables.chain(runs).collect());
        merge.seek(key, sight.seqno.min(MAX_SEQNO))?;
        let mut found = Box::new(Operands { operands: Vec::new(), base: Base::None });
        while let Some(entry) = merge.entry().filter(|entry| entry.key == key && entry.seqno >= covered_by) {
            let (kind, seqno) = (entry.kind, entry.seqno);
            if let Some(instant) = entry.expires_at()
                && !self.is_alive(instant, sight, expires_at)
            {
                break;
            }
            match kind {
                Kind::Operand => found.operands.push(merge.payload()),
                Kind::Delete => break,
                Kind::Large if planted!("operands_overlook_large") => {}
                Kind::Inline => found.base = Base::Inline(merge.payload()),
                Kind::Pointer => found.base = Base::Pointer(merge.payload(), seqno),
                Kind::Large => found.base = Base::Large(merge.payload()),
                Kind::InlineUntil => found.base = Base::Inline(without_instant(&merge.payload())),
                Kind::PointerUntil => found.base = Base::Pointer(without_instant(&merge.payload()), seqno),
            }
            if kind != Kind::Operand || planted!("merge_reads_one_operand") {
                break;
            }
            merge.next()?;
        }
        Ok(found)
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
            Base::Large(named) => Some(Live::Large(named)),
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
