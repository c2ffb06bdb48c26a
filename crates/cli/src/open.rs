//! Opens a database with the given options.
//!
//! For a keyspace that exists, only the named options change; the others keep their stored values.

use std::{
    io::{self, Write},
    path::Path,
};

use bifold::{Access, Db, Error, IfMissing, Keyspace, KeyspaceOptions, MergeOperators, Options};

use crate::{
    args::Global,
    failure::{Failure, Result},
    formats::escape,
};

/// The most bytes of a keyspace's name. The library refuses longer ones only when there is a database.
const KEYSPACE_NAME_MAX: usize = 255;

/// The options of --options, --set and --durability; later ones override earlier ones.
pub fn options(global: &Global) -> Result<Options> {
    options_for(global, None)
}

/// The same, with a placement that overrides the one of --options, and with the tree for that placement. Reports
/// renamed options on standard error.
pub fn options_for(global: &Global, placement: Option<&str>) -> Result<Options> {
    if let Some(path) = &global.options {
        for renamed in Options::renamed(&text_of(path)?) {
            let _ = writeln!(io::stderr(), "bifold: {}: {renamed}", path.display());
        }
    }
    for set in &global.set {
        if let Some(renamed) = Options::renamed_word(set) {
            let _ = writeln!(io::stderr(), "bifold: --set {set}: {renamed}");
        }
    }
    overlaid(of_anyone(), global, placement)
}

/// Options that open databases of other programs, too: without the functions of their merge operators.
pub fn of_anyone() -> Options {
    Options { merge_operators: MergeOperators::default().or_unknown(), ..Options::default() }
}

/// `options` with the named ones changed.
pub fn overlaid(mut options: Options, global: &Global, placement: Option<&str>) -> Result<Options> {
    if let Some(path) = &global.options {
        let set = options.set_toml(&text_of(path)?);
        set.map_err(|e| Failure::trouble(format!("{}: {e}", path.display())))?;
    }
    if let Some(placement) = placement {
        options.set(&format!("keyspace.preset={placement}"))?;
    }
    global.set.iter().try_for_each(|set| options.set(set))?;
    if let Some(durability) = global.durability {
        options.durability = durability;
    }
    Ok(options)
}

/// The text of a file.
pub fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))
}

/// Changes the named options of a keyspace that exists.
fn change(keyspace: &Keyspace, global: &Global, placement: Option<&str>) -> Result<()> {
    let stored = keyspace.options();
    let over = Options { keyspace: stored.clone(), ..Options::default() };
    let wanted = overlaid(over, global, placement)?.keyspace;
    if wanted == stored {
        return Ok(());
    }
    match keyspace.set_options(wanted) {
        Err(Error::ReadOnly) => Err(Failure::trouble(format!(
            "this command only reads, and the options given differ from those of keyspace `{}`: leave them out, or \
             change them with `bifold options DB --set NAME=VALUE`",
            escape::escaped(keyspace.name().as_bytes())
        ))),
        other => Ok(other?),
    }
}

/// The options for opening a database that may exist, with a placement that overrides the one of --options. If the
/// database exists, the named options of its default keyspace are changed, and the others keep their stored values.
pub fn prepared(path: &Path, global: &Global, placement: Option<&str>) -> Result<Options> {
    let options = overlaid(Options::default(), global, placement)?;
    let keyspace = KeyspaceOptions::default();
    let db = match Db::open_with(path, Options { if_missing: IfMissing::Fail, keyspace, ..options.clone() }) {
        Err(Error::NotFound { .. }) => return Ok(options),
        existing => existing?,
    };
    change(db.default_keyspace(), global, placement)?;
    let keyspace = db.default_keyspace().options();
    db.close()?;
    Ok(Options { keyspace, ..options })
}

/// A database that must exist. Where `access` is read-only and another process writes, it is followed as it is now.
pub fn existing(path: &Path, global: &Global, access: Access) -> Result<Db> {
    let or = if access == Access::ReadOnly { Access::Follow } else { access };
    existing_or(path, global, (access, or))
}

/// A database that must exist, to copy it. Value files of one that nobody writes are linked into a checkpoint; where
/// another process writes, they are copied.
pub fn to_copy(path: &Path, global: &Global) -> Result<Db> {
    existing_or(path, global, (Access::ReadWrite, Access::Follow))
}

/// A database that must exist, opened with the second access where another process writes.
fn existing_or(path: &Path, global: &Global, (access, or): (Access, Access)) -> Result<Db> {
    let options = options(global)?;
    let names_some = options.keyspace != KeyspaceOptions::default();
    let options = Options { access, if_missing: IfMissing::Fail, keyspace: KeyspaceOptions::default(), ..options };
    let db = match Db::open_with(path, options.clone()) {
        Err(Error::Locked { .. }) if or != access => Db::open_with(path, Options { access: or, ..options })?,
        other => other?,
    };
    match db.existing_keyspace(&global.keyspace)? {
        Some(keyspace) => change(&keyspace, global, None)?,
        None if names_some => return Err(no_keyspace(&db, path, global)),
        None => {}
    }
    Ok(db)
}

/// A database and the chosen keyspace, both of which must exist.
pub fn existing_keyspace(path: &Path, global: &Global, access: Access) -> Result<(Db, Keyspace)> {
    let db = existing(path, global, access)?;
    let keyspace = db.existing_keyspace(&global.keyspace)?.ok_or_else(|| no_keyspace(&db, path, global))?;
    Ok((db, keyspace))
}

fn no_keyspace(db: &Db, path: &Path, global: &Global) -> Failure {
    let names: Vec<String> = db.keyspace_names().iter().map(|name| escape::escaped(name.as_bytes())).collect();
    let (wanted, names) = (escape::escaped(global.keyspace.as_bytes()), names.join(", "));
    Failure::trouble(format!("{} has no keyspace `{wanted}`: it has {names}", path.display()))
}

/// What is about to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    Values,
    /// Operands of a merge operator.
    Operands,
}

/// A database and the chosen keyspace, made if they do not exist, unless what is about to be written could not be
/// written to them.
pub fn or_create(path: &Path, global: &Global, writes: Writes) -> Result<(Db, Keyspace)> {
    if global.keyspace.is_empty() {
        return Err(Failure::trouble("the keyspace's name is empty: leave --keyspace out for `default`"));
    }
    if global.keyspace.len() > KEYSPACE_NAME_MAX {
        let bytes = global.keyspace.len();
        return Err(Failure::trouble(format!("the keyspace's name has {bytes} bytes: at most {KEYSPACE_NAME_MAX}")));
    }
    let options = options(global)?;
    // A keyspace never gets a merge operator later.
    let would_refuse = writes == Writes::Operands && options.keyspace.merge.is_none();
    let as_stored = Options { if_missing: IfMissing::Fail, keyspace: KeyspaceOptions::default(), ..options.clone() };
    let db = match Db::open_with(path, Options { access: Access::ReadWrite, ..as_stored }) {
        Err(Error::NotFound { .. }) if would_refuse => return Err(no_operator(global)),
        Err(Error::NotFound { .. }) => {
            let making = Options { access: Access::ReadWrite, if_missing: IfMissing::Create, ..options.clone() };
            Db::open_with(path, making)?
        }
        existing => existing?,
    };
    let keyspace = match db.existing_keyspace(&global.keyspace)? {
        Some(keyspace) => {
            change(&keyspace, global, None)?;
            keyspace
        }
        None if would_refuse => return Err(no_operator(global)),
        None => db.keyspace(&global.keyspace, options.keyspace)?,
    };
    Ok((db, keyspace))
}

fn no_operator(global: &Global) -> Failure {
    let name = escape::escaped(global.keyspace.as_bytes());
    Failure::trouble(format!(
        "there is no keyspace `{name}` yet, and one gets its merge operator when it is made: add --set \
         keyspace.merge=NAME, such as append"
    ))
}
