//! Reads of many keys.

use bifold_contract::{IoSource, Pointer, Result, SeqNo, Value, planted};
use bifold_format::{filter::key_hash, pointer};
use bifold_values::parts::value_files::Stretches;

use super::get::{Live, Reader, lookup_of};
use crate::state::{
    time::{ReadTime, Sight},
    tree::{Tree, View},
};

/// So many keys are looked up before their values are read: more than a device serves at once.
const BATCH_MAX: usize = 128;

impl Reader {
    /// The newest values of `keys` in one consistent view. Blocks of tables and then separated values are announced, a
    /// batch at a time, so they come from the device concurrently. Where reads are calls, one call reads values that
    /// are next to each other in a file.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: impl IntoIterator<Item = K>,
        sight: Sight,
    ) -> Result<Vec<Option<Value>>> {
        let sight = if planted!("multi_get_ignores_expiry") { Sight { time: ReadTime::Never, ..sight } } else { sight };
        let view = arc_swap::Guard::into_inner(self.present(tree)?);
        self.ask_for_work(tree, &view.values);
        let keys: Vec<K> = keys.into_iter().collect();
        let mut all = Vec::with_capacity(keys.len());
        for batch in keys.chunks(BATCH_MAX) {
            if batch.len() > 1 {
                batch.iter().for_each(|key| self.expect(&view, key.as_ref(), sight.seqno));
            }
            let find = |key: &K| self.newest(&view, key.as_ref(), sight, &mut None);
            let found: Vec<Option<Live<'_>>> = batch.iter().map(find).collect::<Result<_>>()?;
            // A damaged pointer is reported when its value is read.
            let encoded = found.iter().flatten().filter_map(Live::encoded_pointer);
            let pointers: Vec<Pointer> = encoded.filter_map(|encoded| pointer::decode(encoded).ok()).collect();
            let announced = if pointers.len() > 1 { view.values.prefetch(&pointers) } else { None };
            for (key, live) in batch.iter().zip(found) {
                let of_key = |live| self.find_announced(tree, &view, (key.as_ref(), live), (announced.as_ref(), sight));
                all.push(live.map(of_key).transpose()?.flatten());
            }
        }
        self.counters.got_together(&all);
        Ok(all)
    }

    /// The value of a version that was found in `view`, by the call that reads its neighbours if it was announced with
    /// some. A value that the cache may have is looked for there first, alone.
    fn find_announced(
        &self,
        tree: &Tree,
        view: &View,
        (key, live): (&[u8], Live<'_>),
        (announced, sight): (Option<&Stretches>, Sight),
    ) -> Result<Option<Value>> {
        let place = live.lone_pointer().and_then(|encoded| pointer::decode(encoded).ok());
        if let (Some(announced), Some(place)) = (announced, place)
            && !self.caches_values(view)
        {
            let value = view.values.look_at_announced((key, place), announced, IoSource::Get, Value::copy_of)?;
            if value.is_some() {
                return Ok(value);
            }
        }
        self.find_in(tree, view, (key, live), sight)
    }

    /// Announces the block of a table that has the newest version of `key`, unless that is in a memtable.
    fn expect(&self, view: &View, key: &[u8], snapshot: SeqNo) {
        let key_hash = key_hash(key);
        if view.layers().any(|layer| layer.memtable.get_hashed(key, key_hash, snapshot).is_some()) {
            return;
        }
        view.version.expect(&lookup_of(view, (key, key_hash), snapshot, 0));
    }
}
