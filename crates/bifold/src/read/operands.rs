//! Reads of keys whose newest version is an operand.
//!
//! ```text
//! operand 9 ─▶ operand 7 ─▶ value 4: the base      combine(value, combine(operand 7, operand 9))
//! ```
//!
//! The versions of the key are asked for from the newest that the reader sees to the first that is no operand: the list
//! that each memtable has, then one search in the tables, by their filters. A step of a memtable at which a reader has
//! left the value ends that, and this reader leaves one at the first step of each memtable ([`KeyStep`]).

use bifold_contract::{Error, IoSource, Kind, Millis, Pointer, Result, SeqNo, Value, expiry, planted};
use bifold_format::filter::key_hash;
use bifold_index::{
    lookup::Lookup,
    memtable::{KeyStep, KeyVersion},
    visible::without_instant,
};

use super::{
    fold::combine_all,
    get::{Live, Looked, Reader, decode_pointer, lookup_of},
};
use crate::state::{
    time::Sight,
    tree::{Settings, Tree, Values, View},
};

/// What a key has, from the newest version to the one that ends the chain.
#[derive(Default)]
pub(super) struct Operands<'v> {
    /// The newest first.
    operands: Vec<Payload<'v>>,
    /// What they are combined with; `None`: nothing, or it is deleted or has expired.
    base: Option<Live<'v>>,
    /// The first step of each memtable where nobody has left a value, the newest first.
    steps: Vec<Passed<'v>>,
    /// The bytes that versions in memtables take.
    walked_bytes: usize,
}

/// What a version has: in a memtable of the view, or sharing the buffer of its block.
pub(super) enum Payload<'v> {
    InMemtable(&'v [u8]),
    InBlock(Value),
}

struct Passed<'v> {
    step: KeyStep<'v>,
    /// How many operands are above it.
    above: usize,
    /// The bytes of versions above it.
    above_bytes: usize,
}

/// Whether a walk ends at a step where a reader has left the value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftValues {
    Used,
    /// The versions themselves are wanted.
    PassedBy,
}

/// The newest separated value of a key, and what is above it.
pub(crate) struct Chain {
    pub pointer: Pointer,
    /// When the value expires. It may have.
    pub expires_at: Option<Millis>,
    /// How many operands are above it.
    pub above: usize,
    /// Their bytes.
    pub above_bytes: u64,
    /// The operands, the oldest first, if they were asked for.
    pub operands: Vec<Value>,
}

impl AsRef<[u8]> for Payload<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Payload::InMemtable(bytes) => bytes,
            Payload::InBlock(bytes) => bytes,
        }
    }
}

impl<'v> Payload<'v> {
    fn without_instant(self) -> Self {
        match self {
            Payload::InMemtable(bytes) => Payload::InMemtable(expiry::split(bytes).1),
            Payload::InBlock(bytes) => Payload::InBlock(without_instant(&bytes)),
        }
    }

    /// The version of this kind; `None` if that is a deletion.
    fn into_live(self, kind: Kind, seqno: SeqNo) -> Option<Live<'v>> {
        Some(match (kind.plain(), self) {
            (Kind::Delete, _) => return None,
            (Kind::Pointer, Payload::InMemtable(pointer)) => Live::PointerInMemtable(pointer, seqno),
            (Kind::Pointer, Payload::InBlock(pointer)) => Live::PointerInBlock(pointer, seqno),
            (Kind::Large, Payload::InMemtable(named)) => Live::Large(Value::copy_of(named)),
            (Kind::Large, Payload::InBlock(named)) => Live::Large(named),
            (_, Payload::InMemtable(value)) => Live::InMemtable(value),
            (_, Payload::InBlock(value)) => Live::InBlock(value),
        })
    }
}

impl<'v> Operands<'v> {
    /// The encoded pointer of the base, if that is a separated value.
    pub fn encoded_pointer(&self) -> Option<&[u8]> {
        self.base.as_ref().and_then(Live::encoded_pointer)
    }

    /// The operands, or the newest version if that is none.
    pub fn into_live(self) -> Option<Live<'v>> {
        if self.operands.is_empty() { self.base } else { Some(Live::Operands(Box::new(self))) }
    }

    /// Takes the next version of a memtable's. Returns whether older ones count.
    fn take_listed(&mut self, version: KeyVersion<'v>, is_alive: impl FnOnce(Millis) -> bool) -> bool {
        let KeyVersion { entry, bytes, step, .. } = version;
        if let Some(step) = step {
            let (above, above_bytes) = (self.operands.len(), self.walked_bytes);
            self.steps.push(Passed { step, above, above_bytes });
        }
        self.walked_bytes += bytes;
        self.take(entry.kind, entry.seqno, Payload::InMemtable(entry.payload), is_alive)
    }

    /// Takes the next version. Returns whether older ones count.
    pub fn take(
        &mut self,
        kind: Kind,
        seqno: SeqNo,
        payload: Payload<'v>,
        is_alive: impl FnOnce(Millis) -> bool,
    ) -> bool {
        if kind == Kind::Operand {
            self.operands.push(payload);
            return !planted!("merge_reads_one_operand");
        }
        if kind == Kind::Large && planted!("operands_overlook_large") {
            return true;
        }
        self.base = if kind.expires() {
            // Nothing expires in a keyspace with operands. If it did, no value were true for long.
            self.steps.clear();
            is_alive(expiry::split(payload.as_ref()).0)
                .then(|| payload.without_instant().into_live(kind, seqno))
                .flatten()
        } else {
            payload.into_live(kind, seqno)
        };
        false
    }
}

impl Reader {
    /// The operands of `key` in `view` that `sight` sees, and their base.
    #[cold]
    pub(super) fn operands<'v>(
        &self,
        view: &'v View,
        key: &[u8],
        sight: Sight,
        expires_at: &mut Option<Millis>,
    ) -> Result<Operands<'v>> {
        self.walk(view, (key, LeftValues::Used), sight, expires_at)
    }

    fn walk<'v>(
        &self,
        view: &'v View,
        (key, left): (&[u8], LeftValues),
        sight: Sight,
        expires_at: &mut Option<Millis>,
    ) -> Result<Operands<'v>> {
        let (snapshot, key_hash) = (sight.seqno, key_hash(key));
        let mut covered_by: SeqNo = 0;
        let mut found = Operands::default();
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, snapshot));
            let mut has_step = false;
            for mut version in layer.memtable.versions(key, key_hash, snapshot) {
                if version.entry.seqno < covered_by && !planted!("operands_outlive_range_deletes") {
                    return Ok(found);
                }
                if let Some(value) = version.value.filter(|_| left == LeftValues::Used) {
                    found.base = Some(Live::InMemtable(value));
                    return Ok(found);
                }
                version.step.take_if(|_| has_step);
                has_step |= version.step.is_some();
                if !found.take_listed(version, |instant| self.is_alive(instant, sight, expires_at)) {
                    return Ok(found);
                }
            }
        }
        // GC looks for the value beneath operands; a read takes what they were combined to.
        let source = if left == LeftValues::Used { IoSource::Get } else { IoSource::Gc };
        let lookup = Lookup { source, ..lookup_of(view, (key, key_hash), snapshot, covered_by) };
        self.walk_tables(view, &lookup, sight, (&mut found, expires_at))?;
        Ok(found)
    }

    /// Takes the versions that tables have, up to the first that is no operand.
    pub(super) fn walk_tables<'v>(
        &self,
        view: &'v View,
        lookup: &Lookup<'_>,
        sight: Sight,
        (found, expires_at): (&mut Operands<'v>, &mut Option<Millis>),
    ) -> Result<()> {
        view.version.walk(lookup, &self.counters.lookups, &mut |version| {
            let payload = Payload::InBlock(version.payload);
            found.take(version.kind, version.seqno, payload, |instant| self.is_alive(instant, sight, expires_at))
        })
    }

    /// The value of a key with operands.
    pub(super) fn fold(
        &self,
        tree: &Tree,
        (view, values): (&View, &Values),
        key: &[u8],
        Operands { operands, base, steps, walked_bytes }: Operands<'_>,
    ) -> Result<Looked> {
        let mut value = match base.map(|live| self.value_of(tree, (view, values), key, live)).transpose()? {
            None => None,
            Some(Looked::Answer(value)) => value,
            Some(moved) => return Ok(moved),
        };
        let combine = |older: Option<&[u8]>, newer: &[u8]| combined_as(&view.settings, tree, key, (older, newer));
        let mut below = operands.len();
        for Passed { step, above, above_bytes } in steps.into_iter().rev() {
            let above = if planted!("step_keeps_what_is_newer") { 0 } else { above };
            let at_step = combine_all(&combine, value.as_deref(), &operands[above..below])?;
            step.keep(&at_step, walked_bytes - above_bytes);
            (value, below) = (Some(Value::from(at_step)), above);
        }
        if below > 0 {
            value = Some(Value::from(combine_all(&combine, value.as_deref(), &operands[..below])?));
        }
        Ok(Looked::Answer(value))
    }

    /// The newest separated value of `key`, with the operands above it, expired or not. The operands are copied only if
    /// that is wanted: they may be any number of bytes.
    ///
    /// # Errors
    /// I/O errors and corruption, and those of `wants_operands`.
    pub fn chain(
        &self,
        tree: &Tree,
        key: &[u8],
        wants_operands: impl FnOnce(&Chain) -> Result<bool>,
    ) -> Result<Option<Chain>> {
        let (view, mut expires_at) = (tree.view(), None);
        let found = self.walk(&view, (key, LeftValues::PassedBy), Sight::STORED, &mut expires_at)?;
        let Some(pointer) = found.encoded_pointer().map(|encoded| decode_pointer(tree, encoded)).transpose()? else {
            return Ok(None);
        };
        let bytes_of = |operand: &Payload<'_>| {
            let bytes: &[u8] = operand.as_ref();
            bytes.len() as u64
        };
        let (above, above_bytes) = (found.operands.len(), found.operands.iter().map(bytes_of).sum());
        let mut chain = Chain { pointer, expires_at, above, above_bytes, operands: Vec::new() };
        if wants_operands(&chain)? {
            let copy = |operand: &Payload<'_>| Value::copy_of(operand.as_ref());
            chain.operands = found.operands.iter().rev().map(copy).collect();
        }
        Ok(Some(chain))
    }
}

/// Combines an operand with what is older.
///
/// # Errors
/// [`Error::Merge`].
pub(crate) fn combined(tree: &Tree, key: &[u8], two: (Option<&[u8]>, &[u8])) -> Result<Vec<u8>> {
    combined_as(&tree.view().settings, tree, key, two)
}

fn combined_as(
    settings: &Settings,
    tree: &Tree,
    key: &[u8],
    (older, newer): (Option<&[u8]>, &[u8]),
) -> Result<Vec<u8>> {
    let failed = |operator: &str, reason: String| Error::Merge {
        keyspace: tree.name.clone(),
        key: key.into(),
        operator: operator.to_owned(),
        reason,
    };
    match &settings.options.merge {
        Some(operator) => operator.combine(key, older, newer).map_err(|reason| failed(operator.name(), reason)),
        None => Err(failed("", "the keyspace has no merge operator".to_owned())),
    }
}
