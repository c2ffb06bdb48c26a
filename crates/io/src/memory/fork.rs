//! A copy of a file system, including what it knows about durability.

use std::{collections::BTreeMap, sync::Arc};

use super::tree::{Change, Directory, Names, Node, State};

/// Locks end with the process and the hook stays with the original. The count of calls continues, since pending
/// changes carry its numbers.
pub(super) fn copy(state: &State) -> State {
    let mut copies = Copies::default();
    let directories = state.directories.iter().map(|(path, from)| {
        let pending = from.pending.iter().map(|change| copies.change(change)).collect();
        let directory = Directory { names: copies.names(&from.names), durable: copies.names(&from.durable), pending };
        (Arc::clone(path), directory)
    });
    State {
        directories: directories.collect(),
        ops: state.ops,
        capacity: state.capacity,
        append_region: state.append_region,
        next_id: state.next_id,
        ..State::default()
    }
}

/// The copy of every file found so far: a file can have several names, now and in the past.
#[derive(Default)]
struct Copies(BTreeMap<u64, Arc<Node>>);

impl Copies {
    fn node(&mut self, node: &Node) -> Arc<Node> {
        Arc::clone(self.0.entry(node.id).or_insert_with(|| node.copy()))
    }

    fn names(&mut self, names: &Names) -> Names {
        names.iter().map(|(name, node)| (Arc::clone(name), self.node(node))).collect()
    }

    fn change(&mut self, change: &Change) -> Change {
        let edits = change.edits.iter();
        let edits = edits.map(|(name, node)| (Arc::clone(name), node.as_ref().map(|node| self.node(node))));
        Change { op: change.op, edits: edits.collect() }
    }
}
