//! Sizes at and beyond the limits.

use bifold::{Db, Error, MAX_KEY_LEN, MAX_VALUE_LEN, Options};

use crate::support::{TempDir, keys, tiny_db};

#[test]
fn the_longest_key_is_fine_and_a_longer_or_empty_one_is_a_clear_error() {
    let (_dir, db) = tiny_db();
    let longest = vec![b'k'; MAX_KEY_LEN];
    db.put(&longest, "v").unwrap();
    db.flush().unwrap();
    assert_eq!(db.get(&longest).unwrap().unwrap(), "v");
    for key in [vec![], vec![b'k'; MAX_KEY_LEN + 1]] {
        let error = db.put(&key, "v").unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(matches!(db.delete(&key), Err(Error::InvalidArgument { .. })));
        assert!(matches!(db.compare_and_swap(&key, None, Some(b"v")), Err(Error::InvalidArgument { .. })));
        assert_eq!(db.get(&key).unwrap(), None);
    }
    assert_eq!(db.iter().count(), 1);
}

#[test]
fn a_value_longer_than_the_limit_is_a_clear_error() {
    let (_dir, db) = tiny_db();
    // Zeroed memory that is never touched costs nothing.
    let too_long = vec![0; MAX_VALUE_LEN + 1];
    let error = db.put("k", &too_long).unwrap_err();
    assert!(error.to_string().contains("longest value"), "{error}");
    assert_eq!(db.get("k").unwrap(), None);
}

#[test]
fn a_value_larger_than_memtable_block_and_table_comes_back() {
    let (dir, db) = tiny_db();
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n >> 3) as u8).collect();
    db.put("large", &large).unwrap();
    db.put("small", "s").unwrap();
    assert_eq!(db.get("large").unwrap().unwrap(), large);
    db.compact().unwrap();
    assert_eq!(db.get("large").unwrap().unwrap(), large);
    drop(db);
    let db = Db::open_with(dir.join("db"), crate::support::tiny()).unwrap();
    assert_eq!(db.get("large").unwrap().unwrap(), large);
    assert_eq!(keys(db.iter()), ["large", "small"]);
}

#[test]
fn unusable_options_are_refused_before_anything_is_made() {
    let dir = TempDir::new();
    let options = Options { memory_limit: 5, ..Options::default() };
    let error = Db::open_with(dir.join("db"), options).unwrap_err();
    assert!(error.to_string().contains("memory_limit"), "{error}");
    assert!(!dir.join("db").exists());
}

#[test]
fn memory_stays_within_the_limit() {
    let dir = TempDir::new();
    let options = Options { memory_limit: 2 << 20, memtable_bytes: 64 << 20, ..crate::support::tiny() };
    let db = Db::open_with(dir.join("db"), options).unwrap();
    for number in 0..6000u32 {
        db.put(number.to_be_bytes(), [7; 900]).unwrap();
        if number % 500 == 0 {
            db.get((number / 2).to_be_bytes()).unwrap();
            let memory = db.stats().memory;
            let used = memory.memtables + memory.cache + memory.metadata + memory.compaction;
            assert!(used <= memory.limit, "{memory:?}");
        }
    }
}
