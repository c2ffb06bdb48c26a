//! KEY, a tab, VALUE, a newline; both escaped as in [`super::escape`].

use super::{Entry, Expires, escape};

/// Appends a line to `out`.
pub fn write(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    escape::escape(key, out);
    out.push(b'\t');
    escape::escape(value, out);
    out.push(b'\n');
}

/// The entry of a line without its line ending.
///
/// # Errors
/// In words, what is wrong with the line.
pub fn read(line: &[u8]) -> Result<Entry, String> {
    let line = std::str::from_utf8(line)
        .map_err(|e| format!("byte {} of the line is not UTF-8: write such bytes as \\xHH", e.valid_up_to() + 1))?;
    let (key, value) =
        line.split_once('\t').ok_or("there is no tab: a line is KEY, a tab and VALUE (a tab within is written \\t)")?;
    if value.contains('\t') {
        return Err("there is more than one tab: a tab within a key or value is written \\t".to_owned());
    }
    let field = |what: &str, text: &str| escape::unescape(text).map_err(|why| format!("in the {what}, {why}"));
    Ok(Entry { key: field("key", key)?, value: field("value", value)?, expires: Expires::Unsaid })
}
