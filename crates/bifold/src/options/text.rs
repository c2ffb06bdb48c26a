//! Options as text: dotted names.

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
