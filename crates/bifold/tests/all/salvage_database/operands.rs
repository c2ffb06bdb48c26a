//! Salvage of keyspaces with merge operators: no operand twice, none out of order, and where one may be missing, the
//! report says so.

use bifold::{KeyspaceOptions, MergeOperator, MergeOperators};

use super::*;

/// An operator of the test's own: what is newer behind what is older.
fn joined() -> MergeOperator {
    MergeOperator::new("joined", |_, older, newer| Ok([older.unwrap_or_default(), newer].concat())).unwrap()
}

/// One part of a value of key `n`, which no other write has.
fn part(n: u64, step: u64, random: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
    format!("{n}.{step}.{};", "x".repeat(random(50) as usize)).into_bytes()
}

/// What a value consists of: keys and steps.
fn parts(value: &[u8]) -> Vec<(u64, u64)> {
    let text = std::str::from_utf8(value).unwrap();
    let part = |part: &str| {
        let mut fields = part.split('.').map(str::parse);
        (fields.next().unwrap().unwrap(), fields.next().unwrap().unwrap())
    };
    text.split_terminator(';').map(part).collect()
}

/// A database whose default keyspace has an operator, after random writes. It is reopened now and then.
fn merged(placement: PlacementKind, seed: u64) -> (Bed, History) {
    let mut options = small(placement);
    let is_own = seed % 4 < 2;
    options.keyspace.merge = Some(if is_own { joined() } else { MergeOperator::append() });
    options.merge_operators = MergeOperators::default().with(joined()).unwrap();
    let (mut bed, mut history, mut held) = (Bed::of(options), History::default(), Vec::new());
    let plain = KeyspaceOptions { merge: None, ..small(placement).keyspace };
    drop(bed.db().keyspace("other", plain).unwrap());
    let mut random = numbers(seed.wrapping_mul(0xD134_2543_DE82_EF95) + 5);
    for step in 0..900 {
        let (ks, n) = (bed.ks().clone(), random(90));
        let live = &mut history.live[0];
        match random(60) {
            0..=9 => {
                let value = part(n, step, &mut random);
                ks.put(key(n), &value).unwrap();
                live.insert(key(n), value);
            }
            10..=42 => {
                let operand = part(n, step, &mut random);
                ks.merge(key(n), &operand).unwrap();
                live.entry(key(n)).or_default().extend(operand);
            }
            43..=45 => {
                ks.delete(key(n)).unwrap();
                live.remove(&key(n));
            }
            46 => {
                ks.delete_range(key(n)..key(n + 5)).unwrap();
                live.retain(|k, _| !(key(n)..key(n + 5)).contains(k));
            }
            47..=49 => bed.db().flush().unwrap(),
            50..=51 => ks.compact_range(key(n)..key(n + 40)).unwrap(),
            52 => held.push(bed.db().snapshot()),
            53 if random(4) == 0 => held.clear(),
            54..=55 if random(3) == 0 => drop(bed.db().collect_garbage()),
            56 if random(4) == 0 => {
                let mut ingest = ks.ingest().unwrap();
                for n in n..n + 3 {
                    let value = part(n, step, &mut random);
                    ingest.put(key(n), &value).unwrap();
                    live.insert(key(n), value.clone());
                    history.written[0].insert((key(n), value));
                }
                ingest.finish().unwrap();
            }
            57 if random(6) == 0 => {
                held.clear();
                drop(ks);
                bed.reopen();
            }
            _ => {
                let space = bed.db().existing_keyspace("other").unwrap().unwrap();
                let value = part(n, step, &mut random);
                space.put(key(n), &value).unwrap();
                history.live[1].insert(key(n), value.clone());
                history.written[1].insert((key(n), value));
            }
        }
        let live = &history.live[0];
        history.written[0].extend(live.get(&key(n)).map(|value| (key(n), value.clone())));
    }
    drop(held);
    (bed, history)
}

#[derive(Debug, Default)]
struct OperandCounts {
    combined: u64,
    left_out: u64,
    lacking: u64,
    /// Of these, keys that have indeed a value that they never had.
    never_written: u64,
}

/// Where an operand may be missing, the others are there in their order, each once.
fn check_lacking(what: &str, history: &History, restored: &Restored, counts: &mut OperandCounts) {
    for said in &restored.report.keyspaces {
        counts.combined += said.combined;
        counts.left_out += said.operands;
        counts.lacking += said.may_lack_operands;
        assert_eq!(said.may_lack_operands, said.lacking_keys.len() as u64, "{what}");
        assert_eq!(said.operator_problem.is_some(), said.operands > 0, "{what}: {said:?}");
        for key in &said.lacking_keys {
            let value = &restored.spaces[&said.name][&key[..]];
            let found = parts(value);
            let is_in_order = found.is_sorted_by(|(_, a), (_, b)| a < b);
            let is_his = found.iter().all(|(n, _)| super::key(*n) == **key);
            assert!(is_in_order && is_his, "{what}: {}: {}", key.escape_ascii(), value.escape_ascii());
            counts.never_written += u64::from(!history.written[0].contains(&(key.to_vec(), value.clone())));
        }
    }
}

#[test]
fn operands_that_count_are_combined_and_others_are_reported() {
    let (mut counts, mut of_operands) = (Counts::default(), OperandCounts::default());
    for placement in PlacementKind::ALL {
        for seed in 0..8 {
            let what = format!("{placement:?} with operands, seed {seed}");
            let (bed, history) = merged(placement, seed);
            let (again, what_again) = (History { live: history.live.clone(), written: history.written.clone() }, what);
            damaged((bed, history), (what_again, seed), &mut counts, |what, restored| {
                check_lacking(what, &again, restored, &mut of_operands);
            });
        }
    }
    println!("{counts:?}, {of_operands:?}");
    let OperandCounts { combined, left_out, lacking, never_written } = of_operands;
    assert!(counts.damages > 500 && combined > 5000 && left_out > 200, "too little was damaged");
    assert!(lacking > 200 && never_written > 10, "too few operands were lost in logs");
}

/// Whatever else is damaged: logs that have every operation from the base on are enough.
#[test]
fn logs_alone_are_enough() {
    let mut options = small(PlacementKind::Inline);
    options.keyspace.merge = Some(MergeOperator::add_i64());
    let mut bed = Bed::of(options);
    let number = |n: i64| n.to_le_bytes();
    bed.ks().put("from a table", number(100)).unwrap();
    bed.ks().put("flushed", number(1000)).unwrap();
    bed.ks().merge("flushed", number(1)).unwrap();
    bed.db().flush().unwrap();
    for n in 1..=3 {
        bed.ks().merge("from a table", number(n)).unwrap();
        bed.ks().merge("flushed", number(n)).unwrap();
        bed.ks().merge("in the log", number(n)).unwrap();
    }
    let fs = bed.fs.fork();
    bed.db.take().unwrap().close().unwrap();
    let manifest = Path::new("/db/MANIFEST");
    let bytes = fs.read(manifest).unwrap();
    // The record of the creation is whole, nothing behind it is.
    let mut damaged = bytes.clone();
    let last = damaged.len() - 10;
    damaged[last] ^= 1;
    fs.write_durable(manifest, &damaged);
    let found = salvaged(&bed, &fs, 1 << 20);
    println!("{:?}", found.report);
    assert!(!found.report.manifest_is_whole);
}

/// What operands give, only their operator knows. The new keyspace has it, too.
#[test]
fn operands_of_an_unknown_operator_are_left_out_and_named() {
    let mut bed = Bed::new(PlacementKind::Inline);
    bed.options.merge_operators = MergeOperators::default().with(joined()).unwrap();
    bed.reopen();
    let with = KeyspaceOptions { merge: Some(joined()), ..bed.options.keyspace.clone() };
    let words = bed.db().keyspace("words", with).unwrap();
    words.put("put", "a").unwrap();
    words.put("merged", "a").unwrap();
    words.merge("merged", "b").unwrap();
    words.merge("put again", "a").unwrap();
    words.put("put again", "b").unwrap();
    let sums = KeyspaceOptions { merge: Some(MergeOperator::add_i64()), ..bed.options.keyspace.clone() };
    bed.db().keyspace("sums", sums).unwrap().merge("k", 5i64.to_le_bytes()).unwrap();
    drop(words);
    let fs = bed.fs.fork();
    bed.db.take().unwrap().close().unwrap();
    let known = salvaged(&bed, &fs, 1 << 20);
    let of = |found: &Restored, key: &str| found.spaces["words"].get(key.as_bytes()).cloned();
    assert_eq!(of(&known, "merged").as_deref(), Some(&b"ab"[..]));
    assert!(known.report.is_sound(), "{:?}", known.report);
    bed.options.merge_operators = MergeOperators::default();
    let found = salvaged(&bed, &fs, 1 << 20);
    assert_eq!(found.spaces["sums"][&b"k"[..]], 5i64.to_le_bytes());
    assert_eq!((of(&found, "put").unwrap(), of(&found, "put again").unwrap()), (b"a".to_vec(), b"b".to_vec()));
    assert_eq!(of(&found, "merged"), None);
    let report = found.report.keyspaces.iter().find(|keyspace| keyspace.name == "words").unwrap();
    assert_eq!((report.operands, report.lost_values, report.combined), (1, 1, 0), "{report:?}");
    assert_eq!(report.lost_keys, [Box::from(&b"merged"[..])]);
    assert_eq!(report.operator.as_deref(), Some("joined"));
    let why = report.operator_problem.as_deref().unwrap();
    assert!(why.contains("`joined`") && why.contains("SalvageOptions::merge_operators"), "{why}");
}

/// A keyspace has its operator from its creation on, or never.
#[test]
fn a_new_keyspace_has_the_operator_of_the_old_one() {
    let mut bed = Bed::new(PlacementKind::Inline);
    let sums = KeyspaceOptions { merge: Some(MergeOperator::add_i64()), ..bed.options.keyspace.clone() };
    let sums = bed.db().keyspace("sums", sums).unwrap();
    sums.merge("k", 5i64.to_le_bytes()).unwrap();
    drop(sums);
    bed.db.take().unwrap().close().unwrap();
    let salvage = DatabaseSalvage::open(&bed.env(), Path::new("/db"), &SalvageOptions::default()).unwrap();
    let mut options = small(PlacementKind::Inline);
    options.keyspace.ttl = Some(Duration::from_secs(1000));
    let to = Bed::of(options);
    salvage.restore(to.db(), |_| ()).unwrap();
    let sums = to.db().existing_keyspace("sums").unwrap().unwrap();
    sums.merge("k", 2i64.to_le_bytes()).unwrap();
    assert_eq!(sums.get("k").unwrap().as_deref(), Some(&7i64.to_le_bytes()[..]));
}

/// An operator may refuse what it is given.
#[test]
fn operands_that_cannot_be_combined_are_left_out() {
    let mut options = small(PlacementKind::Inline);
    options.keyspace.merge = Some(MergeOperator::add_i64());
    let mut bed = Bed::of(options);
    bed.ks().put("bad", "no number").unwrap();
    bed.ks().merge("bad", 1i64.to_le_bytes()).unwrap();
    bed.ks().merge("good", 1i64.to_le_bytes()).unwrap();
    let fs = bed.fs.fork();
    bed.db.take().unwrap().close().unwrap();
    let found = salvaged(&bed, &fs, 1 << 20);
    assert_eq!(found.spaces["default"].keys().collect::<Vec<_>>(), [b"good"]);
    let report = &found.report.keyspaces[0];
    assert_eq!((report.operands, report.combined), (1, 1));
    let why = report.operator_problem.as_deref().unwrap();
    assert!(why.contains("add_i64") && why.contains("9 bytes"), "{why}");
}
