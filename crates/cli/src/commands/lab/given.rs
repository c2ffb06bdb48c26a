//! The user's own keys and values, from the formats of `import`.

use std::{path::Path, sync::Arc};

use bifold_lab::given::{Given, Input};
use clap::ValueEnum;

use crate::{
    commands::import::{self, Checked},
    failure::{Failure, Result},
    formats::{Entry, Format, tree},
};

/// Reads all of an input into memory.
pub fn read(path: &Path, format: Format) -> Result<Given> {
    let mut given = Given::default();
    // Lists a directory first, which finds files that cannot be read.
    match import::check(Path::new(""), path, format)? {
        Checked::Tree(tree) => {
            for file in &tree.files {
                given.push(&file.key, &tree::content(file)?);
            }
        }
        Checked::Lines(lines) => lines.each(|Entry { key, value, .. }, _| {
            given.push(&key, &value);
            Ok(())
        })?,
    }
    Ok(given.done()?)
}

/// The description of an input that a session stores.
pub fn input(path: &Path, format: Option<Format>) -> Result<Input> {
    let path = path.canonicalize().map_err(|e| Failure::file("open", path, &e))?;
    let format = format.map_or_else(|| import::guess(&path), Ok)?;
    let name = format.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    Ok(read(&path, format)?.input(&path.display().to_string(), &name))
}

/// The entries of a session's input.
pub fn of(input: &Input) -> Result<Arc<Given>> {
    let format = Format::from_str(&input.format, false).map_err(Failure::trouble)?;
    Ok(Arc::new(read(Path::new(&input.path), format)?))
}
