//! Large values of the change feed.

use std::io::ErrorKind;

use bifold_contract::{Corruption, Error, IoSource, Result, SeqNo};
use bifold_format::names;
use bifold_values::parts::large_files::LargeReading;

use super::{Change, LargeValue, logs_of};
use crate::{
    api::{db::Db, large::ValueReader},
    engine::Engine,
    read::large::OpenedValue,
};

impl Db {
    /// The value of a change of this database, to be read piece by piece, whether or not it is a large one. Once it is
    /// opened it can be read to its end, whatever is written meanwhile.
    ///
    /// ```
    /// use std::io::Read;
    /// use bifold::{Db, Options, RetainChanges};
    ///
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-change-reader-{}", std::process::id()));
    /// let retain_changes = Some(RetainChanges { bytes: 64 << 20, age: None });
    /// let db = Db::open_with(&dir, Options { retain_changes, ..Options::default() })?;
    /// db.put_reader("zeros", std::io::repeat(0).take(1 << 20))?;
    /// for change in db.changes(0)? {
    ///     let change = change?;
    ///     let mut value = db.change_reader(&change)?;
    ///     assert_eq!(std::io::copy(&mut value, &mut std::io::sink())?, 1 << 20);
    /// }
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ChangesGone`] if the change is no longer kept and its value is gone; [`Error::InvalidArgument`] if the
    /// change is a delete; [`Error::Closed`]; I/O errors; corruption.
    pub fn change_reader(&self, change: &Change) -> Result<ValueReader> {
        let engine = self.engine();
        engine.health.open()?;
        let value = match (change.large, &change.value) {
            (Some(large), _) => OpenedValue::Large(open(self, change, large)?),
            (None, Some(value)) => OpenedValue::InMemory(value.clone()),
            (None, None) => return Err(Error::invalid("change", "a delete has no value")),
        };
        Ok(ValueReader::begin(&engine.reader, value))
    }
}

fn open(db: &Db, change: &Change, large: LargeValue) -> Result<LargeReading> {
    let placement = db.default_keyspace().tree().placement();
    let file = placement.large().open_held(change.keyspace_id, &change.key, large.named);
    let file = file.map_err(|error| match &error {
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => gone(db.engine(), change, large),
        _ => error,
    })?;
    LargeReading::new(file, &change.key, IoSource::Get)
}

/// The error for a value whose file is not there: that of its change, if that is gone, too.
fn gone(engine: &Engine, change: &Change, large: LargeValue) -> Error {
    let first = match logs_of(engine) {
        Ok(logs) => logs.first().map_or(SeqNo::MAX, |log| log.first),
        Err(error) => return error,
    };
    // Another process sees logs that nobody needs for a moment longer than what they lead to.
    let first = if engine.options.access.writes() { first } else { first.max(change.seqno + 1) };
    if change.seqno < first {
        return Error::ChangesGone { since: change.seqno.saturating_sub(1), first };
    }
    let (file, expected) = (names::large(large.named.file), format!("the value of change {}", change.seqno));
    Corruption::new(0, "large value", expected, "no such file").of(engine.dir.file(&file))
}
