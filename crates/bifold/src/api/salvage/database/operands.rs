//! Keys whose newest version is an operand: which operands count, and what they make of their base.
//!
//! ```text
//! tables   operand 9 (of 7 to 9) │ value 4        what opening would see: these, and what logs have above `flushed`
//! logs     operand 7 │ 8 │ 9 │ 12 │ 13            the same operands as 9: never both
//! ```
//!
//! A compaction combines operands, and the result has the number of the newest: it does not say which others are in it.
//! So operands come from one of two sets, in neither of which an operand is twice:
//!
//! * **What opening would see**, if the manifest is whole and no table lacks a version of the key from its base on.
//! * **Logs alone**, if they have every operation from the base on. A value or delete is true in whichever file it is:
//!   it is what the key had at that number. So also a replaced table may have the base.
//!
//! Otherwise the key is left out. With a part of the versions in tables even a value that is counted as uncertain could
//! have an operand twice: GC writes operands again above a value that it moves, and the move may be what is lost. A
//! commit in a log is whole or lost, so where only logs have lost something the operands are combined, and the key is
//! named.

use bifold_contract::{Kind, SeqNo, Value, key::MAX_SEQNO, planted};
use bifold_index::range_tombstones::RangeTombstones;

use super::{logs::Version, reach::Reach, sources::SavedKeyspace};
use crate::settings::merge::{MergeOperator, MergeOperators};

/// How operands of a keyspace are combined, and what is known of them.
pub(super) struct OperandRules<'a> {
    /// With its function; or in words, why there is none.
    pub operator: Result<MergeOperator, String>,
    /// Whether the tables are those of a whole manifest.
    pub is_exact: bool,
    /// The logs repeat what tables have, up to this number.
    pub flushed: SeqNo,
    /// The keys of which logs were asked for what has been flushed, too.
    pub asked: RangeTombstones,
    /// What tables have lost.
    pub lost_in_tables: RangeTombstones,
    pub reach: &'a Reach,
}

/// The operands of a key down to its base.
pub(super) struct FoundOperands {
    /// Copies of the newest version that is no operand; none if there is no such version, or a range delete covers it.
    pub base: Vec<Version>,
    pub above: Above,
}

/// The operands above a base.
#[derive(Debug)]
pub(super) struct Above {
    /// The oldest first.
    pub operands: Vec<Value>,
    /// The number of the newest.
    pub newest: SeqNo,
    /// Whether nothing is lost that may belong between them.
    pub is_certain: bool,
}

impl<'a> OperandRules<'a> {
    pub fn of(space: &SavedKeyspace, operators: &MergeOperators, (reach, is_exact): (&'a Reach, bool)) -> Self {
        Self {
            operator: operator_of(space, operators),
            is_exact,
            flushed: space.flushed,
            asked: space.asked.clone(),
            lost_in_tables: RangeTombstones::for_snapshots(&space.lost_in_tables, &[MAX_SEQNO]),
            reach,
        }
    }

    /// The operands of a key, if it is known which count. `versions` are the newest first, `deleted` is the number of
    /// the newest range delete that covers the key.
    pub fn chain(&self, key: &[u8], versions: &[Version], deleted: SeqNo) -> Option<FoundOperands> {
        let is_seen = |version: &Version| {
            !version.is_logged || version.seqno > self.flushed || planted!("salvage_counts_operands_twice")
        };
        let lost = self.lost_in_tables.covering(key, MAX_SEQNO);
        if self.is_exact {
            let (mut chain, base) = chain_of(versions.iter().filter(|version| is_seen(version)), deleted);
            if lost <= base || planted!("salvage_overlooks_lost_bases") {
                chain.above.is_certain = !self.reach.lacks_some(base.max(self.flushed), chain.above.newest);
                return Some(chain);
            }
        }
        let (chain, base) =
            chain_of(versions.iter().filter(|version| version.is_logged || version.kind != Kind::Operand), deleted);
        let are_asked = base >= self.flushed || self.asked.covering(key, MAX_SEQNO) > 0;
        let has_all = self.reach.is_whole_above(base) && are_asked;
        has_all.then_some(chain)
    }

    /// What operands make of their base.
    ///
    /// # Errors
    /// In words.
    pub fn combine(&self, key: &[u8], base: Option<Value>, operands: &[Value]) -> Result<Option<Value>, String> {
        let operator = self.operator.as_ref().map_err(Clone::clone)?;
        let mut value = base;
        let mut fold = |operand: &Value| {
            let combined = operator.combine(key, value.as_deref(), operand);
            value = Some(Value::from(combined.map_err(|reason| format!("`{}`: {reason}", operator.name()))?));
            Ok::<(), String>(())
        };
        match planted!("salvage_reverses_operands") {
            true => operands.iter().rev().try_for_each(&mut fold)?,
            false => operands.iter().try_for_each(&mut fold)?,
        }
        Ok(value)
    }
}

/// The operator of a keyspace, or in words why there is none.
fn operator_of(space: &SavedKeyspace, operators: &MergeOperators) -> Result<MergeOperator, String> {
    let Some(named) = &space.merge else {
        return Err("the manifest no longer says which merge operator the keyspace has".to_owned());
    };
    operators.find(named).ok_or_else(|| {
        format!(
            "the merge operator `{}` is none of Bifold's and not registered: salvage these keys with a program that \
             has it in `SalvageOptions::merge_operators`",
            named.name()
        )
    })
}

/// The operands among versions, the newest first, down to their base, and the number of that.
fn chain_of<'a>(versions: impl Iterator<Item = &'a Version>, deleted: SeqNo) -> (FoundOperands, SeqNo) {
    let mut versions = versions.take_while(|version| version.seqno >= deleted).peekable();
    let newest = versions.peek().map_or(deleted, |version| version.seqno);
    let mut operands = Vec::new();
    while let Some(operand) = versions.next_if(|version| version.kind == Kind::Operand) {
        operands.push(operand.payload.clone());
    }
    operands.reverse();
    let seqno = versions.peek().map_or(deleted, |version| version.seqno);
    let base =
        versions.take_while(|version| version.seqno == seqno && version.kind != Kind::Operand).cloned().collect();
    (FoundOperands { base, above: Above { operands, newest, is_certain: true } }, seqno)
}
