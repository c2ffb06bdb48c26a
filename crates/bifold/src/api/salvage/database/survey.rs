//! One walk through all tables and logs: what is lost, range deletes, first keys.

use bifold_contract::{FileId, Result, key};
use bifold_format::{names, table::Place};
use bifold_index::{
    range_tombstones::RangeTombstones,
    table::salvage::{Lost, Met, TableSalvage, first_key},
};

use super::{
    DatabaseSalvage,
    logs::{self, InLog, LostRecords},
    merge::TableStart,
    sources::{SavedKeyspace, TableOf},
};
use crate::api::salvage::SalvageProgress;

impl DatabaseSalvage {
    /// Walks all tables.
    ///
    /// # Errors
    /// I/O errors that are not those of unreadable blocks.
    pub(super) fn survey_tables(&mut self, progress: &mut impl FnMut(SalvageProgress)) -> Result<()> {
        let mut spaces = std::mem::take(&mut self.sources.spaces);
        let bytes_of = |table: &TableOf| self.dir.len(&names::table(table.id)).map(Option::unwrap_or_default);
        let all: Vec<u64> = spaces.iter().flat_map(|space| &space.tables).map(bytes_of).collect::<Result<_>>()?;
        let (total_bytes, mut done_bytes, mut each) = (all.iter().sum(), 0, all.into_iter());
        for space in &mut spaces {
            for table in std::mem::take(&mut space.tables) {
                self.survey_table(space, &table)?;
                done_bytes += each.next().unwrap_or_default();
                progress(SalvageProgress { done_bytes, total_bytes });
            }
            space.found.sort_by(|a, b| a.first.cmp(&b.first));
            space.asked = RangeTombstones::for_snapshots(&space.lost_in_tables, &[key::MAX_SEQNO]);
        }
        self.sources.spaces = spaces;
        Ok(())
    }

    fn survey_table(&mut self, space: &mut SavedKeyspace, of: &TableOf) -> Result<()> {
        let mut table = match TableSalvage::open(&self.dir, of.id) {
            Ok(table) => table,
            Err(error) if error.is_unreadable() => {
                let lost = Lost { place: Place::default(), first: None, last: None, problem: error.to_string() };
                self.lose(space, of, lost);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut known: Vec<Place> = table.lost.iter().map(|lost| lost.place).collect();
        std::mem::take(&mut table.lost).into_iter().for_each(|lost| self.lose(space, of, lost));
        space.ranges.append(&mut table.tombstones);
        let mut first = None;
        loop {
            match table.step() {
                Met::Block(block) if first.is_none() => first = first_key(&block),
                Met::Block(_) => {}
                Met::Lost(lost) => {
                    known.push(lost.place);
                    self.lose(space, of, lost);
                }
                Met::End => break,
            }
        }
        space.found.extend(first.map(|first| TableStart { of: of.clone(), first, known }));
        Ok(())
    }

    /// Notes that something of a table is lost.
    fn lose(&mut self, space: &mut SavedKeyspace, of: &TableOf, lost: Lost) {
        let (lost, newest) = of.bounded(lost);
        space.lose_in_table((lost.first.as_deref(), lost.last.as_deref()), newest);
        self.left_out.add(self.dir.file(&names::table(of.id)), Some(&space.report.name), lost);
    }

    /// Walks all logs.
    ///
    /// # Errors
    /// I/O errors of opening them.
    pub(super) fn survey_logs(&mut self) -> Result<()> {
        let (logs, known): (Vec<FileId>, usize) = (self.sources.logs.clone(), self.sources.spaces.len());
        let mut reach = std::mem::take(&mut self.sources.reach);
        // The largest number that a lost operation may have. It may be one on any key.
        let (mut next, mut newest) = (None, 0);
        for log in logs {
            let path = self.dir.file(&names::log(log));
            let (sources, left_out, known_lost) = (&mut self.sources, &mut self.left_out, &mut self.lost_in_logs);
            logs::walk(&self.dir, log, &mut next, |met| match met {
                InLog::Operation(seqno, operation) => {
                    let at = sources.space_of(operation.keyspace());
                    if let Some((at, range)) = at.zip(logs::range_of(seqno, &operation)) {
                        sources.spaces[at].ranges.push(range);
                    }
                }
                InLog::Lost(LostRecords { offset, bytes, problem, below }) => {
                    let place = Place { start: offset, end: offset + bytes };
                    known_lost.insert((log, offset, bytes));
                    left_out.add(path.clone(), None, Lost { place, first: None, last: None, problem });
                    let upto = below.map_or(key::MAX_SEQNO, |below| below.saturating_sub(1));
                    newest = newest.max(upto);
                    reach.lose(upto);
                }
                InLog::Record(numbers, _) => reach.record(numbers),
            })?;
        }
        self.sources.reach = reach;
        self.sources.distinguish(known);
        if self.sources.is_exact {
            for space in &self.sources.spaces[known..] {
                let problem = "logs have this keyspace, and the manifest does not: its end is missing".to_owned();
                let lost = Lost { place: Place::default(), first: None, last: None, problem };
                self.left_out.add(self.dir.file(names::MANIFEST), Some(&space.report.name), lost);
            }
        }
        if newest > 0 {
            self.sources.spaces.iter_mut().for_each(|space| space.lose((None, None), newest));
        }
        Ok(())
    }

    /// Notes that records of a log are lost, if the first walk could read them: a device may have become worse.
    pub(super) fn lose_in_log(&mut self, log: FileId, LostRecords { offset, bytes, problem, below }: LostRecords) {
        if !self.lost_in_logs.insert((log, offset, bytes)) {
            return;
        }
        let place = Place { start: offset, end: offset + bytes };
        self.left_out.add(self.dir.file(&names::log(log)), None, Lost { place, first: None, last: None, problem });
        let upto = below.map_or(key::MAX_SEQNO, |below| below.saturating_sub(1));
        self.sources.reach.lose_again(upto);
        self.sources.spaces.iter_mut().for_each(|space| space.lose((None, None), upto));
    }
}
