//! What others do between the two loads of a read without a snapshot.

use std::cell::Cell;

use super::*;
use crate::{
    background::bed::Bed,
    read::large::OpenedValue,
    settings::{
        merge::MergeOperator,
        options::{Durability, KeyspaceOptions},
    },
    state::op::{Act, Op},
};

const KEY: u32 = 7;

/// Counters; the key has 5, in a table.
fn counters() -> Bed {
    let bed = Bed::new(KeyspaceOptions { merge: Some(MergeOperator::add_i64()), ..KeyspaceOptions::default() });
    bed.fill([(KEY, 5_i64.to_le_bytes().to_vec())].into_iter());
    bed.flush().unwrap();
    bed
}

impl Bed {
    fn commit(&self, act: Act<'_>) {
        let op = Op { tree: &self.tree, key: &KEY.to_be_bytes(), act };
        self.engine.commit(&[op], Durability::Buffered).unwrap();
    }

    /// To be called with the view loaded: the first time an ingest of 100 comes, and 1 is added four times. The fourth
    /// operand of a memtable is a step, where a reader leaves the value for others.
    fn ingest_and_add(&self, is_first: &Cell<bool>) -> Sight {
        if is_first.replace(false) {
            let active = Arc::clone(&self.tree.view().active);
            self.ingest(KEY, &100_i64.to_le_bytes());
            (0..4).for_each(|_| self.commit(Act::Merge(&1_i64.to_le_bytes())));
            assert!(Arc::ptr_eq(&active, &self.tree.view().active), "the old view has the memtable");
        }
        Sight::now(self.engine.reader.visible())
    }

    fn check_counter(&self, found: Option<Value>, what: &str) {
        assert_eq!(found.as_deref(), Some(&104_i64.to_le_bytes()[..]), "{what}");
        let later = self.engine.reader.get(&self.tree, &KEY.to_be_bytes(), None).unwrap();
        assert_eq!(later.as_deref(), Some(&104_i64.to_le_bytes()[..]), "{what}: what the read has left");
    }
}

#[test]
fn operands_above_an_ingest_are_not_combined_without_it() {
    let (bed, is_first) = (counters(), Cell::new(true));
    let reader = &bed.engine.reader;
    let found = reader.find_now(&bed.tree, &KEY.to_be_bytes(), || bed.ingest_and_add(&is_first)).unwrap();
    bed.check_counter(found, "get");

    let (bed, is_first) = (counters(), Cell::new(true));
    let reader = &bed.engine.reader;
    let opened = reader.open_newest(&bed.tree, &KEY.to_be_bytes(), || bed.ingest_and_add(&is_first)).unwrap();
    let Some(OpenedValue::InMemory(found)) = opened else { panic!("a short value") };
    bed.check_counter(Some(found), "get_reader");
}

/// What a flush drops before the view is loaded, a number from before it may still need.
#[test]
fn a_ttl_is_looked_up_in_a_view_from_before_its_number() {
    let bed = Bed::new(KeyspaceOptions::default());
    bed.commit(Act::Put(&[1]));
    let reader = &bed.engine.reader;
    let sight = || {
        let sight = Sight::now(reader.visible());
        bed.fill([(KEY, vec![2])].into_iter());
        bed.flush().unwrap();
        sight
    };
    let found = reader.expires_at(&bed.tree, &KEY.to_be_bytes(), sight).unwrap();
    assert_eq!(found, Some(None), "it has had a value all the time");
}
