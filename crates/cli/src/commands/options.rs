//! `bifold options`

use std::path::Path;

use bifold::Access;

use crate::{failure::Result, global::Global, open, output::Output};

/// `bifold options`
pub fn run(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    // That is an option of an opening, not of a keyspace.
    open::retains_changes_as_before(global)?;
    let names_some = global.options.is_some() || global.set.iter().any(|set| set.trim_start().starts_with("keyspace."));
    let access = if names_some { Access::ReadWrite } else { Access::ReadOnly };
    let (db, keyspace) = open::existing_keyspace(path, global, access)?;
    let options = keyspace.options();
    drop(keyspace);
    db.close()?;
    if global.json {
        return out.json(&options);
    }
    options.to_toml().lines().try_for_each(|line| out.line(line))
}
