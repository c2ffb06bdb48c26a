//! Merge operators, with every placement.

use std::{collections::BTreeMap, ops::ControlFlow, path::Path, sync::Arc, time::Duration};

use bifold::{
    Batch, Db, Durability, Env, Error, KeyspaceOptions, MergeOperator, MergeOperators, PlacementKind, Range, Snapshot,
    TransactionOptions,
};
use bifold_io::memory::Fate;

use crate::{
    bed::{Bed, numbers},
    support::{check_iterators, entries},
};

/// What the keys of one number have.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(1 + (n % 60) as usize)
}

fn operand(round: u32) -> Vec<u8> {
    format!("+{round}").into_bytes()
}

/// A database whose default keyspace appends: the order of operands shows.
fn bed(placement: PlacementKind) -> Bed {
    let mut bed = Bed::new(placement);
    bed.begin_with(MergeOperator::append());
    bed
}

fn merged(model: &mut Model, key: Vec<u8>, operand: &[u8]) {
    model.entry(key).or_default().extend_from_slice(operand);
}

struct History {
    bed: Bed,
    model: Model,
    held: Vec<(Snapshot, Model)>,
}

impl History {
    fn step(&mut self, step: u32, random: &mut impl FnMut(u64) -> u64) {
        let n = random(60) as u32;
        let ks = self.bed.ks().clone();
        match random(30) {
            0..=11 => {
                ks.merge(key(n), operand(step)).unwrap();
                merged(&mut self.model, key(n), &operand(step));
            }
            12..=17 => {
                ks.put(key(n), value(n, step)).unwrap();
                self.model.insert(key(n), value(n, step));
            }
            18 => {
                ks.delete(key(n)).unwrap();
                self.model.remove(&key(n));
            }
            19 => {
                ks.delete_range(key(n)..key(n + 6)).unwrap();
                self.model.retain(|other, _| *other < key(n) || *other >= key(n + 6));
            }
            20 => self.batch(n, step),
            21 => self.transaction(n, step),
            22 | 23 => self.bed.db().flush().unwrap(),
            24 => ks.compact_range(key(n)..key(n + 20)).unwrap(),
            25 if random(3) == 0 => self.bed.db().compact().unwrap(),
            26 => self.bed.db().collect_garbage().unwrap(),
            27 => self.held.push((self.bed.db().snapshot(), self.model.clone())),
            28 if !self.held.is_empty() => drop(self.held.swap_remove(random(self.held.len() as u64) as usize)),
            29 if random(4) == 0 => {
                drop(ks);
                self.held.clear();
                self.bed.reopen();
            }
            _ => {}
        }
    }

    fn batch(&mut self, n: u32, step: u32) {
        let ks = self.bed.ks();
        let mut batch = Batch::new();
        batch.merge(ks, key(n), operand(step)).unwrap();
        batch.put(ks, key(n + 1), value(n, step)).unwrap();
        batch.merge(ks, key(n + 1), b"!").unwrap().merge(ks, key(n + 1), b"?").unwrap();
        self.bed.db().commit(batch).unwrap();
        merged(&mut self.model, key(n), &operand(step));
        self.model.insert(key(n + 1), [&value(n, step)[..], b"!?"].concat());
    }

    fn transaction(&mut self, n: u32, step: u32) {
        let ks = self.bed.ks();
        let mut tx = self.bed.db().transaction();
        tx.merge(ks, key(n), operand(step)).unwrap();
        tx.merge(ks, key(n), b"t").unwrap();
        tx.delete(ks, key(n + 2)).unwrap();
        tx.merge(ks, key(n + 2), b"new").unwrap();
        merged(&mut self.model, key(n), &[&operand(step)[..], b"t"].concat());
        self.model.insert(key(n + 2), b"new".to_vec());
        assert_eq!(tx.get(ks, key(n)).unwrap().as_deref(), self.model.get(&key(n)).map(Vec::as_slice));
        let seen: Model = entries(tx.range(ks, key(n)..key(n + 3))).into_iter().collect();
        assert_eq!(seen, self.model.range(key(n)..key(n + 3)).map(|(k, v)| (k.clone(), v.clone())).collect::<Model>());
        let many = tx.multi_get(ks, [key(n), key(n + 2)]).unwrap();
        assert_eq!(many[1].as_deref(), Some(&b"new"[..]));
        assert_eq!(many[0].as_deref(), self.model.get(&key(n)).map(Vec::as_slice));
        tx.commit().unwrap();
    }

    fn check(&self, what: &str) {
        let ks = self.bed.ks();
        let all: Vec<_> = self.model.clone().into_iter().collect();
        check_iterators(ks, &all, what);
        let keys: Vec<_> = (0..66).map(key).collect();
        let many = ks.multi_get(&keys).unwrap();
        for (key, found) in keys.iter().zip(many) {
            let expected = self.model.get(key).map(Vec::as_slice);
            assert_eq!(found.as_deref(), expected, "{what}: multi_get");
            assert_eq!(ks.get(key).unwrap().as_deref(), expected, "{what}: get");
            assert_eq!(ks.contains_key(key).unwrap(), expected.is_some(), "{what}: contains_key");
        }
        for (snapshot, model) in &self.held {
            let all: Vec<_> = model.clone().into_iter().collect();
            assert_eq!(entries(snapshot.iter(ks)), all, "{what}: a snapshot");
        }
    }
}

fn history(placement: PlacementKind, seed: u64) {
    let mut random = numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut history = History { bed: bed(placement), model: Model::new(), held: Vec::new() };
    for step in 0..400 {
        history.step(step, &mut random);
        if step % 10 == 0 {
            history.check(&format!("{placement:?}, seed {seed}, step {step}"));
        }
    }
    history.held.clear();
    history.bed.db().compact().unwrap();
    history.check("compacted");
    history.bed.db().collect_garbage().unwrap();
    history.check("without garbage");
    history.bed.db.take().unwrap().close().unwrap();
    let report = bifold::verify_in(&history.bed.env(), Path::new("/db"), |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{placement:?}: {:?}", report.problems);
    history.bed.reopen();
    history.check("at the end");
}

#[test]
fn random_histories_are_those_of_the_model() {
    for placement in PlacementKind::ALL {
        (0..6).for_each(|seed| history(placement, seed));
    }
}

/// After a power loss there is what was acknowledged, and nothing but whole commits.
#[test]
fn a_power_loss_keeps_operands() {
    for placement in PlacementKind::ALL {
        for seed in 0..4 {
            let mut random = numbers(seed + 77);
            let mut bed = bed(placement);
            bed.options.durability = Durability::Sync;
            bed.reopen();
            let mut model = Model::new();
            for step in 0..200 {
                let n = random(20) as u32;
                match random(12) {
                    0..=6 => {
                        bed.ks().merge(key(n), operand(step)).unwrap();
                        merged(&mut model, key(n), &operand(step));
                    }
                    7..=9 => {
                        bed.ks().put(key(n), value(n, step)).unwrap();
                        model.insert(key(n), value(n, step));
                    }
                    10 => bed.db().flush().unwrap(),
                    _ => bed.db().collect_garbage().unwrap(),
                }
                if step % 40 == 39 {
                    let fate = if random(2) == 0 { Fate::DropUnsynced } else { Fate::Random(seed) };
                    let env = Env { fs: Arc::new(bed.fs.power_loss(fate)), ..bed.env() };
                    let db = Db::open_in(env, "/db", bed.options.clone()).unwrap();
                    let all: Vec<_> = model.clone().into_iter().collect();
                    assert_eq!(entries(db.default_keyspace().iter()), all, "{placement:?}, seed {seed}, step {step}");
                }
            }
        }
    }
}

fn with_operator(operator: MergeOperator) -> KeyspaceOptions {
    KeyspaceOptions { merge: Some(operator), ..KeyspaceOptions::default() }
}

#[test]
fn an_operator_is_recorded_and_stays() {
    let mut bed = Bed::new(PlacementKind::Inline);
    assert!(bed.ks().merge("k", "v").unwrap_err().to_string().contains("no merge operator"));
    let ks = bed.db().keyspace("counts", with_operator(MergeOperator::add_i64())).unwrap();
    ks.merge("k", 5i64.to_le_bytes()).unwrap();
    let other = ks.set_options(with_operator(MergeOperator::append())).unwrap_err().to_string();
    assert!(other.contains("`add_i64`") && other.contains("counts"), "{other}");
    assert!(ks.set_options(KeyspaceOptions { table_bytes: 1 << 20, ..KeyspaceOptions::default() }).is_err());
    let refuses = |error: Error| assert!(error.to_string().contains("`counts` has a merge operator"), "{error}");
    let (mut batch, mut transaction, second) = (Batch::new(), bed.db().transaction(), Duration::from_secs(1));
    refuses(ks.put_with_ttl("k", "v", second).unwrap_err());
    refuses(batch.put_with_ttl(&ks, "k", "v", second).unwrap_err());
    refuses(transaction.put_with_ttl(&ks, "k", "v", second).unwrap_err());
    assert!(batch.is_empty());
    transaction.commit().unwrap();
    assert!(ks.set_options(KeyspaceOptions { ttl: Some(Duration::from_secs(1)), ..ks.options() }).is_err());
    let expiring = bed.db().keyspace("expiring", KeyspaceOptions::default()).unwrap();
    expiring.put_with_ttl("k", "v", Duration::from_secs(1)).unwrap();
    let refused = expiring.set_options(with_operator(MergeOperator::append())).unwrap_err().to_string();
    assert!(refused.contains("no merge operator") && refused.contains("`append`"), "{refused}");
    drop((ks, expiring));
    bed.reopen();
    let ks = bed.db().keyspace("counts", KeyspaceOptions::default()).unwrap();
    ks.merge("k", 2i64.to_le_bytes()).unwrap();
    assert_eq!(ks.get("k").unwrap().as_deref(), Some(&7i64.to_le_bytes()[..]));
}

fn longest() -> MergeOperator {
    let longer = |_: &[u8], older: Option<&[u8]>, newer: &[u8]| {
        let is_any = |bad: &[u8]| older == Some(bad) || newer == bad;
        assert!(!is_any(b"panic"), "a panic of the operator's");
        if is_any(b"error") {
            return Err("an error of the operator's".to_owned());
        }
        Ok(older.filter(|older| older.len() >= newer.len()).unwrap_or(newer).to_vec())
    };
    MergeOperator::new("longest", longer).unwrap()
}

#[test]
fn a_users_operator_must_be_registered() {
    let mut bed = Bed::new(PlacementKind::WiscKey);
    let unknown = bed.db().keyspace("words", with_operator(longest())).unwrap_err().to_string();
    assert!(unknown.contains("words") && unknown.contains("longest") && unknown.contains("merge_operators"));
    bed.options.merge_operators = MergeOperators::default().with(longest()).unwrap();
    bed.reopen();
    let ks = bed.db().keyspace("words", with_operator(longest())).unwrap();
    for word in ["a", "abc", "ab"] {
        ks.merge("k", word).unwrap();
    }
    assert_eq!(ks.get("k").unwrap().as_deref(), Some(&b"abc"[..]));
    drop(ks);
    bed.db.take().unwrap().close().unwrap();
    let operators = std::mem::take(&mut bed.options.merge_operators);
    let missing = Db::open_in(bed.env(), "/db", bed.options.clone()).unwrap_err().to_string();
    assert!(missing.contains("words") && missing.contains("longest") && missing.contains("merge_operators"));
    // Who only looks after it needs no function: nothing is lost, and nothing can be read that has operands.
    bed.options.merge_operators = MergeOperators::default().or_unknown();
    bed.reopen();
    let ks = bed.db().existing_keyspace("words").unwrap().unwrap();
    ks.put("whole", "value").unwrap();
    ks.merge("k", "abcd").unwrap();
    bed.db().compact().unwrap();
    assert_eq!(ks.get("whole").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(ks.get("k").unwrap_err().to_string().contains("`longest`"));
    drop(ks);
    bed.options.merge_operators = operators;
    bed.reopen();
    let ks = bed.db().keyspace("words", KeyspaceOptions::default()).unwrap();
    assert_eq!(ks.get("k").unwrap().as_deref(), Some(&b"abcd"[..]));
}

#[test]
fn an_operator_that_fails_loses_nothing() {
    for placement in PlacementKind::ALL {
        for bad in ["error", "panic"] {
            let mut bed = Bed::new(placement);
            bed.options.merge_operators = MergeOperators::default().with(longest()).unwrap();
            bed.begin_with(longest());
            bed.ks().put("k", [b'x'; 100]).unwrap();
            bed.ks().put("other", [b'y'; 100]).unwrap();
            bed.db().flush().unwrap();
            bed.ks().merge("k", bad).unwrap();
            bed.ks().merge("k", [b'z'; 120]).unwrap();
            bed.db().flush().unwrap();
            bed.db().compact().unwrap();
            bed.db().collect_garbage().unwrap();
            let error = bed.ks().get("k").unwrap_err();
            assert!(matches!(&error, Error::Merge { key, operator, .. } if **key == *b"k" && operator == "longest"));
            assert!(error.to_string().contains("default"), "{error}");
            assert!(bed.ks().contains_key("k").unwrap());
            assert!(bed.ks().iter().any(|pair| pair.is_err()));
            bed.ks().put("k", "better").unwrap();
            bed.ks().merge("k", "much better").unwrap();
            bed.db().compact().unwrap();
            assert_eq!(bed.ks().get("k").unwrap().as_deref(), Some(&b"much better"[..]));
            assert_eq!(bed.ks().get("other").unwrap().unwrap().len(), 100);
        }
    }
}

/// Entries before the one that fails come from both ends, and then the error and nothing more, whatever was read ahead.
#[test]
fn an_iterator_ends_with_an_operand_that_fails() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        bed.options.merge_operators = MergeOperators::default().with(longest()).unwrap();
        bed.begin_with(longest());
        for n in 0..20 {
            bed.ks().put(key(n), [b'x'; 100]).unwrap();
        }
        bed.ks().merge(key(10), "error").unwrap();
        for from_back in [false, true] {
            let mut range = bed.ks().iter();
            let at_front = entries((0..3).map(|_| range.next().unwrap()));
            let at_back = entries((0..3).map(|_| range.next_back().unwrap()));
            let next = |range: &mut Range| if from_back { range.next_back() } else { range.next() };
            let more: Vec<_> = std::iter::from_fn(|| next(&mut range)?.ok()).collect();
            assert_eq!((at_front.len(), at_back.len(), more.len()), (3, 3, if from_back { 6 } else { 7 }));
            assert!(
                range.next().is_none() && range.next_back().is_none(),
                "{placement:?}, {from_back}: after the error"
            );
        }
        let mut visited = 0;
        let outcome = bed.ks().iter().visit(|_, _| {
            visited += 1;
            ControlFlow::Continue(())
        });
        assert!(matches!(outcome, Err(Error::Merge { .. })) && visited == 10, "{placement:?}: {outcome:?}, {visited}");
    }
}

#[test]
fn transactions_that_only_merge_do_not_conflict() {
    let bed = bed(PlacementKind::Inline);
    let ks = bed.ks();
    ks.put("k", "a").unwrap();
    let mut first = bed.db().transaction();
    let mut second = bed.db().transaction();
    first.merge(ks, "k", "b").unwrap();
    second.merge(ks, "k", "c").unwrap();
    assert_eq!(second.get_for_update(ks, "other").unwrap(), None);
    first.commit().unwrap();
    second.commit().unwrap();
    assert_eq!(ks.get("k").unwrap().as_deref(), Some(&b"abc"[..]));
    // Who has read the value depends on it.
    let mut third = bed.db().transaction_with(TransactionOptions::default());
    third.merge(ks, "k", "d").unwrap();
    assert_eq!(third.get(ks, "k").unwrap().as_deref(), Some(&b"abcd"[..]));
    ks.merge("k", "x").unwrap();
    assert!(third.commit().unwrap_err().is_conflict());
}

/// A flush leaves one operand of many, and a whole compaction one value.
#[test]
fn operands_are_combined_on_the_way() {
    let bed = bed(PlacementKind::Inline);
    bed.ks().put("k", "0").unwrap();
    bed.db().flush().unwrap();
    for n in 1..50 {
        bed.ks().merge("k", n.to_string()).unwrap();
    }
    bed.db().flush().unwrap();
    assert_eq!(bed.ks().approximate_len().unwrap(), 2, "a value and one operand");
    bed.db().compact().unwrap();
    assert_eq!(bed.ks().approximate_len().unwrap(), 1);
    assert_eq!(bed.ks().get("k").unwrap().unwrap().len(), 1 + 9 + 2 * 40);
}
