//! Logs that nobody needs any more.

use bifold_contract::{Edit, LogFloor, Result, planted};
use bifold_format::names;
use bifold_values::parts::large_files::LargeFile;

use super::State;
use crate::{log::kept_logs::NotKept, waiting::sync::LockExt};

impl State {
    /// Records that older logs are no longer needed, and deletes them.
    ///
    /// # Errors
    /// I/O errors.
    pub fn delete_logs(&self) -> Result<()> {
        let mut manifest = self.manifest.hold();
        let log_floor = self.log_floor(None);
        if !planted!("unnamed_log_floor") {
            self.dir.sync()?;
        }
        let mut edit = Edit { last_seqno: Some(self.visible()), log_floor: Some(log_floor), ..Edit::default() };
        self.record(&mut manifest, &mut edit)?;
        self.delete_logs_below(log_floor);
        Ok(())
    }

    /// Deletes logs that nobody needs. A failure is counted, and the next opening deletes that log.
    pub(super) fn delete_logs_below(&self, floor: LogFloor) {
        let NotKept { logs, large } = self.wal.hold().forget_below(floor.log, self.clock.now());
        for id in logs {
            let _counted = self.dir.remove(&names::log(id));
        }
        large.into_iter().for_each(LargeFile::release);
        let _poisons_if_it_must = self.delete_ingests();
    }

    /// Deletes the files of ingests to which no log leads any more. A log that came back with the power would lead to
    /// what is gone.
    ///
    /// # Errors
    /// I/O errors.
    pub fn delete_ingests(&self) -> Result<()> {
        let mut wal = self.wal.hold();
        let known = wal.files().into_iter().chain(wal.kept().files()).map(|log| log.id).collect();
        let leaving = wal.take_leaving(&known)?;
        drop(wal);
        if !leaving.is_empty() && !planted!("ingests_before_logs") {
            self.health.watch(self.dir.sync())?;
        }
        leaving.iter().for_each(|&id| drop(self.dir.remove(&names::ingest(id))));
        Ok(())
    }
}
