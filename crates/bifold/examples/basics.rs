//! Put, get, delete; ranges and prefixes, forwards and backwards.
//!
//! ```sh
//! cargo run -p bifold --example basics
//! ```

use bifold::{Db, Result};

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("bifold-basics-{}", std::process::id()));
    let db = Db::open(&dir)?;
    println!("opened {}", dir.display());

    db.put("apple", "red")?;
    db.put("apple", "green")?;
    let apple = db.get("apple")?;
    println!("apple is {:?}", apple.as_deref().map(|value| value.escape_ascii().to_string()));
    assert_eq!(apple.as_deref(), Some(&b"green"[..]));

    db.delete("apple")?;
    println!("after delete, apple is there: {}", db.contains_key("apple")?);
    assert_eq!(db.get("apple")?, None);

    for (key, value) in [("user/ada", "1815"), ("user/alan", "1912"), ("user/grace", "1906"), ("visits", "3")] {
        db.put(key, value)?;
    }
    // Keys are bytes, stored in order: a range is a walk over neighbours, from either end.
    println!("users:");
    let mut users = Vec::new();
    for pair in db.prefix("user/") {
        let (key, value) = pair?.into_parts()?;
        println!("  {} = {}", key.escape_ascii(), value.escape_ascii());
        users.push(key);
    }
    assert_eq!(users.len(), 3);
    let last = db.range("user/".."user/b").next_back().transpose()?;
    let last = last.map(|pair| pair.key().to_vec());
    println!("the last user before b: {:?}", last.as_deref().map(|key| key.escape_ascii().to_string()));
    assert_eq!(last.as_deref(), Some(&b"user/alan"[..]));

    // One record, however many keys it deletes.
    db.delete_range("user/".."user0")?;
    let left = db.iter().count();
    println!("after deleting all users, {left} key remains");
    assert_eq!(left, 1);

    // What was acknowledged is still there after reopening. `close` returns the error of the last sync; a drop
    // ignores it.
    db.close()?;
    let db = Db::open(&dir)?;
    assert_eq!(db.get("visits")?.as_deref(), Some(&b"3"[..]));
    println!("reopened: visits is still there");
    db.close()?;
    std::fs::remove_dir_all(dir).ok();
    Ok(())
}
