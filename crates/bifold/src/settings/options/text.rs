//! Options as text: dotted names, and names that options once had.

use std::fmt;

/// An option that was given by a name it no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renamed {
    /// The name that was given.
    pub old: String,
    /// What it is called now. Several names: it was one option that several placements used, and each of them has its
    /// own now.
    pub new: Vec<String>,
}

impl fmt::Display for Renamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.new.iter().map(|name| format!("`{name}`")).collect();
        let names = match names.as_slice() {
            [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            _ => names.concat(),
        };
        write!(f, "option `{}` is now called {names}", self.old)
    }
}

/// Options of a keyspace that were renamed or moved: manifests and users' files still have the old names.
const RENAMED: [(&str, &[&str]); 11] = [
    ("compaction.leveled.growth", &["compaction.leveled.size_ratio"]),
    ("compaction.tiered.growth", &["compaction.tiered.size_ratio"]),
    ("values.min_bytes", &["values.separate_from_bytes"]),
    ("values.victim", &["values.hashkv.victim"]),
    ("values.cold", &["values.hashkv.cold"]),
    ("values.group_bytes", &["values.hashkv.group_bytes"]),
    ("values.groups_max", &["values.hashkv.groups_max"]),
    ("values.gc_threshold", &["values.novkv.gc_threshold", "values.diffkv.gc_threshold", "values.unikv.gc_threshold"]),
    ("values.large_bytes", &["values.diffkv.large_bytes"]),
    ("values.merge", &["values.diffkv.merge"]),
    ("values.max_sorted_run", &["values.diffkv.max_sorted_run"]),
];

/// The names that the option of a keyspace called `name` has now, if it once had that one. `values.victim.random` is
/// called what `values.victim` is called.
pub(super) fn current_names(name: &str) -> Option<Vec<String>> {
    let rest_of = |old| name.strip_prefix(old).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let (rest, new) = RENAMED.iter().find_map(|(old, new)| Some((rest_of(*old)?, new)))?;
    Some(new.iter().map(|new| format!("{new}{rest}")).collect())
}

/// Gives the options of a keyspace their current names. Answers which had others.
///
/// # Errors
/// In words, when an option has both its old name and a new one.
pub(super) fn rename_old(keyspace: &mut toml::Table) -> Result<Vec<Renamed>, String> {
    let mut renamed = Vec::new();
    let full = |name: &str| format!("keyspace.{name}");
    for (old, new) in RENAMED {
        let Some(value) = take(keyspace, old) else { continue };
        if let Some(twin) = new.iter().find(|new| look_up(keyspace, new).is_some()) {
            let (old, twin) = (full(old), full(twin));
            return Err(format!("option `{old}` is now called `{twin}`, and both are given: leave `{old}` out"));
        }
        new.iter().for_each(|new| put(keyspace, new, value.clone()));
        renamed.push(Renamed { old: full(old), new: new.iter().map(|new| full(new)).collect() });
    }
    Ok(renamed)
}

/// Puts what `named` has in place of what `into` has.
pub(super) fn overlay(into: &mut toml::Table, named: toml::Table) {
    for (key, value) in named {
        match (into.get_mut(&key), value) {
            // An enum's other variant must go when a field of this one is named.
            (Some(toml::Value::Table(old)), toml::Value::Table(new))
                if key != "compaction" || new.keys().all(|variant| old.contains_key(variant)) =>
            {
                overlay(old, new);
            }
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

fn look_up<'t>(table: &'t toml::Table, path: &str) -> Option<&'t toml::Value> {
    match path.split_once('.') {
        None => table.get(path),
        Some((head, rest)) => look_up(table.get(head)?.as_table()?, rest),
    }
}

fn take(table: &mut toml::Table, path: &str) -> Option<toml::Value> {
    match path.split_once('.') {
        None => table.remove(path),
        Some((head, rest)) => take(table.get_mut(head)?.as_table_mut()?, rest),
    }
}

fn put(table: &mut toml::Table, path: &str, value: toml::Value) {
    match path.split_once('.') {
        None => drop(table.insert(path.to_owned(), value)),
        Some((head, rest)) => {
            if let Some(inner) = table.entry(head).or_insert_with(|| toml::Table::new().into()).as_table_mut() {
                put(inner, rest, value);
            }
        }
    }
}

/// Puts `text` at the dotted `path`, as a number or boolean where it reads as one, as a string otherwise.
pub(super) fn insert_at(table: &mut toml::Table, path: &str, text: &str) {
    let value = match (text.parse::<i64>(), text.parse::<bool>(), text.parse::<f64>()) {
        (Ok(number), ..) => toml::Value::Integer(number),
        (_, Ok(flag), _) => toml::Value::Boolean(flag),
        (_, _, Ok(number)) => toml::Value::Float(number),
        _ => toml::Value::String(text.to_owned()),
    };
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
        }
        Some((head, rest)) => {
            // An enum's other variant must go when a field of this one is named: `compaction.tiered.size_ratio=4`.
            if head == "compaction" {
                let variant = rest.split('.').next().unwrap_or_default();
                if table.get(head).and_then(toml::Value::as_table).is_some_and(|t| !t.contains_key(variant)) {
                    table.remove(head);
                }
            }
            let inner = table.entry(head).or_insert_with(|| toml::Table::new().into());
            if !inner.is_table() {
                *inner = toml::Table::new().into();
            }
            if let Some(inner) = inner.as_table_mut() {
                insert_at(inner, rest, text);
            }
        }
    }
}
