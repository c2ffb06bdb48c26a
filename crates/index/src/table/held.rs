//! Filter and index of a table in memory, for as long as it is open.
//!
//! They are taken when the table is opened, if the budget has room: all of it, or else the filter and the top of an
//! index in parts. A table that is opened while others hold the budget, as the outputs of a merge are before its inputs
//! are dropped, takes them later: when a read must load a section, and the budget has room by then.
//!
//! Invariant: what is held stays until the table is dropped, since readers borrow it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{IoSource, Result, Value};
use bifold_format::{
    compression::zeroed,
    filter::LINE_BYTES,
    table::{IndexForm, index::IndexLayout},
};

use super::{Table, TableContext, file::Tail};

/// More than any budget has.
const NEVER: u64 = u64::MAX;

/// What is held of a table.
#[derive(Debug, Default)]
pub(super) struct HeldMemory {
    /// Filter and index.
    whole: HeldSlot,
    /// Filter and top of an index in parts, if the budget had room only for those.
    top: HeldSlot,
}

/// Sections that are held, or may be later.
#[derive(Debug)]
struct HeldSlot {
    sections: OnceLock<HeldSections>,
    /// The bytes that they would take; [`NEVER`] if nobody is to take them.
    wanted: AtomicU64,
}

#[derive(Debug)]
pub(super) struct HeldSections {
    pub(super) filter: Option<Value>,
    pub(super) index: Option<Value>,
    /// Of the index, if there is one.
    pub(super) layout: Option<IndexLayout>,
    /// The bytes taken from the budget.
    bytes: u64,
}

impl HeldMemory {
    /// Holds what the budget has room for.
    pub(super) fn open(tail: &Tail, context: &TableContext) -> Self {
        let (held, filter) = (Self::default(), tail.filter.as_ref());
        held.whole.want([filter, tail.index.as_ref()]);
        held.whole.take(context, || Ok([filter.cloned(), tail.index.clone()]), None);
        if let (None, Some((top, _))) = (held.whole(), &tail.top) {
            held.top.want([filter, Some(top)]);
            held.top.take(context, || Ok([filter.cloned(), Some(top.clone())]), None);
            if held.top().is_some() {
                // The filter is held.
                held.whole.want([None, tail.index.as_ref()]);
            }
        }
        held
    }

    /// Filter and index.
    #[inline]
    pub(super) fn whole(&self) -> Option<&HeldSections> {
        self.whole.sections.get()
    }

    /// Filter and top of an index in parts.
    #[inline]
    pub(super) fn top(&self) -> Option<&HeldSections> {
        self.top.sections.get()
    }

    /// The bytes taken from the budget.
    pub(super) fn bytes(&self) -> u64 {
        [self.whole(), self.top()].into_iter().flatten().map(|held| held.bytes).sum()
    }
}

impl Table {
    /// Holds more if the budget has room now. Whoever calls it has loaded a section, so two loads do not matter.
    pub(super) fn hold_more(&self) {
        let (held, file, context) = (&self.held, &self.file, &*self.context);
        let filter = || file.section(self.filter, IoSource::Metadata);
        if held.whole.fits(context) {
            let shared = held.top().and_then(|top| top.filter.clone());
            let read = || {
                let filter = if shared.is_some() { None } else { filter()? };
                Ok([filter, self.read_whole_index()?])
            };
            held.whole.take(context, read, shared.clone());
        } else if held.whole().is_none() && held.top.fits(context) {
            held.top.take(context, || Ok([filter()?, file.section(self.top, IoSource::Metadata)?]), None);
        }
    }

    fn read_whole_index(&self) -> Result<Option<Value>> {
        let place = self.file.footer.index();
        match self.file.footer.index_form {
            IndexForm::Whole => self.file.section(place, IoSource::Metadata),
            IndexForm::Parts => {
                let content = self.file.read(place, IoSource::Metadata)?;
                Ok(Some(self.file.index_of_parts(&content, place.start)?.whole))
            }
        }
    }
}

impl Default for HeldSlot {
    fn default() -> Self {
        Self { sections: OnceLock::new(), wanted: AtomicU64::new(NEVER) }
    }
}

impl HeldSlot {
    fn want(&self, sections: [Option<&Value>; 2]) {
        self.wanted.store(bytes_of(sections), Relaxed);
    }

    fn fits(&self, context: &TableContext) -> bool {
        context.has_room(self.wanted.load(Relaxed))
    }

    /// Holds filter and index as `read` returns them, and a filter that others hold, if the budget has room for them.
    fn take(&self, context: &TableContext, read: impl FnOnce() -> Result<[Option<Value>; 2]>, shared: Option<Value>) {
        // One thread at a time. And none again if they cannot be read: whoever needs them reports that.
        let wanted = self.wanted.swap(NEVER, Relaxed);
        if wanted == NEVER {
            return;
        }
        let Ok([filter, index]) = read() else { return };
        match HeldSections::take([filter.as_ref(), index.as_ref()], context) {
            None => self.wanted.store(wanted, Relaxed),
            Some(held) => {
                let held = HeldSections { filter: held.filter.or(shared), ..held };
                if let Err(second) = self.sections.set(held) {
                    context.give_back(second.bytes);
                }
            }
        }
    }
}

impl HeldSections {
    /// Keeps these, filter and index of a table, in memory if the budget has room for them.
    fn take(sections: [Option<&Value>; 2], context: &TableContext) -> Option<Self> {
        let bytes = bytes_of(sections);
        context.take(bytes).then(|| {
            let [filter, index] = sections.map(|section| section.map(|section| aligned(section)));
            // It was parsed when the table was opened.
            let layout = index.as_deref().and_then(|index| IndexLayout::of(index).ok());
            Self { filter, index, layout, bytes }
        })
    }
}

fn bytes_of(sections: [Option<&Value>; 2]) -> u64 {
    sections.into_iter().flatten().map(|section| (section.len() + 2 * LINE_BYTES) as u64).sum()
}

/// A copy aligned to a cache line: then each line of a filter and each node of an index is one cache line.
fn aligned(content: &[u8]) -> Value {
    let mut buffer = zeroed(content.len() + LINE_BYTES);
    let start = buffer.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES);
    let end = start + content.len();
    if let Some(free) = Arc::get_mut(&mut buffer) {
        free[start..end].copy_from_slice(content);
    }
    Value::slice(buffer, start, end)
}
