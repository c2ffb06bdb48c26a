//! Options as text: dotted names, and names that options once had.

use std::fmt;

/// An option that was given by a name it no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The name that was given.
    pub old: String,
    /// What it is called now.
    pub new: String,
}

impl fmt::Display for Renamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "option `{}` is now called `{}`", self.old, self.new)
    }
}

/// Options of a keyspace that were renamed: manifests and users' files still have the old names.
const RENAMED: [(&str, &str); 2] = [
    ("compaction.leveled.growth", "compaction.leveled.size_ratio"),
    ("compaction.tiered.growth", "compaction.tiered.size_ratio"),
];

/// The name that the option of a keyspace called `name` has now.
pub(super) fn current_name(name: &str) -> &str {
    RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

/// Gives the options of a keyspace their current names. Answers which had others. An option given by both names keeps
/// both, so that the old one is refused as unknown.
pub(super) fn rename_old(keyspace: &mut toml::Table) -> Vec<Renamed> {
    let mut renamed = Vec::new();
    for (old, new) in RENAMED {
        if look_up(keyspace, new).is_none()
            && let Some(value) = take(keyspace, old)
        {
            put(keyspace, new, value);
            renamed.push(Renamed { old: format!("keyspace.{old}"), new: format!("keyspace.{new}") });
        }
    }
    renamed
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
