//! Snapshots: layers, a snapshot of the index, and the number of the last commit that is seen. And scans of them.

use std::{
    collections::VecDeque,
    ops::{Bound, RangeBounds},
    sync::{Arc, atomic::Ordering::Acquire},
};

use bifold_contract::{IoSource, Pointer, Result, SeqNo, Value};
use bifold_values::parts::value_files::Stretches;

use crate::{
    batch::check_key,
    core::{Core, hold},
    index::{Entries, Entry, ForeignIndex, ForeignView, MARK_KEY, decode, stored_key, users_key},
    layers::{Layer, is_empty},
    read::Resolved,
};

/// Entries that a scan takes from a layer at once.
const AT_ONCE: usize = 64;

/// Most entries whose values a scan announces at once.
const LOOK_MAX: usize = 64;

/// A store as it was at some moment: see [`Store::snapshot`](crate::Store::snapshot). Value files that it may read stay
/// until it is dropped.
pub struct Snapshot<'a, I: ForeignIndex> {
    core: &'a Core<I>,
    seqno: SeqNo,
    /// Newest first.
    layers: Vec<Arc<Layer>>,
    view: I::View<'a>,
}

impl<'a, I: ForeignIndex> Snapshot<'a, I> {
    pub(crate) fn open(core: &'a Core<I>) -> Result<Self> {
        // While commits wait, no layer is sealed: what goes to the index meanwhile is of commits that this sees. Layers
        // first: one that goes meanwhile is in the index before that is looked at.
        let _commits_wait = hold(&core.log);
        let seqno = core.visible.load(Acquire);
        core.snapshots.open(seqno);
        let layers = core.layers.all();
        match core.index.snapshot() {
            Ok(view) => Ok(Self { core, seqno, layers, view }),
            Err(error) => {
                core.snapshots.close(seqno);
                Err(error)
            }
        }
    }

    /// The value that a key has in it; `None` if it has none.
    ///
    /// # Errors
    /// As [`Store::get`](crate::Store::get).
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        check_key(key)?;
        let in_layers = self.layers.iter().find_map(|layer| layer.get(key, self.seqno));
        let entry = match in_layers {
            Some(entry) => Some(entry),
            None => self.core.in_view(&self.view, key)?,
        };
        entry.map_or(Ok(None), |entry| self.resolve(key, &entry, IoSource::Get))
    }

    fn resolve(&self, key: &[u8], entry: &Entry, source: IoSource) -> Result<Option<Value>> {
        match self.core.value_of(key, entry, source)? {
            Resolved::Value(value) => Ok(Some(value)),
            Resolved::Nothing => Ok(None),
            Resolved::Moved(from) => Err(self.core.lost(from)),
        }
    }

    /// Keys and values of a range, in ascending order of keys.
    ///
    /// # Errors
    /// The index's. Later ones come out of the iterator, which ends with them.
    pub fn scan<'s, K: AsRef<[u8]>>(&'s self, range: impl RangeBounds<K>) -> Result<Scan<'s, 'a, I>> {
        let owned = |bound: Bound<&K>| bound.map(|key| Box::<[u8]>::from(key.as_ref()));
        let (start, end) = (owned(range.start_bound()), owned(range.end_bound()));
        let ends_before_all = matches!(&end, Bound::Included(key) | Bound::Excluded(key) if key.is_empty());
        let is_empty = ends_before_all || is_empty((borrowed(&start), borrowed(&end)));
        let mut sources = Vec::new();
        if !is_empty {
            let of = |layer| Source::Layer { layer, from: start.clone(), is_done: false, ahead: VecDeque::new() };
            sources.extend(self.layers.iter().map(of));
            let start = stored_bound(&start, Bound::Excluded(MARK_KEY.to_vec()));
            let end = stored_bound(&end, Bound::Unbounded);
            let entries = self.view.scan(start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice))?;
            sources.push(Source::Index { entries, ahead: None });
        }
        Ok(Scan { snapshot: self, sources, end, ahead: VecDeque::new(), look: 1, announced: None, has_failed: false })
    }
}

fn borrowed(bound: &Bound<Box<[u8]>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

fn stored_bound(bound: &Bound<Box<[u8]>>, unbounded: Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    match bound {
        Bound::Unbounded => unbounded,
        // No key is empty: all of them.
        Bound::Included(key) | Bound::Excluded(key) if key.is_empty() => unbounded,
        Bound::Included(key) => Bound::Included(stored_key(key).into_owned()),
        Bound::Excluded(key) => Bound::Excluded(stored_key(key).into_owned()),
    }
}

impl<I: ForeignIndex> Drop for Snapshot<'_, I> {
    fn drop(&mut self) {
        self.core.snapshots.close(self.seqno);
        self.core.signal.notify();
    }
}

/// Keys and values of a range of a snapshot, in ascending order of keys. After an error it yields nothing more.
pub struct Scan<'s, 'a, I: ForeignIndex> {
    snapshot: &'s Snapshot<'a, I>,
    /// Newest first.
    sources: Vec<Source<'s>>,
    end: Bound<Box<[u8]>>,
    /// The next entries. Their values were announced to the system together.
    ahead: VecDeque<(Box<[u8]>, Entry)>,
    /// So many entries are looked ahead the next time.
    look: usize,
    announced: Option<Stretches>,
    has_failed: bool,
}

/// Where a scan's entries come from.
enum Source<'s> {
    Layer {
        layer: &'s Arc<Layer>,
        /// Where the next chunk begins.
        from: Bound<Box<[u8]>>,
        is_done: bool,
        ahead: VecDeque<(Box<[u8]>, Entry)>,
    },
    Index {
        entries: Entries<'s>,
        ahead: Option<(Box<[u8]>, Entry)>,
    },
}

impl<I: ForeignIndex> Scan<'_, '_, I> {
    /// The next key that is not deleted, and its value.
    fn find(&mut self) -> Result<Option<(Box<[u8]>, Value)>> {
        loop {
            if self.ahead.is_empty() && !self.look_ahead()? {
                return Ok(None);
            }
            let Some((key, entry)) = self.ahead.pop_front() else { return Ok(None) };
            if let (Entry::Separated(pointer), Some(announced)) = (&entry, &self.announced) {
                let values = &self.snapshot.core.values;
                if let Some(value) =
                    values.look_at_announced((&key, *pointer), announced, IoSource::Scan, Value::copy_of)?
                {
                    return Ok(Some((key, value)));
                }
            }
            if let Some(value) = self.snapshot.resolve(&key, &entry, IoSource::Scan)? {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Takes the next entries, and announces their values, so that the device reads them at once (HashKV §3.6). Twice
    /// as many each time: a scan of one key should read one value. Returns whether there are any.
    fn look_ahead(&mut self) -> Result<bool> {
        while self.ahead.len() < self.look {
            let Some(next) = self.step()? else { break };
            self.ahead.push_back(next);
        }
        self.look = (self.look * 2).min(LOOK_MAX);
        let separated = |(_, entry): &(_, Entry)| if let Entry::Separated(at) = entry { Some(*at) } else { None };
        let addresses: Vec<Pointer> = self.ahead.iter().filter_map(separated).collect();
        self.announced = if addresses.len() > 1 { self.snapshot.core.values.prefetch(&addresses) } else { None };
        Ok(!self.ahead.is_empty())
    }

    /// The next key with what it has.
    fn step(&mut self) -> Result<Option<(Box<[u8]>, Entry)>> {
        let Self { snapshot, sources, end, .. } = self;
        let mut first: Option<(usize, &[u8])> = None;
        for source in &mut *sources {
            source.fill(snapshot, end)?;
        }
        for (at, source) in sources.iter().enumerate() {
            if let Some((key, _)) = source.peek()
                && first.is_none_or(|(_, least)| &**key < least)
            {
                first = Some((at, key));
            }
        }
        let Some((at, _)) = first else { return Ok(None) };
        let Some(next) = sources[at].take() else { return Ok(None) };
        // Older versions of the key.
        for source in &mut sources[at + 1..] {
            if source.peek().is_some_and(|(key, _)| *key == next.0) {
                source.take();
            }
        }
        Ok(Some(next))
    }
}

impl Source<'_> {
    /// Makes sure that its next entry is known, if it has one.
    fn fill<I: ForeignIndex>(&mut self, snapshot: &Snapshot<'_, I>, end: &Bound<Box<[u8]>>) -> Result<()> {
        match self {
            Self::Layer { layer, from, is_done, ahead } => {
                while ahead.is_empty() && !*is_done {
                    let chunk = layer.some((borrowed(from), borrowed(end)), snapshot.seqno, AT_ONCE);
                    ahead.extend(chunk.entries);
                    match chunk.last {
                        Some(last) => *from = Bound::Excluded(last),
                        None => *is_done = true,
                    }
                }
            }
            Self::Index { entries, ahead } if ahead.is_none() => {
                if let Some((key, stored)) = entries.next().transpose()? {
                    let entry = decode(&stored).map_err(|damage| snapshot.core.damaged_index(damage))?;
                    let key = users_key(key).ok_or_else(|| {
                        let expected = "a key that bifold-over has written";
                        let damage = bifold_contract::Corruption::new(0, "key of the index", expected, "another one");
                        snapshot.core.damaged_index(damage)
                    })?;
                    *ahead = Some((key.into(), entry));
                }
            }
            Self::Index { .. } => {}
        }
        Ok(())
    }

    fn peek(&self) -> Option<&(Box<[u8]>, Entry)> {
        match self {
            Self::Layer { ahead, .. } => ahead.front(),
            Self::Index { ahead, .. } => ahead.as_ref(),
        }
    }

    fn take(&mut self) -> Option<(Box<[u8]>, Entry)> {
        match self {
            Self::Layer { ahead, .. } => ahead.pop_front(),
            Self::Index { ahead, .. } => ahead.take(),
        }
    }
}

impl<I: ForeignIndex> Iterator for Scan<'_, '_, I> {
    type Item = Result<(Box<[u8]>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let found = self.find();
        self.has_failed = found.is_err();
        found.transpose()
    }
}
