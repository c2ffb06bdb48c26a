//! Visiting the entries of a range, without memory for each.
//!
//! An entry that an iterator yields owns its key, shares its block and keeps the view: some allocations and reference
//! counts each, as much time as reading it takes. A visited entry is borrowed: an inline value from the block where the
//! merge stands, a separated one from a buffer of the thread.
//!
//! Separated values are prefetched like those of an iterator. Keys and pointers of the next ones wait in a queue whose
//! memory is used again. Where values come from the device, entries are those of the iterator, with its windows.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

use bifold_contract::{Entry, IoSource, Kind, Millis, Pointer, Result, SeqNo, Value, planted};
use bifold_format::pointer;
use bifold_index::visible::{Item, Visible};
use bifold_values::parts::value_files::Stretches;

use super::{
    chain,
    pair::Pair,
    scan::{AheadItem, End, Range, ScanState},
    window,
};

/// What is called with key and value of each entry.
type See<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Entries read ahead and not yet visited.
#[derive(Default)]
struct Queue {
    /// The first one is visited next.
    waiting: VecDeque<Announced>,
    /// Some that were visited: their memory is used again.
    spare: Vec<Announced>,
    /// How many entries were read ahead at last; 0 at the beginning.
    window: usize,
    /// Where the values that were queued last are.
    pointers: Vec<Pointer>,
}

/// An entry whose value was announced.
#[derive(Default)]
struct Announced {
    key: Vec<u8>,
    seqno: SeqNo,
    /// Whether it has a file of its own.
    is_large: bool,
    /// The encoded pointer, or what the entry says of its file, unless the value is inline.
    pointer: Vec<u8>,
    /// With which its value was announced, if it is read by a call.
    stretches: Option<Arc<Stretches>>,
    inline: Option<Value>,
    expires_at: Option<Millis>,
}

/// What was visited.
#[derive(Default)]
struct Tally {
    entries: u64,
    bytes: u64,
}

impl Queue {
    fn push(&mut self, entry: &Entry<'_>, payload: impl FnOnce() -> Value) {
        let mut next = self.spare.pop().unwrap_or_default();
        next.key.clear();
        next.key.extend_from_slice(entry.key);
        next.seqno = entry.seqno;
        next.pointer.clear();
        next.inline = None;
        next.is_large = entry.kind == Kind::Large;
        next.expires_at = entry.expires_at();
        let entry = entry.plain();
        match entry.kind {
            Kind::Pointer => {
                next.pointer.extend_from_slice(entry.payload);
                // A damaged pointer is reported when its value is read.
                self.pointers.extend(pointer::decode(entry.payload).ok());
            }
            Kind::Large => next.pointer.extend_from_slice(entry.payload),
            _ => next.inline = Some(payload()),
        }
        self.waiting.push_back(next);
    }
}

impl Announced {
    fn kind(&self) -> Kind {
        match self.inline {
            Some(_) => Kind::Inline,
            None if self.is_large => Kind::Large,
            None => Kind::Pointer,
        }
    }
}

impl From<Announced> for AheadItem {
    fn from(waiting: Announced) -> Self {
        let (kind, payload) = match &waiting.inline {
            Some(value) => (Kind::Inline, value.clone()),
            None => (waiting.kind(), Value::copy_of(&waiting.pointer)),
        };
        let (seqno, expires_at) = (waiting.seqno, waiting.expires_at);
        let item = Item { key: waiting.key.into(), seqno, kind, payload, expires_at };
        Self { announced: waiting.stretches, ..Self::of(item) }
    }
}

impl Range {
    /// Calls `see` with key and value of each entry from the front, until it breaks or there are no more. What
    /// [`Iterator::next`] would have yielded, in about half the time: no entry takes memory of its own.
    ///
    /// The range can be used again afterwards: it goes on behind the last entry that was seen.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-visit-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # for n in 0..10u8 { db.put([n], [n; 3])?; }
    /// let mut bytes = 0;
    /// db.range([3]..).limit(2).visit(|_key, value| {
    ///     bytes += value.len();
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 6);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// I/O errors and corruption. An entry whose value cannot be read is passed over by the next call, unless several
    /// values were read by one system call: then the next call first reads the entry's value alone.
    pub fn visit(&mut self, mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.begin(End::Front, None);
        let (mut queue, mut tally) = (Queue::default(), Tally::default());
        let ended = self.visit_from(&mut queue, &mut tally, &mut see);
        // What was read ahead in vain comes next.
        if !planted!("forget_waiting") {
            queue.waiting.into_iter().rev().for_each(|next| self.front.items.push_front(next.into()));
        }
        self.pinned.reader.counters.scanned(tally.entries, tally.bytes);
        ended
    }

    fn visit_from(&mut self, queue: &mut Queue, tally: &mut Tally, see: &mut See<'_>) -> Result<()> {
        while self.left != Some(0) {
            let is_walking = matches!(self.state, ScanState::Walking(_)) && !self.pinned.tree.scans.are_cold();
            let flow = if !self.front.items.is_empty() || (queue.waiting.is_empty() && !is_walking) {
                // What the iterator has read ahead, values from the device, errors, and the end.
                let Some(pair) = self.step(End::Front) else { return Ok(()) };
                let pair = pair?;
                match pair.announced_value() {
                    Ok(Some(value)) => see(pair.key(), &value),
                    Ok(None) => see(pair.key(), &pair.value_alone()?),
                    Err(error) => {
                        self.put_back(pair);
                        return Err(error);
                    }
                }
            } else if is_walking && queue.waiting.len() * 2 <= queue.window {
                self.walk_on(queue, tally, see)
            } else {
                self.visit_first(queue, tally, see)?
            };
            if flow.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Visits the next entry if it is inline and none waits. Otherwise reads ahead.
    fn walk_on(&mut self, queue: &mut Queue, tally: &mut Tally, see: &mut See<'_>) -> ControlFlow<()> {
        queue.window = window::in_memory(queue.window).min(self.left.unwrap_or(usize::MAX));
        let present = queue.waiting.len();
        while queue.waiting.len() < queue.window {
            let ScanState::Walking(visible) = &mut self.state else { break };
            match visible.advance_front() {
                Ok(true) => {}
                Ok(false) => self.end(Ok(())),
                Err(error) => self.end(Err(error)),
            }
            let ScanState::Walking(visible) = &mut self.state else { break };
            let Some(entry) = visible.front() else { break };
            if entry.kind == Kind::Inline && queue.waiting.is_empty() {
                queue.window = 0;
                tally.entries += 1;
                tally.bytes += (entry.key.len() + entry.payload.len()) as u64;
                let flow = see(entry.key, entry.payload);
                self.note_visited();
                return flow;
            }
            if entry.kind == Kind::Operand {
                let key: Box<[u8]> = entry.key.into();
                let (seqno, chain) = (entry.seqno, chain::take(visible));
                match chain.and_then(|chain| self.folded(&key, chain, &mut None)) {
                    Ok(value) => queue.push(&Entry::inline(&key, seqno, &[]), || value),
                    Err(error) => {
                        self.end(Err(error));
                        break;
                    }
                }
                continue;
            }
            queue.push(&entry, || Visible::front_payload(visible));
        }
        if !queue.pointers.is_empty() {
            self.pinned.note_value_asked();
            let stretches = self.pinned.values.prefetch(&queue.pointers).map(Arc::new);
            self.pinned.tree.scans.note_cold(stretches.as_ref().is_some_and(|all| all.are_cold()));
            if stretches.is_some() {
                queue.waiting.range_mut(present..).for_each(|next| next.stretches.clone_from(&stretches));
            }
            queue.pointers.clear();
        }
        ControlFlow::Continue(())
    }

    /// Visits the entry that has waited longest.
    fn visit_first(&mut self, queue: &mut Queue, tally: &mut Tally, see: &mut See<'_>) -> Result<ControlFlow<()>> {
        let Some(mut next) = queue.waiting.pop_front() else { return Ok(ControlFlow::Continue(())) };
        let (kind, announced) = (next.kind(), next.stretches.take());
        let (key, mut flow, mut bytes) = (&next.key[..], ControlFlow::Continue(()), 0);
        let see = &mut |value: &[u8]| {
            bytes = value.len();
            flow = see(key, value);
        };
        let seen = match announced.filter(|_| kind == Kind::Pointer) {
            Some(announced) => self.pinned.look_at(&announced, (key, &next.pointer), &mut *see),
            None => Ok(None),
        };
        let is_seen = match seen {
            Ok(seen) => seen.is_some(),
            // It may be the error of a neighbour: the next call reads this value alone.
            Err(error) => {
                queue.waiting.push_front(next);
                return Err(error);
            }
        };
        self.note_visited();
        tally.entries += 1;
        tally.bytes += key.len() as u64;
        let (reader, from) = (&self.pinned.reader, (&*self.pinned.tree, &self.pinned.values));
        match kind {
            _ if is_seen => {}
            Kind::Pointer => reader.show(from, (key, next.seqno), &next.pointer, IoSource::Scan, see)?,
            Kind::Large => see(&reader.read_large(from, key, &next.pointer, IoSource::Scan)?),
            _ => see(next.inline.as_deref().unwrap_or_default()),
        }
        tally.bytes += bytes as u64;
        queue.spare.push(next);
        Ok(flow)
    }

    fn note_visited(&mut self) {
        self.front.yielded += 1;
        self.left = self.left.map(|left| left - 1);
    }

    /// What the front has yielded last comes next. Its value was not announced then.
    fn put_back(&mut self, pair: Pair) {
        let Pair { key, seqno, kind, payload, expires_at, .. } = pair;
        self.front.items.push_front(AheadItem::of(Item { key, seqno, kind, payload, expires_at }));
        self.front.yielded -= 1;
        self.left = self.left.map(|left| left + 1);
    }
}
