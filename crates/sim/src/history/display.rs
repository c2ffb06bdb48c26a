//! How histories are printed.

use std::{fmt, ops::Bound};

use super::{History, Op, Span};
use crate::model::NAMES;

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Bound::Included(key) => write!(f, "[{key}")?,
            Bound::Excluded(key) => write!(f, "({key}")?,
            Bound::Unbounded => write!(f, "(")?,
        }
        match self.1 {
            Bound::Included(key) => write!(f, "..{key}]"),
            Bound::Excluded(key) => write!(f, "..{key})"),
            Bound::Unbounded => write!(f, "..)"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(write) => write.fmt(f),
            Self::PutReader(name, key, value) => write!(f, "put {}/{key} {value} from a reader", NAMES[*name as usize]),
            Self::Batch(durability, writes) => {
                write!(f, "batch {durability:?}")?;
                writes.iter().try_for_each(|write| write!(f, " | {write}"))
            }
            Self::Swap(name, key, expect, new) => {
                write!(f, "swap {}/{key} {expect:?} -> ", NAMES[*name as usize])?;
                match new {
                    Some(value) => write!(f, "{value}"),
                    None => write!(f, "nothing"),
                }
            }
            Self::Get(name, key) => write!(f, "get {}/{key}", NAMES[*name as usize]),
            Self::MultiGet(name, keys) => write!(f, "multi_get {}/{keys:?}", NAMES[*name as usize]),
            Self::Scan(name, span, way) => write!(f, "scan {}/{span} {way:?}", NAMES[*name as usize]),
            Self::Prefix(name, key, len) => write!(f, "prefix {}/{key} of {len} bytes", NAMES[*name as usize]),
            Self::ReadSnapshot(slot, name) => write!(f, "read snapshot {slot} of {}", NAMES[*name as usize]),
            Self::OpenIterator(slot, name) => write!(f, "open iterator {slot} of {}", NAMES[*name as usize]),
            Self::CompactRange(name, span) => write!(f, "compact {}/{span}", NAMES[*name as usize]),
            Self::Create(name) => write!(f, "create {}", NAMES[*name as usize]),
            Self::Drop(name) => write!(f, "drop {}", NAMES[*name as usize]),
            Self::Configure(name, variant) => write!(f, "options {variant} for {}", NAMES[*name as usize]),
            Self::Ingest(name, writes) => {
                write!(f, "ingest into {}", NAMES[*name as usize])?;
                writes.iter().try_for_each(|write| write!(f, " | {write}"))
            }
            plain => write!(f, "{}", format!("{plain:?}").to_lowercase()),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "history of seed {}, {} operations, durability {:?}", self.seed, self.ops.len(), self.durability)?;
        self.ops.iter().try_for_each(|(at, op)| writeln!(f, "{at:5}  {op}"))
    }
}
