//! What is newer than the index: layers of entries in memory. Commits go to the newest; the others are sealed, and go
//! to the index one by one, oldest first.
//!
//! Whoever holds the commit lock may insert. A version is overwritten in place unless a snapshot sees it, so that a hot
//! key takes memory, and a write of the index, once in each layer.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use bifold_contract::{FileId, SeqNo};

use crate::index::Entry;

/// Memory that a version takes in addition to its key and an inline value: nodes of the tree, allocations. Estimated.
const VERSION_BYTES: u64 = 112;

/// All layers, newest first. There is always one.
#[derive(Debug)]
pub(crate) struct Layers(RwLock<Vec<Arc<Layer>>>);

/// Entries of the commits in some logs.
#[derive(Debug)]
pub(crate) struct Layer {
    /// The first log that has some of them.
    pub log: FileId,
    entries: RwLock<Sorted>,
}

#[derive(Debug, Default)]
struct Sorted {
    /// The versions of each key, oldest first.
    keys: BTreeMap<Box<[u8]>, Vec<(SeqNo, Entry)>>,
    /// The last commit with an entry here.
    last: SeqNo,
    bytes: u64,
}

impl Layers {
    pub fn new(log: FileId) -> Self {
        Self(RwLock::new(vec![Arc::new(Layer::new(log))]))
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Layer>>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Layer>>> {
        self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// All of them, newest first.
    pub fn all(&self) -> Vec<Arc<Layer>> {
        self.read().clone()
    }

    /// The one that commits go to.
    pub fn newest(&self) -> Arc<Layer> {
        Arc::clone(&self.read()[0])
    }

    /// Commits go to a new layer, whose first log is this one.
    pub fn seal(&self, log: FileId) {
        self.write().insert(0, Arc::new(Layer::new(log)));
    }

    /// How many are sealed.
    pub fn sealed(&self) -> usize {
        self.read().len() - 1
    }

    /// The oldest one, if it is sealed.
    pub fn oldest_sealed(&self) -> Option<Arc<Layer>> {
        self.read().get(1..)?.last().cloned()
    }

    /// The first log that some layer needs.
    pub fn first_log(&self) -> FileId {
        self.read().last().map_or(0, |layer| layer.log)
    }

    /// The oldest layer is in the index.
    pub fn remove_oldest(&self) {
        let mut layers = self.write();
        if layers.len() > 1 {
            layers.pop();
        }
    }

    /// The newest version of a key in any layer.
    pub fn get(&self, key: &[u8]) -> Option<Entry> {
        self.read().iter().find_map(|layer| layer.get(key, SeqNo::MAX))
    }
}

impl Layer {
    fn new(log: FileId) -> Self {
        Self { log, entries: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Sorted> {
        self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Inserts the entries of one commit, the first of which has the number `first`. Readers see all or none of them.
    /// No snapshot that is newer than `newest_snapshot` is open, and none is opened meanwhile.
    pub fn insert<'k>(
        &self,
        first: SeqNo,
        entries: impl Iterator<Item = (&'k [u8], Entry)>,
        newest_snapshot: Option<SeqNo>,
    ) {
        let sorted = &mut *self.entries.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (seqno, (key, entry)) in (first..).zip(entries) {
            sorted.last = seqno;
            let own = key.len() as u64 + VERSION_BYTES;
            sorted.bytes += own + inline_bytes(&entry);
            let Some(versions) = sorted.keys.get_mut(key) else {
                sorted.keys.insert(key.into(), vec![(seqno, entry)]);
                continue;
            };
            match versions.last_mut() {
                Some(last) if newest_snapshot.is_none_or(|snapshot| snapshot < last.0) => {
                    sorted.bytes -= own + inline_bytes(&last.1);
                    *last = (seqno, entry);
                }
                _ => versions.push((seqno, entry)),
            }
        }
    }

    /// The newest version of a key up to this commit.
    pub fn get(&self, key: &[u8], upto: SeqNo) -> Option<Entry> {
        let sorted = self.read();
        visible(sorted.keys.get(key)?, upto).cloned()
    }

    /// Up to `limit` keys from `start` on, each with its newest version up to a commit. Keys without one are left out,
    /// but count.
    pub fn some(&self, range: (Bound<&[u8]>, Bound<&[u8]>), upto: SeqNo, limit: usize) -> Chunk {
        let sorted = self.read();
        let mut some = Chunk { entries: Vec::new(), last: None };
        if is_empty(range) {
            return some;
        }
        for (at, (key, versions)) in sorted.keys.range::<[u8], _>(range).take(limit).enumerate() {
            if let Some(entry) = visible(versions, upto) {
                some.entries.push((key.clone(), entry.clone()));
            }
            some.last = (at + 1 == limit).then(|| key.clone());
        }
        some
    }

    /// Memory that it takes, in bytes, about.
    pub fn bytes(&self) -> u64 {
        self.read().bytes
    }

    /// The last commit with an entry here; 0 if there is none.
    pub fn last(&self) -> SeqNo {
        self.read().last
    }

    /// Shows all keys to `see`, each with its newest version. Called when it is sealed: nothing is inserted meanwhile.
    pub fn each_newest<E>(&self, mut see: impl FnMut(&[u8], &Entry) -> Result<(), E>) -> Result<(), E> {
        let sorted = self.read();
        let newest = sorted.keys.iter().filter_map(|(key, versions)| Some((key, &versions.last()?.1)));
        newest.into_iter().try_for_each(|(key, entry)| see(key, entry))
    }
}

/// Some entries of a layer, in ascending order.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub entries: Vec<(Box<[u8]>, Entry)>,
    /// The key after which more may come.
    pub last: Option<Box<[u8]>>,
}

fn visible(versions: &[(SeqNo, Entry)], upto: SeqNo) -> Option<&Entry> {
    versions.iter().rev().find(|(seqno, _)| *seqno <= upto).map(|(_, entry)| entry)
}

fn inline_bytes(entry: &Entry) -> u64 {
    if let Entry::Inline(value) = entry { value.len() as u64 } else { 0 }
}

/// Whether no key is in this range. A map panics at one that ends before it begins.
pub(crate) fn is_empty((start, end): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inline(value: &[u8]) -> Entry {
        Entry::Inline(value.into())
    }

    #[test]
    fn a_version_that_no_snapshot_sees_is_overwritten_in_place() {
        let layer = Layer::new(1);
        let put = |seqno, value: &[u8], snapshot| {
            layer.insert(seqno, std::iter::once((&b"key"[..], inline(value))), snapshot);
        };
        put(1, b"one", None);
        let bytes = layer.bytes();
        put(2, b"two", None);
        assert_eq!((layer.bytes(), layer.get(b"key", 1)), (bytes, None));
        put(3, b"three", Some(2));
        assert_eq!(layer.get(b"key", 2), Some(inline(b"two")));
        put(4, b"four", Some(2));
        assert_eq!((layer.get(b"key", 2), layer.get(b"key", 3)), (Some(inline(b"two")), Some(inline(b"two"))));
        assert_eq!((layer.get(b"key", 9), layer.last()), (Some(inline(b"four")), 4));
    }

    #[test]
    fn some_entries_say_after_which_key_there_may_be_more() {
        let layer = Layer::new(1);
        let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
        layer.insert(1, keys.into_iter().map(|key| (key, inline(key))), None);
        let all = (Bound::Unbounded, Bound::Unbounded);
        let first = layer.some(all, 3, 2);
        assert_eq!((first.entries.len(), first.last.as_deref()), (2, Some(&b"b"[..])));
        let rest = layer.some((Bound::Excluded(b"b"), Bound::Unbounded), 3, 4);
        assert_eq!((rest.entries.len(), rest.last), (1, None), "later commits are not visible");
        assert!(layer.some((Bound::Included(b"c"), Bound::Excluded(b"b")), 9, 9).entries.is_empty());
    }
}
