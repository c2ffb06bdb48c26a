//! `changes`: the change feed.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bifold::{Access, Change, ChangeKind};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    formats::{base64, escape},
    global::Global,
    open,
    output::Output,
};

pub const LONG_ABOUT: &str = "\
Print what has changed, one operation per line, in the order of commits: its number, the keyspace, put, merge, delete \
or delete_range, KEY, and the VALUE, the operand or the first key after the range, with tabs between and the escapes \
\\\\ \\t \\n \\r and \\xHH. With --json, one object per line, which also says when an entry expires and which \
operation ends its commit.

Without --keyspace, all keyspaces are printed. With it, only the operations of that one: others do not count for \
--limit, and `ends_commit` marks the last operation that is printed of a commit.

--since goes on after a number that was printed before. If the changes behind it are gone, the error names the first \
one that is there.

A database keeps changes from the moment on when it is opened with the option retain_changes. Another process may be \
writing to it.";

pub const EXAMPLES: &str = "Examples:
  bifold put my.db a 1 --set retain_changes.bytes=1GiB
  bifold changes my.db
  bifold changes my.db --since 1042 --json
  bifold changes my.db --keyspace users --follow";

#[derive(Args, Debug)]
pub struct ChangesArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// Only changes after the one with this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub since: u64,
    /// Stop at the end of the commit in which this many operations have been printed; 0 prints none.
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u64>,
    /// Wait for further commits of another process and print them, until interrupted.
    #[arg(long)]
    pub follow: bool,
}

/// `bifold changes`
pub fn run(args: &ChangesArgs, global: &Global, out: &mut Output) -> Result<()> {
    // Without `--follow`, a database that nobody writes may be on a disk that cannot be written.
    let access = if args.follow { Access::Follow } else { Access::ReadOnly };
    let (mut db, keyspace) = open::existing_keyspace(&args.db, global, access)?;
    let only = global.names_keyspace.then(|| keyspace.name());
    let mut lines = ChangeLines { json: global.json, last: None, printed: 0 };
    let mut seen = args.since;
    loop {
        let changes = db.changes(seen)?;
        if args.limit == Some(0) {
            return Ok(());
        }
        for change in changes {
            let change = change?;
            let ends_commit = change.ends_commit;
            seen = change.seqno;
            if only.is_none() || change.keyspace.as_deref() == only {
                lines.push(change, out)?;
            }
            if ends_commit {
                lines.end_commit(out)?;
                if args.limit.is_some_and(|limit| lines.printed >= limit) {
                    return out.flush();
                }
            }
        }
        out.flush()?;
        if !args.follow {
            return Ok(());
        }
        db.refresh_within(Duration::MAX)?;
    }
}

/// The lines of the output. That of a change waits for the next one of its commit, or for the end of the commit.
struct ChangeLines {
    json: bool,
    last: Option<Change>,
    printed: u64,
}

impl ChangeLines {
    fn push(&mut self, change: Change, out: &mut Output) -> Result<()> {
        match self.last.replace(change) {
            Some(before) => self.write(&before, out),
            None => Ok(()),
        }
    }

    fn end_commit(&mut self, out: &mut Output) -> Result<()> {
        let Some(mut last) = self.last.take() else { return Ok(()) };
        last.ends_commit = true;
        self.write(&last, out)
    }

    fn write(&mut self, change: &Change, out: &mut Output) -> Result<()> {
        self.printed += 1;
        out.bytes(if self.json { json(change)? } else { line(change) }.as_bytes())
    }
}

fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Put => "put",
        ChangeKind::Merge => "merge",
        ChangeKind::Delete => "delete",
        ChangeKind::DeleteRange => "delete_range",
        _ => "other",
    }
}

/// Number, keyspace, operation, key, and what belongs to it; of a large value its length.
fn line(change: &Change) -> String {
    let keyspace = change.keyspace.clone().unwrap_or_else(|| format!("#{}", change.keyspace_id));
    let (name, key) = (escape::escaped(keyspace.as_bytes()), escape::escaped(&change.key));
    let large = || change.large.map(|large| format!("[{} bytes]", large.bytes));
    let rest = change.value.as_deref().or(change.range_end.as_deref()).map(escape::escaped).or_else(large);
    let rest = rest.map_or(String::new(), |rest| format!("\t{rest}"));
    format!("{}\t{name}\t{}\t{key}{rest}\n", change.seqno, word(change.kind))
}

/// A change as `--json` prints it.
#[derive(Serialize)]
struct ChangeLine<'a> {
    seqno: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyspace: Option<&'a str>,
    keyspace_id: u32,
    kind: &'static str,
    #[serde(flatten)]
    key: Text,
    #[serde(flatten)]
    value: Option<Text>,
    /// The length of a value with a file of its own, which is not printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    large_bytes: Option<u64>,
    #[serde(flatten)]
    range_end: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    ends_commit: bool,
}

/// Bytes under a name, or under that name with `_base64` if they are not UTF-8.
struct Text(&'static str, &'static str, Vec<u8>);

impl Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self(name, name_base64, bytes) = self;
        serializer.collect_map([match std::str::from_utf8(bytes) {
            Ok(text) => (name, text.to_owned()),
            Err(_) => (name_base64, base64::encode(bytes)),
        }])
    }
}

fn json(change: &Change) -> Result<String> {
    let millis = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    let line = ChangeLine {
        seqno: change.seqno,
        keyspace: change.keyspace.as_deref(),
        keyspace_id: change.keyspace_id,
        kind: word(change.kind),
        key: Text("key", "key_base64", change.key.to_vec()),
        value: change.value.as_ref().map(|value| Text("value", "value_base64", value.to_vec())),
        large_bytes: change.large.map(|large| large.bytes),
        range_end: change.range_end.as_ref().map(|end| Text("range_end", "range_end_base64", end.to_vec())),
        expires_at_ms: change.expires_at.map(millis),
        ends_commit: change.ends_commit,
    };
    let text = serde_json::to_string(&line).map_err(|e| Failure::trouble(e.to_string()))?;
    Ok(text + "\n")
}
