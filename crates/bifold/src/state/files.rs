//! What files a directory has.

use bifold_contract::{Corruption, FileId, Result, planted};
use bifold_format::names::{self, FileKind};
use bifold_io::Dir;
use bifold_values::logs::NUMBERS_AHEAD_MAX;

/// The files of a directory by kind.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub logs: Vec<FileId>,
    pub tables: Vec<FileId>,
    pub values: Vec<FileId>,
    /// Of large values.
    pub large: Vec<FileId>,
    /// Of ingests, for the change feed.
    pub ingests: Vec<FileId>,
    /// The largest number in any name.
    pub last: FileId,
}

impl Files {
    /// Checks that no name has a number far from those that the manifest knows. `next` is the first free number.
    ///
    /// # Errors
    /// Corruption that names the file.
    pub fn check_numbers(&self, dir: &Dir, next: FileId) -> Result<()> {
        let most = next + NUMBERS_AHEAD_MAX;
        if self.last <= most || planted!("any_number") {
            return Ok(());
        }
        let kinds = [
            (&self.logs, names::log as fn(_) -> _),
            (&self.tables, names::table),
            (&self.values, names::value),
            (&self.large, names::large),
            (&self.ingests, names::ingest),
        ];
        let name = kinds.iter().find_map(|(ids, name)| ids.last().filter(|&&id| id == self.last).map(|&id| name(id)));
        let expected = format!("a number up to {most}: MANIFEST says that {next} is the next; move the file elsewhere");
        let damage = Corruption::new(0, "file name", expected, self.last.to_string());
        Err(damage.of(dir.file(&name.unwrap_or_default())))
    }

    /// Lists `dir`, in ascending order of numbers.
    ///
    /// # Errors
    /// I/O errors.
    pub fn list(dir: &Dir) -> Result<Self> {
        let mut files = Self::default();
        for name in dir.list()? {
            // While another process recovers the database, a file may have its second name.
            let name = names::named_again(&name).filter(|_| !planted!("overlook_second_names")).unwrap_or(&name);
            let (list, id) = match names::parse(name) {
                FileKind::Log(id) => (&mut files.logs, id),
                FileKind::Table(id) => (&mut files.tables, id),
                FileKind::Value(id) => (&mut files.values, id),
                FileKind::Large(id) => (&mut files.large, id),
                FileKind::Ingest(id) => (&mut files.ingests, id),
                FileKind::Manifest | FileKind::Temporary | FileKind::Lock | FileKind::Reserve | FileKind::Unknown => {
                    continue;
                }
            };
            list.push(id);
            files.last = files.last.max(id);
        }
        files.logs.sort_unstable();
        files.tables.sort_unstable();
        files.values.sort_unstable();
        files.large.sort_unstable();
        files.ingests.sort_unstable();
        Ok(files)
    }
}
