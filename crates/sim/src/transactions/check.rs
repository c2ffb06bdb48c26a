//! Judges a history of transactions.
//!
//! Each commit has a number, and each snapshot one. So the versions of each key are known, and which of them each
//! transaction should have read. Three things are checked, in this order:
//!
//! 1. Each answer is what the transaction's snapshot has, with its own writes over it. Nothing of a transaction that
//!    was refused is ever seen (G1a).
//! 2. The dependency graph of Adya's thesis has no cycle. An edge leads from one transaction to another that must come
//!    later: it overwrote a version (ww), read it (wr), or overwrote what the first one had read (rw). A cycle of ww is
//!    G0, with wr it is G1c, with rw it is G2. Reads are those of ranges too, of keys that were not there included.
//! 3. The serial order is that of the commits: what a transaction that writes has read is the same at its commit. Under
//!    snapshot isolation this is so for what it has written (no lost update). What it has read for update is the same
//!    at each isolation, even if it has written that key before.
//!
//! A key without a value looks alike before its first put and after each delete. A commit is not refused if such a key
//! was put and deleted again meanwhile. So where the value at the commit is what was read, that version counts as read.

use std::collections::BTreeMap;

use bifold::{Isolation, SeqNo};
use petgraph::{
    algo::tarjan_scc,
    graph::{DiGraph, NodeIndex},
    visit::EdgeFiltered,
};

use crate::read::Trouble;

/// A keyspace and a key in it, by their positions.
pub type Key = (usize, u8);

/// A value: the transactions that have appended to it, oldest first.
pub type List = Vec<u32>;

/// What all keys of a database have.
pub type Lists = BTreeMap<Key, List>;

/// One step of a transaction.
#[derive(Clone, Debug)]
pub enum Step {
    /// It read a key.
    Read(Key, Option<List>),
    /// It read a key, on which its commit depends at each isolation.
    ReadForUpdate(Key, Option<List>),
    /// It read all keys from the first to the last, both inclusive, and found these.
    Scanned(Key, Key, Lists),
    /// It put a list, or deleted the key.
    Wrote(Key, Option<List>),
    /// It put a list that expires at once: it sees that itself, and others find nothing.
    WroteExpired(Key, List),
    /// It deleted all keys from the first to the last, both inclusive.
    Cleared(Key, Key),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    /// With this number.
    Committed(SeqNo),
    /// It is an ingest, behind all commits up to this number and before all later ones.
    Ingested(SeqNo),
    /// With a conflict, or it was rolled back.
    Nothing,
}

/// What a transaction did.
#[derive(Clone, Debug)]
pub struct Done {
    /// What it appends.
    pub id: u32,
    /// What it sees.
    pub snapshot: SeqNo,
    /// How it ended.
    pub outcome: TransactionEnd,
    /// How it was isolated.
    pub isolation: Isolation,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// What made the first version of a key.
const BASE: usize = usize::MAX;

/// A version of a key: the number of its commit, the position of the transaction that made it, its list.
#[derive(Clone, Debug)]
struct VersionOf {
    number: SeqNo,
    by: usize,
    list: Option<List>,
}

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    Overwritten,
    Read,
    ReadBeforeOverwritten,
}

type Graph = DiGraph<usize, Edge>;

/// A history, with the versions of all keys.
pub struct Checker<'a> {
    all: &'a [Done],
    base: &'a Lists,
    versions: BTreeMap<Key, Vec<VersionOf>>,
    keys: Vec<Key>,
}

impl<'a> Checker<'a> {
    /// The history of `all` transactions on a database that had `base`.
    ///
    /// # Errors
    /// Two commits with one number.
    pub fn new(all: &'a [Done], base: &'a Lists, keys: Vec<Key>) -> Result<Self, Trouble> {
        let first = |key: &Key| (*key, vec![VersionOf { number: 0, by: BASE, list: base.get(key).cloned() }]);
        let mut checker = Self { all, base, versions: keys.iter().map(first).collect(), keys };
        let mut committed: Vec<(SeqNo, usize)> =
            all.iter().enumerate().filter_map(|(at, done)| done.wrote(at)).collect();
        committed.sort_unstable();
        if let Some(two) = committed.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(Trouble::wrong(format!("two commits have the number {}", two[0].0)));
        }
        for (number, by) in committed {
            for (key, list) in checker.written(&all[by]) {
                let Some(versions) = checker.versions.get_mut(&key) else { continue };
                // A delete of what is not there changes nothing.
                if versions.last().is_some_and(|last| last.list != list) {
                    versions.push(VersionOf { number, by, list });
                }
            }
        }
        Ok(checker)
    }

    /// What a transaction has written in the end.
    fn written(&self, done: &Done) -> Changes {
        let mut written = Changes::new();
        for step in &done.steps {
            match step {
                Step::Wrote(key, list) => drop(written.insert(*key, list.clone())),
                Step::WroteExpired(key, _) => drop(written.insert(*key, None)),
                Step::Cleared(from, to) => written.extend(self.between(*from, *to).map(|key| (key, None))),
                Step::Read(..) | Step::ReadForUpdate(..) | Step::Scanned(..) => {}
            }
        }
        written
    }

    fn between(&self, from: Key, to: Key) -> impl Iterator<Item = Key> {
        self.keys.iter().copied().filter(move |key| (from..=to).contains(key))
    }

    fn at(&self, key: Key, number: SeqNo) -> usize {
        let versions = self.versions.get(&key).map_or(&[][..], |versions| versions);
        versions.partition_point(|version| version.number <= number).saturating_sub(1)
    }

    fn list(&self, key: Key, at: usize) -> Option<&List> {
        self.versions.get(&key)?.get(at)?.list.as_ref()
    }

    /// The state after each commit up to and including `number`.
    #[must_use]
    pub fn state(&self, number: SeqNo) -> Lists {
        let list = |&key: &Key| Some((key, self.list(key, self.at(key, number))?.clone()));
        self.keys.iter().filter_map(list).collect()
    }

    /// The numbers of all commits that changed something, ascending, with 0 for the beginning.
    #[must_use]
    pub fn numbers(&self) -> Vec<SeqNo> {
        let mut numbers: Vec<SeqNo> = self.versions.values().flatten().map(|version| version.number).collect();
        numbers.push(0);
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The numbers of all commits, ascending, and whether each is the very number.
    #[must_use]
    pub fn commits(&self) -> Vec<(SeqNo, bool)> {
        let numbered = |(at, done): (usize, &Done)| Some((done.wrote(at)?.0, done.is_transaction()));
        let mut commits: Vec<_> = self.all.iter().enumerate().filter_map(numbered).collect();
        commits.sort_unstable();
        commits
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first anomaly.
    pub fn check(&self) -> Result<(), Trouble> {
        let reads: Vec<Vec<(Key, Option<List>)>> =
            self.all.iter().map(|done| self.answers(done)).collect::<Result<_, _>>()?;
        self.check_graph(&reads)?;
        for (at, (done, reads)) in self.all.iter().zip(&reads).enumerate() {
            let Some((number, _)) = done.wrote(at) else { continue };
            let relied: Vec<Key> = match done.isolation {
                Isolation::Serializable => reads.iter().map(|(key, _)| *key).collect(),
                Isolation::Snapshot => self.written(done).into_keys().collect(),
            };
            for key in relied.into_iter().chain(done.read_for_update()) {
                let (before, then) = (self.at(key, done.snapshot), self.at(key, number - 1));
                let (before, then) = (self.list(key, before), self.list(key, then));
                if before != then {
                    let id = done.id;
                    let wrong = format!("{id} relies on {before:?} at {key:?}, at its commit it is {then:?}");
                    return Err(Trouble::wrong(wrong));
                }
            }
        }
        Ok(())
    }

    /// What the transaction has read of its snapshot, each answer compared.
    fn answers(&self, done: &Done) -> Result<Vec<(Key, Option<List>)>, Trouble> {
        let (mut own, mut reads) = (Changes::new(), Vec::new());
        let mut see = |own: &Changes, key: Key, found: Option<&List>| {
            let expected = match own.get(&key) {
                Some(list) => list.as_ref(),
                None => {
                    reads.push((key, found.cloned()));
                    self.list(key, self.at(key, done.snapshot))
                }
            };
            if found != expected {
                let Done { id, snapshot, .. } = done;
                let aborted = found.into_iter().flatten().find(|id| self.is_refused(**id) && **id != done.id);
                let name = aborted.map_or(String::new(), |aborted| format!("G1a: {aborted} was refused: "));
                let versions = self.versions.get(&key).into_iter().flatten();
                let versions: Vec<_> = versions.map(|version| (version.number, version.list.as_ref())).collect();
                let wrong = format!("{name}{id} at {snapshot} read {found:?} at {key:?}, which is {expected:?}");
                return Err(Trouble::wrong(format!("{wrong}; it was, by commits, {versions:?}")));
            }
            Ok(())
        };
        for step in &done.steps {
            match step {
                Step::Read(key, found) | Step::ReadForUpdate(key, found) => see(&own, *key, found.as_ref())?,
                Step::Scanned(from, to, found) => {
                    self.between(*from, *to).try_for_each(|key| see(&own, key, found.get(&key)))?;
                }
                Step::Wrote(key, list) => drop(own.insert(*key, list.clone())),
                Step::WroteExpired(key, list) => drop(own.insert(*key, Some(list.clone()))),
                Step::Cleared(from, to) => own.extend(self.between(*from, *to).map(|key| (key, None))),
            }
        }
        Ok(reads)
    }

    fn is_refused(&self, id: u32) -> bool {
        let is_old = || self.base.values().any(|list| list.contains(&id));
        !self.all.iter().any(|done| done.id == id && done.outcome != TransactionEnd::Nothing) && !is_old()
    }

    /// The version that a committed transaction counts as having read.
    fn version_read(&self, done: &Done, key: Key, list: Option<&List>) -> usize {
        let at_commit = done.serializable_commit().map(|number| self.at(key, number - 1));
        at_commit.filter(|&at| self.list(key, at) == list).unwrap_or_else(|| self.at(key, done.snapshot))
    }

    fn check_graph(&self, reads: &[Vec<(Key, Option<List>)>]) -> Result<(), Trouble> {
        let graph = self.graph(reads);
        let only = |kinds: &'static [Edge]| EdgeFiltered::from_fn(&graph, move |edge| kinds.contains(edge.weight()));
        let cycle = |found: Vec<Vec<NodeIndex>>| found.into_iter().find(|part| part.len() > 1);
        let kinds: [(&str, &'static [Edge]); 2] =
            [("G0", &[Edge::Overwritten]), ("G1c", &[Edge::Overwritten, Edge::Read])];
        for (name, kinds) in kinds {
            if let Some(part) = cycle(tarjan_scc(&only(kinds))) {
                return Err(self.described(name, &graph, &part));
            }
        }
        let is_serializable = self.all.iter().all(|done| done.isolation == Isolation::Serializable);
        let found = if is_serializable { cycle(tarjan_scc(&graph)) } else { None };
        found.map_or(Ok(()), |part| Err(self.described("G2", &graph, &part)))
    }

    fn graph(&self, reads: &[Vec<(Key, Option<List>)>]) -> Graph {
        let mut graph = Graph::new();
        let nodes: Vec<NodeIndex> = (0..self.all.len()).map(|at| graph.add_node(at)).collect();
        let mut add = |from: usize, to: usize, edge: Edge| {
            if from != BASE && to != BASE && from != to {
                graph.add_edge(nodes[from], nodes[to], edge);
            }
        };
        for two in self.versions.values().flat_map(|versions| versions.windows(2)) {
            add(two[0].by, two[1].by, Edge::Overwritten);
        }
        for (at, done) in self.all.iter().enumerate().filter(|(_, done)| done.outcome != TransactionEnd::Nothing) {
            for (key, list) in &reads[at] {
                let read = self.version_read(done, *key, list.as_ref());
                let Some(versions) = self.versions.get(key) else { continue };
                add(versions[read].by, at, Edge::Read);
                if let Some(next) = versions.get(read + 1) {
                    add(at, next.by, Edge::ReadBeforeOverwritten);
                }
            }
        }
        graph
    }

    fn described(&self, name: &str, graph: &Graph, part: &[NodeIndex]) -> Trouble {
        let ids: Vec<u32> = part.iter().map(|&node| self.all[graph[node]].id).collect();
        let edges = graph.edge_indices().filter_map(|edge| {
            let (from, to) = graph.edge_endpoints(edge)?;
            let is_inside = part.contains(&from) && part.contains(&to);
            is_inside.then(|| format!("{} {:?} {}", self.all[graph[from]].id, graph[edge], self.all[graph[to]].id))
        });
        let edges: Vec<String> = edges.collect();
        Trouble::wrong(format!("{name}: a cycle of {ids:?}: {}", edges.join(", ")))
    }
}

/// What a transaction writes: a list, or nothing for a delete.
type Changes = BTreeMap<Key, Option<List>>;

impl Done {
    /// The number of its commit if it has written something, with its position `at`.
    pub fn wrote(&self, at: usize) -> Option<(SeqNo, usize)> {
        let only_reads = |step: &Step| matches!(step, Step::Read(..) | Step::ReadForUpdate(..) | Step::Scanned(..));
        let writes = !self.steps.iter().all(only_reads);
        match self.outcome {
            TransactionEnd::Committed(number) | TransactionEnd::Ingested(number) if writes => Some((number, at)),
            _ => None,
        }
    }

    /// The keys that it has read for update.
    pub(super) fn read_for_update(&self) -> impl Iterator<Item = Key> {
        let key = |step: &Step| if let Step::ReadForUpdate(key, _) = step { Some(*key) } else { None };
        self.steps.iter().filter_map(key)
    }

    /// Whether it is no ingest.
    #[must_use]
    pub fn is_transaction(&self) -> bool {
        !matches!(self.outcome, TransactionEnd::Ingested(_))
    }

    /// The number of its commit if everything it has read must be the same then.
    fn serializable_commit(&self) -> Option<SeqNo> {
        self.wrote(0).map(|(number, _)| number).filter(|_| self.isolation == Isolation::Serializable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = (0, 0);
    const B: Key = (0, 1);

    fn done(id: u32, snapshot: SeqNo, outcome: TransactionEnd, steps: Vec<Step>) -> Done {
        Done { id, snapshot, outcome, isolation: Isolation::Serializable, steps }
    }

    fn verdict(all: &[Done]) -> String {
        let base = Lists::new();
        let checked = Checker::new(all, &base, vec![A, B]).and_then(|checker| checker.check());
        checked.map_or_else(|trouble| trouble.to_string(), |()| "right".to_owned())
    }

    fn append(key: Key, before: &[u32], id: u32) -> [Step; 2] {
        let found = (!before.is_empty()).then(|| before.to_vec());
        [Step::Read(key, found), Step::Wrote(key, Some([before, &[id]].concat()))]
    }

    #[test]
    fn a_serial_history_is_right() {
        let first = done(1, 0, TransactionEnd::Committed(1), append(A, &[], 1).into());
        let refused = done(2, 0, TransactionEnd::Nothing, append(A, &[], 2).into());
        let second = done(3, 1, TransactionEnd::Committed(2), append(A, &[1], 3).into());
        let reader = done(4, 1, TransactionEnd::Committed(1), vec![Step::Scanned(A, B, Lists::from([(A, vec![1])]))]);
        assert_eq!(verdict(&[first, refused, second, reader]), "right");
    }

    #[test]
    fn lost_updates_write_skew_and_phantoms_are_cycles() {
        let first = done(1, 0, TransactionEnd::Committed(1), append(A, &[], 1).into());
        let second = done(2, 0, TransactionEnd::Committed(2), append(A, &[], 2).into());
        assert!(verdict(&[first, second]).starts_with("G2"));
        let skew = |id, number, read: Key, write| {
            let steps = vec![Step::Read(read, None), Step::Wrote(write, Some(vec![id]))];
            done(id, 0, TransactionEnd::Committed(number), steps)
        };
        assert!(verdict(&[skew(1, 1, A, B), skew(2, 2, B, A)]).starts_with("G2"));
        let phantom = |id, number, write| {
            let steps = vec![Step::Scanned(A, B, Lists::new()), Step::Wrote(write, Some(vec![id]))];
            done(id, 0, TransactionEnd::Committed(number), steps)
        };
        assert!(verdict(&[phantom(1, 1, A), phantom(2, 2, B)]).starts_with("G2"));
        let mut weak = [skew(1, 1, A, B), skew(2, 2, B, A)];
        weak.iter_mut().for_each(|done| done.isolation = Isolation::Snapshot);
        assert_eq!(verdict(&weak), "right");
    }

    #[test]
    fn what_was_read_for_update_is_relied_on_at_each_isolation() {
        let first = done(1, 0, TransactionEnd::Committed(1), append(A, &[], 1).into());
        let second = |isolation, steps: &[Step]| {
            let all = done(2, 0, TransactionEnd::Committed(2), steps.to_vec());
            verdict(&[first.clone(), Done { isolation, ..all }])
        };
        let (write, own) = (Step::Wrote(B, Some(vec![2])), Step::Wrote(A, Some(vec![2])));
        let relied = "2 relies on None at (0, 0)";
        assert_eq!(second(Isolation::Snapshot, &[Step::Read(A, None), write.clone()]), "right");
        assert!(second(Isolation::Snapshot, &[Step::ReadForUpdate(A, None), write]).contains(relied));
        // A blind put of a key that it then reads for update.
        assert_eq!(second(Isolation::Serializable, &[own.clone(), Step::Read(A, Some(vec![2]))]), "right");
        let steps = [own, Step::ReadForUpdate(A, Some(vec![2]))];
        assert!(second(Isolation::Serializable, &steps).contains(relied));
    }

    #[test]
    fn dirty_and_old_reads_are_wrong() {
        let refused = done(1, 0, TransactionEnd::Nothing, append(A, &[], 1).into());
        let reader = done(2, 5, TransactionEnd::Committed(5), vec![Step::Read(A, Some(vec![1]))]);
        assert!(verdict(&[refused, reader]).starts_with("G1a"));
        let writer = done(1, 0, TransactionEnd::Committed(1), append(A, &[], 1).into());
        let reader = done(2, 5, TransactionEnd::Committed(5), vec![Step::Read(A, None)]);
        assert!(verdict(&[writer, reader]).contains("read None"));
    }

    #[test]
    fn an_ingest_is_behind_its_number_and_what_expires_at_once_is_seen_by_nobody_else() {
        let own = vec![Step::WroteExpired(A, vec![1]), Step::Read(A, Some(vec![1])), Step::Wrote(B, Some(vec![1]))];
        let first = done(1, 0, TransactionEnd::Committed(2), own);
        let ingest = done(2, 0, TransactionEnd::Ingested(5), vec![Step::Wrote(B, Some(vec![2]))]);
        let scan = |id, snapshot, found: Lists| {
            done(id, snapshot, TransactionEnd::Committed(snapshot), vec![Step::Scanned(A, B, found)])
        };
        let [old, new] = [1, 2].map(|id| Lists::from([(B, vec![id])]));
        assert_eq!(verdict(&[first.clone(), ingest.clone(), scan(3, 4, old.clone()), scan(4, 9, new)]), "right");
        assert!(verdict(&[first.clone(), ingest, scan(3, 9, old)]).contains("read Some([1])"));
        assert!(verdict(&[first, scan(3, 4, Lists::from([(A, vec![1]), (B, vec![1])]))]).contains("read Some([1])"));
    }

    #[test]
    fn what_was_put_and_deleted_again_was_never_there_for_others() {
        let put = done(1, 0, TransactionEnd::Committed(1), append(A, &[], 1).into());
        let delete = done(2, 1, TransactionEnd::Committed(2), vec![Step::Cleared(A, A)]);
        let steps = vec![Step::Read(A, None), Step::Wrote(B, Some(vec![3]))];
        assert_eq!(verdict(&[put, delete, done(3, 0, TransactionEnd::Committed(3), steps)]), "right");
    }
}
