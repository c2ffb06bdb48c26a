//! Opens a database with the given options.

use std::{
    io::{self, Write},
    path::Path,
};

use bifold::{Access, Db, IfMissing, Keyspace, Options};

use crate::{
    args::Global,
    failure::{Failure, Result},
};

/// The options of --options, --set and --durability; later ones override earlier ones.
pub fn options(global: &Global) -> Result<Options> {
    options_for(global, None)
}

/// The same, with a placement that overrides the one of --options, and with the tree for that placement.
pub fn options_for(global: &Global, placement: Option<&str>) -> Result<Options> {
    let mut options = match &global.options {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
            for renamed in Options::renamed(&text) {
                let _ = writeln!(io::stderr(), "bifold: {}: {renamed}", path.display());
            }
            Options::from_toml(&text).map_err(|e| Failure::trouble(format!("{}: {e}", path.display())))?
        }
        None => Options::default(),
    };
    if let Some(placement) = placement {
        options.set(&format!("keyspace.preset={placement}"))?;
    }
    for set in &global.set {
        if let Some(renamed) = Options::renamed_word(set) {
            let _ = writeln!(io::stderr(), "bifold: --set {set}: {renamed}");
        }
        options.set(set)?;
    }
    if let Some(durability) = global.durability {
        options.durability = durability;
    }
    Ok(options)
}

/// A database that must exist.
pub fn existing(path: &Path, global: &Global, access: Access) -> Result<Db> {
    let options = Options { access, if_missing: IfMissing::Fail, ..options(global)? };
    Ok(Db::open_with(path, options)?)
}

/// A database and the chosen keyspace, both of which must exist.
pub fn existing_keyspace(path: &Path, global: &Global, access: Access) -> Result<(Db, Keyspace)> {
    let db = existing(path, global, access)?;
    let keyspace = db.existing_keyspace(&global.keyspace)?.ok_or_else(|| {
        let names = db.keyspace_names().join(", ");
        Failure::trouble(format!("{} has no keyspace `{}`: it has {names}", path.display(), global.keyspace))
    })?;
    Ok((db, keyspace))
}

/// A database and the chosen keyspace, made if they do not exist.
pub fn or_create(path: &Path, global: &Global) -> Result<(Db, Keyspace)> {
    if global.keyspace.is_empty() {
        return Err(Failure::trouble("the keyspace's name is empty: leave --keyspace out for `default`"));
    }
    let options = Options { access: Access::ReadWrite, if_missing: IfMissing::Create, ..options(global)? };
    let keyspace_options = options.keyspace.clone();
    let db = Db::open_with(path, options)?;
    let keyspace = db.keyspace(&global.keyspace, keyspace_options)?;
    Ok((db, keyspace))
}
