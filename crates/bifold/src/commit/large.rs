//! Large values on their way in. Page: `docs/large-values.md`.
//!
//! ```text
//! source ─▶ a chunk in memory ─┬─ it is all, and small ─▶ a put like any other
//!                              └─▶ NNNNNN.large, chunk by chunk ─▶ sync file and directory ─▶ commit: key ─▶ file
//!                                  without the commit lock
//! ```
//!
//! **Order.** The file is durable, with its name, before any log or table names it. So whatever survives of the commit
//! leads to a whole value.
//!
//! **Invariant.** Until the commit lock is held, nobody knows of the file, and it is deleted after any error. From then
//! on its entry may be in the log, whatever the commit returns: the file stays, and if the log has not got the entry,
//! the next opening deletes it.

use std::{io::Read, sync::Arc};

use bifold_contract::{Error, MAX_VALUE_LEN, Result, key::check_key, planted};
use bifold_format::large::{self, CHUNK_BYTES};

use crate::{
    commit::write::Committer,
    settings::options::Durability,
    state::{
        op::{Act, Op},
        tree::Tree,
    },
};

/// Values of at most so many bytes are put like any other: a file of its own would cost more.
pub(crate) const SMALL_BYTES: usize = 64 << 10;

/// Puts what `source` has until its end as the value of `key`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a key or a value that is too long, and where large values cannot be; those of
/// `source`; I/O errors and every reason to refuse writes. Nothing is changed then, as far as for any commit.
pub(crate) fn put_large(
    committer: &Committer,
    tree: &Arc<Tree>,
    key: &[u8],
    source: &mut dyn Read,
    durability: Durability,
) -> Result<()> {
    check_key(key)?;
    check_allowed(committer, tree)?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES as usize);
    let mut is_all = read_chunk(committer, source, &mut chunk)?;
    if is_all && chunk.len() <= SMALL_BYTES {
        let put = Op { tree, key, act: Act::Put(&chunk) };
        let made = committer.commit_if(&[put], durability, &mut || check_lasting(tree).map(|()| true))?;
        return committed(made, tree);
    }
    let files = tree.placement();
    let mut writer = files.large().create(key)?;
    let mut len = 0;
    loop {
        len += chunk.len() as u64;
        if len > MAX_VALUE_LEN as u64 {
            let reason = format!("it is longer than the longest value, {MAX_VALUE_LEN} bytes");
            return Err(Error::invalid("value", reason));
        }
        committer.health.takes_writes()?;
        let (put, bytes) = (Op { tree, key, act: Act::Put(&[]) }, chunk.len() as u64);
        let own = if planted!("large_bytes_postpone_looks") { len } else { 0 };
        let _has_looked = committer.room.admit(&[put], bytes, committer.counters.user_bytes_written() + own)?;
        writer.append(&chunk)?;
        committer.room.appended(bytes);
        if is_all {
            break;
        }
        is_all = read_chunk(committer, source, &mut chunk)?;
        if chunk.is_empty() {
            break;
        }
    }
    drop(chunk);
    let named = writer.finish()?;
    // After a failed sync the directory is never synced again.
    committer.health.watch(committer.state.dir.sync())?;
    let mut encoded = Vec::new();
    large::encode(named, &mut encoded);
    let put = Op { tree, key, act: Act::Large(&encoded, named.len) };
    let made = committer.commit_if(&[put], durability, &mut || {
        // Under the commit lock none is dropped.
        if tree.is_dropped() {
            return Ok(false);
        }
        // The source may have taken long, and the keyspace may have got one meanwhile.
        check_lasting(tree)?;
        files.large().refer(named, key.len());
        writer.keep();
        Ok(true)
    })?;
    committed(made, tree)
}

fn committed(made: Option<u64>, tree: &Tree) -> Result<()> {
    made.map(drop).ok_or_else(|| Error::Closed { what: format!("keyspace `{}`", tree.name) })
}

fn check_allowed(committer: &Committer, tree: &Tree) -> Result<()> {
    committer.health.takes_writes()?;
    tree.readable(&committer.health)?;
    check_lasting(tree)
}

/// Checks that values of the keyspace do not expire by its options.
fn check_lasting(tree: &Tree) -> Result<()> {
    if tree.view().settings.options.ttl.is_some() {
        let name = &tree.name;
        let reason = format!("keyspace `{name}` has a `ttl`, and values of `put_reader` do not expire: use `put`");
        return Err(Error::invalid("put_reader", reason));
    }
    Ok(())
}

/// Reads the next chunk. Returns whether the source has ended.
fn read_chunk(committer: &Committer, source: &mut dyn Read, chunk: &mut Vec<u8>) -> Result<bool> {
    chunk.clear();
    let read = source.take(CHUNK_BYTES).read_to_end(chunk);
    let failed = |error| Error::io("read from the given reader a value for", committer.state.dir.path(), error);
    Ok((read.map_err(failed)? as u64) < CHUNK_BYTES)
}
