//! Entries in key order, one version of each key, in memory: what an ingest has gathered for its next tables.

use bifold_contract::{Entry, Kind, Result, SeqNo, Value};

use crate::cursor::Cursor;

/// Entries in key order, which get consecutive sequence numbers.
#[derive(Clone, Debug, Default)]
pub struct SortedEntries {
    bytes: Vec<u8>,
    places: Vec<EntryPlace>,
}

/// Where an entry is in the bytes, with its kind.
#[derive(Clone, Copy, Debug)]
struct EntryPlace {
    start: usize,
    key_end: usize,
    end: usize,
    kind: Kind,
}

impl SortedEntries {
    /// Adds an entry; its payload is the parts one after the other. The key must be larger than all before it.
    pub fn push(&mut self, key: &[u8], kind: Kind, payload: &[&[u8]]) {
        debug_assert!(self.key(self.places.len().wrapping_sub(1)).is_none_or(|last| last < key), "keys ascend");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        payload.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.places.push(EntryPlace { start, key_end, end: self.bytes.len(), kind });
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<EntryPlace>()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Removes all of them. The memory stays, unless it is more than `kept` bytes.
    pub fn clear(&mut self, kept: usize) {
        self.bytes.clear();
        self.places.clear();
        if self.bytes.capacity() > kept {
            self.bytes = Vec::new();
        }
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        self.places.get(at).map(|place| &self.bytes[place.start..place.key_end])
    }

    /// A cursor over all of them; the first has the sequence number `seqno`.
    #[must_use]
    pub fn cursor(&self, seqno: SeqNo) -> EntriesCursor<'_> {
        EntriesCursor { entries: self, seqno, at: None }
    }
}

/// A cursor over [`SortedEntries`].
#[derive(Clone, Debug)]
pub struct EntriesCursor<'a> {
    entries: &'a SortedEntries,
    /// That of the first entry.
    seqno: SeqNo,
    at: Option<usize>,
}

impl EntriesCursor<'_> {
    fn go_to(&mut self, at: Option<usize>) -> Result<()> {
        self.at = at.filter(|&at| at < self.entries.places.len());
        Ok(())
    }

    /// How many keys are less than `key`.
    fn before(&self, key: &[u8]) -> usize {
        let SortedEntries { bytes, places } = self.entries;
        places.partition_point(|place| bytes[place.start..place.key_end] < *key)
    }
}

impl Cursor for EntriesCursor<'_> {
    fn entry(&self) -> Option<Entry<'_>> {
        let SortedEntries { bytes, places } = self.entries;
        let at = self.at?;
        let place = places[at];
        let (key, payload) = (&bytes[place.start..place.key_end], &bytes[place.key_end..place.end]);
        Some(Entry { key, seqno: self.seqno + at as SeqNo, kind: place.kind, payload })
    }

    fn payload(&self) -> Value {
        Value::copy_of(self.entry().map_or(&[], |entry| entry.payload))
    }

    fn first(&mut self) -> Result<()> {
        self.go_to(Some(0))
    }

    fn last(&mut self) -> Result<()> {
        self.go_to(self.entries.places.len().checked_sub(1))
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        let at = self.before(key);
        let is_newer = self.entries.key(at) == Some(key) && self.seqno + at as SeqNo > seqno;
        self.go_to(Some(at + usize::from(is_newer)))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.go_to(self.before(key).checked_sub(1))
    }

    fn next(&mut self) -> Result<()> {
        self.go_to(self.at.map(|at| at + 1))
    }

    fn prev(&mut self) -> Result<()> {
        self.go_to(self.at.and_then(|at| at.checked_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_both_ways_and_seeks() {
        let mut entries = SortedEntries::default();
        entries.push(b"b", Kind::Inline, &[b"va", b"lue"]);
        entries.push(b"d", Kind::Delete, &[]);
        let mut cursor = entries.cursor(7);
        let shown =
            |cursor: &EntriesCursor<'_>| cursor.entry().map(|entry| (entry.key.to_vec(), entry.payload.to_vec()));
        let (b, d) = (Some((b"b".to_vec(), b"value".to_vec())), Some((b"d".to_vec(), Vec::new())));
        assert_eq!(shown(&cursor), None);
        for (key, seqno, found) in
            [("a", 9, &b), ("b", 7, &b), ("b", 6, &d), ("c", 9, &d), ("d", 7, &None), ("e", 9, &None)]
        {
            cursor.seek(key.as_bytes(), seqno).unwrap();
            assert_eq!(&shown(&cursor), found, "{key} at {seqno}");
        }
        cursor.seek_before(b"d").unwrap();
        assert_eq!(shown(&cursor), b);
        cursor.next().unwrap();
        assert_eq!(shown(&cursor), d);
        cursor.prev().unwrap();
        cursor.prev().unwrap();
        assert_eq!(shown(&cursor), None);
        cursor.last().unwrap();
        assert_eq!((shown(&cursor), cursor.payload().len()), (d, 0));
    }
}
