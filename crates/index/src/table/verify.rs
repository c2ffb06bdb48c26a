//! Reads every byte of a table and reports all damage.
//!
//! The footer tells where the sections are and that they fill the file. Then each section is checked on its own, and
//! each data block that the index knows: that it is sound, that its entries are in order and between its fences, that
//! searches and the filter find them. At the end it must all add up to what the properties say. Damage in one place
//! does not keep the rest from being checked, except for what only the damaged place could tell.

use bifold_contract::{
    Corruption, Entry, Error, Expiring, IoSource, Kind, RangeTombstone, Result, SeqNo, TableMeta, Value,
};
use bifold_format::{
    block::{BlockCursor, check_restarts},
    filter::{self, Filter, key_hash},
    table::{IndexForm, Place, index::Index, parts},
};
use bifold_io::Dir;

use super::file::TableFile;

/// All damage in the table that `meta` describes.
#[must_use]
pub fn verify(dir: &Dir, meta: &TableMeta) -> Vec<Error> {
    let mut check = match TableFile::open_footer(dir, meta.id) {
        Ok(file) => Check { file, problems: Vec::new(), sums: Sums::default(), unread: false },
        Err(error) => return vec![error],
    };
    check.run(meta);
    check.problems
}

struct Check {
    file: TableFile,
    problems: Vec<Error>,
    sums: Sums,
    /// Something could not be read, so the sums are incomplete.
    unread: bool,
}

/// Totals of the entries read.
#[derive(Default)]
struct Sums {
    entries: u64,
    tombstones: u64,
    expiring: Expiring,
    seqnos: Option<(SeqNo, SeqNo)>,
    first_key: Option<Vec<u8>>,
    last: Option<(Vec<u8>, SeqNo)>,
}

impl Check {
    fn run(&mut self, meta: &TableMeta) {
        let footer = self.file.footer;
        let properties = self.section(footer.properties(), |file, content| file.decode_properties(content));
        let tombstones = self.section(footer.tombstones(), |file, content| file.decode_tombstones(content));
        let filter = self.section(footer.filter(), |file, content| match content {
            Some(content) => match Keys::parse(&content) {
                Ok(_) => Ok(Some(content)),
                Err(damage) => Err(file.error(damage.at(footer.filter().start))),
            },
            None => Ok(None),
        });
        let index = match footer.index_form {
            IndexForm::Whole => self.section(footer.index(), |_, content| Ok(content)),
            IndexForm::Parts => self.whole_index(),
        };
        match index {
            Some(Some(index)) => self.blocks(&index, filter.flatten().as_ref()),
            Some(None) if footer.data_bytes > 0 => self.damage(footer.index(), "table index", "an index", "none"),
            _ => {}
        }
        let Some(properties) = properties else { return };
        self.compare("the manifest has", meta, &properties.meta);
        if let Some(tombstones) = tombstones.filter(|_| !self.unread) {
            let found = self.sums.meta(&properties.meta, &tombstones);
            self.compare("the entries give", &found, &properties.meta);
        }
    }

    /// Reads and decodes a section; `None` if it is damaged.
    fn section<T>(&mut self, place: Place, decode: impl FnOnce(&TableFile, Option<Value>) -> Result<T>) -> Option<T> {
        let content = self.file.section(place, IoSource::Maintenance);
        let decoded = content.and_then(|content| decode(&self.file, content));
        decoded.map_err(|error| self.fail(error)).ok()
    }

    /// Reads the parts of an index, and checks that each is found and searched as a whole one is.
    fn whole_index(&mut self) -> Option<Option<Value>> {
        let place = self.file.footer.index();
        let read = self.file.read(place, IoSource::Maintenance);
        let found = match read.and_then(|bytes| self.file.index_of_parts(&bytes, place.start)) {
            Ok(found) => found,
            Err(error) => {
                self.fail(error);
                return None;
            }
        };
        let is_sound = || {
            let top = Index::parse(&found.top).ok()?;
            let part = |(at, content): (usize, &Value)| {
                let part = parts::parse(content).ok()?;
                Some(part.heads_match() && part.fence(part.blocks() - 1)? == top.fence(at)?)
            };
            Some(top.heads_match() && found.parts.iter().enumerate().all(|part_at| part(part_at) == Some(true)))
        };
        if is_sound() != Some(true) {
            self.damage(place, "table index", "heads and fences of parts that match", "others");
        }
        Some(Some(found.whole))
    }

    fn blocks(&mut self, content: &[u8], filter: Option<&Value>) {
        let place = self.file.footer.index();
        let index = match Index::parse(content) {
            Ok(index) => index,
            Err(damage) => return self.fail(self.file.error(damage.at(place.start))),
        };
        let keys = filter.and_then(|content| Keys::parse(content).ok());
        if !index.heads_match() {
            self.damage(place, "table index", "heads that match their fences", "other heads");
        }
        let mut end = 0;
        for at in 0..index.blocks() {
            let block = match self.file.place(&index, at) {
                Ok(block) => block,
                Err(error) => return self.fail(error),
            };
            if block.start != end {
                self.damage(block, "data block", "one that starts where the previous one ends", "a gap or an overlap");
            }
            end = block.end;
            let fences = (at.checked_sub(1).and_then(|before| index.fence(before)), index.fence(at));
            if let Err(error) = self.block(block, &fences, keys.as_ref()) {
                self.fail(error);
            }
        }
        if end != self.file.footer.data_bytes {
            self.damage(place, "table index", "blocks that fill the data", "blocks that do not");
        }
    }

    fn block(
        &mut self,
        place: Place,
        fences: &(Option<Vec<u8>>, Option<Vec<u8>>),
        keys: Option<&Keys<'_>>,
    ) -> Result<()> {
        let at_block = |damage: Corruption| self.file.error(damage.at(place.start));
        let block = self.file.block(place, IoSource::Maintenance)?;
        check_restarts(&block).map_err(at_block)?;
        let mut cursor = BlockCursor::default();
        cursor.set_block(block).and_then(|()| cursor.first()).map_err(at_block)?;
        while let Some(entry) = cursor.entry() {
            if let Err(expected) = self.sums.add(&entry, fences, keys) {
                let found = format!("key {}, number {}", entry.key.escape_ascii(), entry.seqno);
                return Err(at_block(Corruption::new(0, "data block", expected, found)));
            }
            cursor.next().map_err(at_block)?;
        }
        Ok(())
    }

    fn compare(&mut self, by: &str, expected: &TableMeta, found: &TableMeta) {
        if expected != found {
            let place = self.file.footer.properties();
            self.damage(place, "table properties", &format!("{by}: {expected:?}"), &format!("{found:?}"));
        }
    }

    fn damage(&mut self, place: Place, what: &'static str, expected: &str, found: &str) {
        self.problems.push(self.file.error(Corruption::new(place.start, what, expected, found)));
    }

    fn fail(&mut self, error: Error) {
        self.unread = true;
        self.problems.push(error);
    }
}

/// The content of a table's filter section.
enum Keys<'a> {
    Filter(Filter<'a>),
    Hashes(Vec<u64>),
}

impl<'a> Keys<'a> {
    fn parse(content: &'a [u8]) -> std::result::Result<Self, Corruption> {
        match content.last() {
            Some(0) => filter::key_hashes(content).map(Self::Hashes),
            _ => Filter::parse(content).map(Self::Filter),
        }
    }

    fn may_contain(&self, hash: u64) -> bool {
        match self {
            Self::Filter(filter) => filter.may_contain(hash),
            Self::Hashes(hashes) => hashes.binary_search(&hash).is_ok(),
        }
    }
}

impl Sums {
    /// Counts an entry; `Err` says what was expected.
    fn add(
        &mut self,
        entry: &Entry<'_>,
        (lower, upper): &(Option<Vec<u8>>, Option<Vec<u8>>),
        keys: Option<&Keys<'_>>,
    ) -> std::result::Result<(), &'static str> {
        let follows = |(key, seqno): &(Vec<u8>, SeqNo)| (&key[..], entry.seqno) < (entry.key, *seqno);
        if !self.last.as_ref().is_none_or(follows) {
            return Err("an entry after the previous one");
        }
        // A key equal to the previous fence is another version of the last key there.
        let between = lower.as_ref().is_none_or(|fence| fence[..] <= *entry.key)
            && upper.as_ref().is_some_and(|fence| *entry.key <= fence[..]);
        if !between {
            return Err("a key between the fences of its block");
        }
        if keys.is_some_and(|keys| !keys.may_contain(key_hash(entry.key))) {
            return Err("a key that is in the filter, or in the hashes in its place");
        }
        self.entries += 1;
        self.tombstones += u64::from(entry.kind == Kind::Delete);
        entry.expires_at().into_iter().for_each(|instant| self.expiring.add(instant));
        widen(&mut self.seqnos, entry.seqno);
        self.first_key.get_or_insert_with(|| entry.key.into());
        let (key, seqno) = self.last.get_or_insert_default();
        key.clear();
        key.extend_from_slice(entry.key);
        *seqno = entry.seqno;
        Ok(())
    }

    /// The metadata of a table with these entries and range tombstones; the rest is copied from `like`.
    fn meta(&self, like: &TableMeta, tombstones: &[RangeTombstone]) -> TableMeta {
        let mut seqnos = self.seqnos;
        tombstones.iter().for_each(|tombstone| widen(&mut seqnos, tombstone.seqno));
        let starts = tombstones.iter().map(|t| &*t.start);
        let ends = tombstones.iter().filter_map(|t| t.end.as_deref());
        let last_key = self.last.as_ref().map(|(key, _)| &key[..]);
        TableMeta {
            entries: self.entries,
            tombstones: self.tombstones,
            range_tombstones: tombstones.len() as u64,
            smallest: starts.clone().chain(self.first_key.as_deref()).min().unwrap_or_default().into(),
            largest: ends.chain(starts).chain(last_key).max().unwrap_or_default().into(),
            unbounded: tombstones.iter().any(|t| t.end.is_none()),
            min_seqno: seqnos.unwrap_or_default().0,
            max_seqno: seqnos.unwrap_or_default().1,
            expiring: self.expiring,
            ..like.clone()
        }
    }
}

fn widen(seqnos: &mut Option<(SeqNo, SeqNo)>, seqno: SeqNo) {
    let (min, max) = seqnos.unwrap_or((seqno, seqno));
    *seqnos = Some((min.min(seqno), max.max(seqno)));
}
