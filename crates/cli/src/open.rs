//! Opens a database with the given options.
//!
//! For a keyspace that exists, only the named options change; the others keep their stored values.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, Once, PoisonError},
};

use bifold::{Access, DEFAULT_KEYSPACE, Db, Error, IfMissing, Keyspace, KeyspaceOptions, MergeOperators, Options};

use crate::{
    failure::{Failure, Result},
    formats::escape,
    global::Global,
};

/// The most bytes of a keyspace's name. The library refuses longer ones only when there is a database.
pub const KEYSPACE_NAME_MAX: usize = 255;

/// The options of --options, --set and --durability; later ones override earlier ones.
pub fn options(global: &Global) -> Result<Options> {
    options_for(global, None)
}

/// The same, with a placement that overrides the one of --options, and with the tree for that placement. Reports
/// renamed options on standard error, the first time that a command asks.
pub fn options_for(global: &Global, placement: Option<&str>) -> Result<Options> {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| report_renamed(global));
    overlaid(of_anyone(), global, placement)
}

fn report_renamed(global: &Global) {
    if let Some(path) = &global.options {
        // What cannot be read is an error of whoever needs the options.
        for renamed in text_of(path).map(|text| Options::renamed(&text)).unwrap_or_default() {
            let _ = writeln!(io::stderr(), "bifold: {}: {renamed}", path.display());
        }
    }
    for set in &global.set {
        if let Some(renamed) = Options::renamed_word(set) {
            let _ = writeln!(io::stderr(), "bifold: --set {set}: {renamed}");
        }
    }
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

/// The text of a file with options. It is read once, since it may be a pipe.
pub fn text_of(path: &Path) -> Result<String> {
    static READ: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = read.get(path) {
        return Ok(text.clone());
    }
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    read.insert(path.to_owned(), text.clone());
    Ok(text)
}

/// The options of a keyspace that exists with the named ones changed, if that makes a difference.
fn differing(keyspace: &Keyspace, global: &Global, placement: Option<&str>) -> Result<Option<KeyspaceOptions>> {
    let stored = keyspace.options();
    let over = Options { keyspace: stored.clone(), ..Options::default() };
    let wanted = overlaid(over, global, placement)?.keyspace;
    Ok((wanted != stored).then_some(wanted))
}

/// Changes the named options of a keyspace that exists.
fn change(keyspace: &Keyspace, global: &Global, placement: Option<&str>) -> Result<()> {
    let Some(wanted) = differing(keyspace, global, placement)? else { return Ok(()) };
    match keyspace.set_options(wanted) {
        Err(Error::ReadOnly) => Err(not_changed(keyspace)),
        other => Ok(other?),
    }
}

fn not_changed(keyspace: &Keyspace) -> Failure {
    Failure::trouble(format!(
        "this command changes no options, and those given differ from those of keyspace `{}`: leave them out, or \
         change them with `bifold options DB --set NAME=VALUE`",
        escape::escaped(keyspace.name().as_bytes())
    ))
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
    existing_with(path, global, Named::Change, |options| open_or(path, options, (access, or)))
}

/// A database that must exist, to copy it; its options stay. Value files of one that nobody writes are linked into a
/// checkpoint; where another process writes, or this one cannot, they are copied.
pub fn to_copy(path: &Path, global: &Global) -> Result<Db> {
    retains_changes_as_before(global)?;
    existing_with(path, global, Named::Refuse, |options| {
        let options = Options { retain_changes: None, ..options.clone() };
        match open_or(path, &options, (Access::ReadWrite, Access::Follow)) {
            Err(error) if is_unwritable(&error) => open_or(path, &options, (Access::ReadOnly, Access::ReadOnly)),
            other => other,
        }
    })
}

/// Refuses to be told how long changes are kept: a command that writes nothing leaves that as it is. A file for
/// --options may say it, because it is for other commands as well.
pub fn retains_changes_as_before(global: &Global) -> Result<()> {
    match global.set.iter().find(|set| set.trim_start().starts_with("retain_changes")) {
        None => Ok(()),
        Some(set) => Err(Failure::trouble(format!(
            "this command does not change how long changes are kept, and --set {set} would: leave it out, or give it \
             to a command that writes, such as `bifold put`"
        ))),
    }
}

/// What becomes of named options of a keyspace that differ from those it has.
#[derive(Clone, Copy)]
enum Named {
    Change,
    Refuse,
}

/// A database that must exist, opened by `open`.
fn existing_with(
    path: &Path,
    global: &Global,
    named: Named,
    open: impl FnOnce(&Options) -> bifold::Result<Db>,
) -> Result<Db> {
    let options = options(global)?;
    let names_some = options.keyspace != KeyspaceOptions::default();
    let db = open(&Options { if_missing: IfMissing::Fail, keyspace: KeyspaceOptions::default(), ..options })?;
    match (db.existing_keyspace(&global.keyspace)?, named) {
        (Some(keyspace), Named::Change) => change(&keyspace, global, None)?,
        (Some(keyspace), Named::Refuse) if differing(&keyspace, global, None)?.is_some() => {
            return Err(not_changed(&keyspace));
        }
        (None, _) if names_some => return Err(no_keyspace(&db, path, global)),
        _ => {}
    }
    Ok(db)
}

/// A database, opened with the second access where another process writes.
fn open_or(path: &Path, options: &Options, (access, or): (Access, Access)) -> bifold::Result<Db> {
    let open = |access| Db::open_with(path, Options { access, ..options.clone() });
    match open(access) {
        Err(Error::Locked { .. }) if or != access => open(or),
        other => other,
    }
}

/// Whether the system does not let this process write to the directory.
fn is_unwritable(error: &Error) -> bool {
    let kinds = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
    matches!(error, Error::Io { source, .. } if kinds.contains(&source.kind()))
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
#[derive(Clone, Copy)]
pub enum Writes<'a> {
    Values,
    /// Operands of a merge operator.
    Operands,
    /// Values that expire, and what says so: an option, or the first line.
    Expiring(&'a str),
}

impl Writes<'_> {
    /// Refuses what a keyspace with the options `of` would refuse. Whether there is a merge operator never changes.
    fn check(self, of: &KeyspaceOptions, global: &Global) -> Result<()> {
        let name = escape::escaped(global.keyspace.as_bytes());
        match (self, &of.merge) {
            (Self::Operands, None) => Err(Failure::trouble(format!(
                "keyspace `{name}` has no merge operator, and one gets it only when it is made: for a new one add \
                 --set keyspace.merge=NAME, such as append"
            ))),
            (Self::Expiring(what), Some(_)) => Err(Failure::trouble(format!(
                "{what}: keyspace `{name}` has a merge operator, and nothing expires in such a keyspace"
            ))),
            _ => Ok(()),
        }
    }
}

/// A database and the chosen keyspace, made if they do not exist, unless what is about to be written could not be
/// written to them: then nothing is made or changed.
pub fn or_create(path: &Path, global: &Global, writes: Writes<'_>) -> Result<(Db, Keyspace)> {
    if global.keyspace.is_empty() {
        return Err(Failure::trouble("the keyspace's name is empty: leave --keyspace out for `default`"));
    }
    if global.keyspace.len() > KEYSPACE_NAME_MAX {
        let bytes = global.keyspace.len();
        return Err(Failure::trouble(format!("the keyspace's name has {bytes} bytes: at most {KEYSPACE_NAME_MAX}")));
    }
    let options = options(global)?;
    let (if_missing, access) = (IfMissing::Fail, Access::ReadWrite);
    let as_stored = Options { if_missing, access, keyspace: KeyspaceOptions::default(), ..options.clone() };
    let db = match Db::open_with(path, Options { retain_changes: None, ..as_stored.clone() }) {
        Err(Error::NotFound { .. }) => {
            writes.check(&options.keyspace, global)?;
            Db::open_with(path, making(&options, global))?
        }
        existing => {
            let db = existing?;
            let there = db.existing_keyspace(&global.keyspace)?.map(|keyspace| keyspace.options());
            writes.check(there.as_ref().unwrap_or(&options.keyspace), global)?;
            // The opening itself changes how long changes are kept.
            if options.retain_changes.is_some() {
                db.close()?;
                Db::open_with(path, as_stored)?
            } else {
                db
            }
        }
    };
    let keyspace = match db.existing_keyspace(&global.keyspace)? {
        Some(keyspace) => {
            change(&keyspace, global, None)?;
            keyspace
        }
        None => db.keyspace(&global.keyspace, options.keyspace)?,
    };
    Ok((db, keyspace))
}

/// The options of a database that is made for the chosen keyspace: `default` gets those of a keyspace only if it is
/// the chosen one.
fn making(options: &Options, global: &Global) -> Options {
    let is_default = global.keyspace == DEFAULT_KEYSPACE;
    let keyspace = if is_default { options.keyspace.clone() } else { KeyspaceOptions::default() };
    Options { access: Access::ReadWrite, if_missing: IfMissing::Create, keyspace, ..options.clone() }
}
