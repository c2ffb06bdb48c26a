//! Salvage of keyspaces with merge operators: no operand twice, none out of order, and where one may be missing, the
//! report says so.

use bifold::{KeyspaceOptions, MergeOperator, MergeOperators, RetainChanges, salvage::RecoveredKeyspace};

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

/// A database whose default keyspace has an operator. Some keep their logs, which then have what was flushed, again.
fn with_operator(placement: PlacementKind, seed: u64) -> Bed {
    let mut options = small(placement);
    let is_own = seed % 4 < 2;
    options.keyspace.merge = Some(if is_own { joined() } else { MergeOperator::append() });
    options.merge_operators = MergeOperators::default().with(joined()).unwrap();
    options.retain_changes = (seed % 8 >= 4).then_some(RetainChanges { bytes: u64::MAX, age: None });
    let bed = Bed::of(options);
    let plain = KeyspaceOptions { merge: None, ..small(placement).keyspace };
    drop(bed.db().keyspace("other", plain).unwrap());
    bed
}

/// The same after random writes; it is reopened now and then. Those that keep their logs take no ingests.
fn merged(placement: PlacementKind, seed: u64) -> (Bed, History) {
    let (mut bed, mut history, mut held) = (with_operator(placement, seed), History::default(), Vec::new());
    let keeps_logs = bed.options.retain_changes.is_some();
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
            56 if random(4) == 0 && !keeps_logs => {
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
    /// Of these, keys that indeed have a value that they never had.
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
            damaged((bed, history), (what, seed), &mut counts, |what, history, restored| {
                check_lacking(what, history, restored, &mut of_operands);
            });
        }
    }
    println!("{counts:?}, {of_operands:?}");
    let OperandCounts { combined, left_out, lacking, .. } = of_operands;
    assert!(counts.damages > 500 && combined > 5000 && left_out > 500 && lacking > 200, "too little was damaged");
}

/// Sums, some of them in a table, with operands in a log above all of them: the disk of a killed process.
fn sums() -> (Bed, MemoryFs) {
    let mut options = small(PlacementKind::Inline);
    options.keyspace.merge = Some(MergeOperator::add_i64());
    let mut bed = Bed::of(options);
    let number = |n: i64| n.to_le_bytes();
    bed.ks().put("older", number(100)).unwrap();
    bed.ks().merge("newer", number(1000)).unwrap();
    bed.db().flush().unwrap();
    for n in 1..=3 {
        for key in ["newer", "older", "only logs"] {
            bed.ks().merge(key, number(n)).unwrap();
        }
    }
    drop(bed.db().keyspace("last edit", KeyspaceOptions::default()).unwrap());
    let fs = bed.fs.fork();
    bed.db.take().unwrap().close().unwrap();
    (bed, fs)
}

/// What the default keyspace has, and what is said of it.
fn sums_of(found: &Restored) -> (Vec<(&str, i64)>, &RecoveredKeyspace) {
    let entries = found.spaces["default"].iter();
    let number = |value: &Vec<u8>| i64::from_le_bytes(value[..].try_into().unwrap());
    let sums = entries.map(|(key, value)| (std::str::from_utf8(key).unwrap(), number(value))).collect();
    (sums, &found.report.keyspaces[0])
}

/// Flips a bit of the `n`-th place where a log has these bytes.
fn flip_in_log(fs: &MemoryFs, bytes: &[u8], n: usize) {
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    for path in files(fs).into_iter().filter(is_log) {
        let mut log = fs.read(&path).unwrap();
        let places = (0..log.len()).filter(|&at| log[at..].starts_with(bytes));
        if let Some(at) = places.collect::<Vec<_>>().get(n) {
            log[*at] ^= 1;
            return fs.write_durable(&path, &log);
        }
    }
    panic!("no log has {}", bytes.escape_ascii());
}

/// Replaced tables may have the same operands again. But a value is true wherever it is, and so are the operands that
/// logs have above it, if these have all.
#[test]
fn without_a_manifest_logs_alone_say_which_operands_count() {
    let (bed, fs) = sums();
    let manifest = Path::new("/db/MANIFEST");
    let mut bytes = fs.read(manifest).unwrap();
    let at = bytes.len() - 10;
    bytes[at] ^= 1;
    fs.write_durable(manifest, &bytes);
    let found = salvaged(&bed, &fs, 1 << 20);
    let (sums, report) = sums_of(&found);
    assert!(!found.report.manifest_is_whole);
    // Of the others, operands may have been in logs that are gone.
    assert_eq!(sums, [("newer", 1006)]);
    assert_eq!((report.operands, report.combined, report.may_lack_operands), (2, 1, 0), "{report:?}");
    assert_eq!(report.lost_keys, [Box::from(&b"older"[..]), Box::from(&b"only logs"[..])]);
}

/// Logs repeat operands that a flush has combined, and are asked for them once a table is damaged.
#[test]
fn operands_that_were_flushed_are_not_taken_from_logs_again() {
    let mut options = small(PlacementKind::WiscKey);
    options.keyspace.merge = Some(MergeOperator::append());
    options.retain_changes = Some(RetainChanges { bytes: u64::MAX, age: None });
    let mut bed = Bed::of(options);
    bed.ks().put("another", "value").unwrap();
    bed.db().flush().unwrap();
    let base = "b".repeat(200);
    bed.ks().put("k", &base).unwrap();
    ["1", "2", "3"].iter().for_each(|operand| bed.ks().merge("k", operand).unwrap());
    bed.db().flush().unwrap();
    bed.ks().merge("k", "4").unwrap();
    let fs = bed.fs.fork();
    bed.db.take().unwrap().close().unwrap();
    let path = files(&fs).into_iter().find(|path| path.extension().is_some_and(|e| e == "tbl")).unwrap();
    let mut bytes = fs.read(&path).unwrap();
    let at = bytes.windows(7).position(|bytes| bytes == b"another").unwrap();
    bytes[at] ^= 1;
    fs.write_durable(&path, &bytes);
    let found = salvaged(&bed, &fs, 1 << 20);
    assert!(!found.report.is_sound());
    let value = &found.spaces["default"][&b"k"[..]];
    assert_eq!(value.escape_ascii().to_string(), base + "1234");
    assert_eq!(found.report.keyspaces[0].may_lack_operands, 0);
}

/// A record that is lost between operands may have been one, or a put or delete. Behind them it only makes them older.
#[test]
fn a_lost_record_between_operands_is_reported_for_each_key() {
    let (bed, fs) = sums();
    let (middle, end) = (fs.fork(), fs.fork());
    assert_eq!(sums_of(&salvaged(&bed, &fs, 1 << 20)).0, [("newer", 1006), ("older", 106), ("only logs", 6)]);
    flip_in_log(&middle, b"only logs", 1);
    let found = salvaged(&bed, &middle, 1 << 20);
    let (sums, report) = sums_of(&found);
    assert_eq!(sums, [("newer", 1006), ("older", 106), ("only logs", 4)]);
    assert_eq!((report.combined, report.may_lack_operands, report.operands), (3, 3, 0), "{report:?}");
    assert_eq!(report.lacking_keys.len(), 3, "{report:?}");
    flip_in_log(&end, b"only logs", 2);
    let found = salvaged(&bed, &end, 1 << 20);
    let (sums, report) = sums_of(&found);
    assert_eq!(sums, [("newer", 1006), ("older", 106), ("only logs", 3)]);
    assert_eq!((report.combined, report.may_lack_operands, report.may_be_older), (3, 0, 3), "{report:?}");
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

#[test]
fn operands_above_a_large_value_are_combined_with_it() {
    let mut options = small(PlacementKind::WiscKey);
    options.keyspace.merge = Some(MergeOperator::append());
    let mut bed = Bed::of(options);
    let large = vec![b'l'; 100_000];
    for key in ["whole", "damaged"] {
        bed.ks().put_reader(key, &large[..]).unwrap();
        bed.ks().merge(key, "end").unwrap();
    }
    let fs = bed.fs.fork();
    bed.db.take().unwrap().close().unwrap();
    let is_large = |path: &PathBuf| fs.read(path).unwrap().len() > large.len();
    let path = fs.files().into_iter().filter(is_large).max().expect("a file of each large value");
    let mut bytes = fs.read(&path).unwrap();
    bytes[50_000] ^= 1;
    fs.write_durable(&path, &bytes);
    let found = salvaged(&bed, &fs, 1 << 20);
    assert_eq!(found.spaces["default"].keys().collect::<Vec<_>>(), [b"whole"]);
    assert!(found.spaces["default"][&b"whole"[..]] == [&large[..], b"end"].concat());
    assert_eq!(found.report.keyspaces[0].lost_keys, [Box::from(&b"damaged"[..])]);
}
