//! `backup`: generations of a database in a repository of real copies.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Access, Backup, BackupOptions, Generation};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::verify;
use crate::{
    failure::{Failure, Result},
    formats::escape::escaped,
    global::Global,
    interrupt::Unfinished,
    open,
    output::{self, Output, Tone},
    progress::Progress,
};

pub const LONG_ABOUT: &str = "\
Back up a database, and list, check, restore and delete its backups.

A repository is a directory with several generations of one database or of several. Everything in it is a copy: \
nothing is shared with the database, unlike a `checkpoint` on the same file system. A generation copies only the files \
that the repository does not have yet, since most files of a database never change. Each stored MiB has a checksum.

Put the repository on another disk than the database. docs/backup.md says what a backup costs and what it does not do.";

pub const EXAMPLES: &str = "Examples:
  bifold backup create my.db /mnt/other-disk/backups
  bifold backup list /mnt/other-disk/backups
  bifold backup verify /mnt/other-disk/backups
  bifold backup restore /mnt/other-disk/backups restored.db
  bifold backup prune /mnt/other-disk/backups --keep 7";

#[derive(Args, Debug)]
#[command(subcommand_required = true)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: BackupCommand,
}

#[derive(Subcommand, Debug)]
pub enum BackupCommand {
    /// Add a generation to a repository, which is created if needed.
    #[command(
        long_about = "Add a generation to a repository, which is created if needed. Only files that the repository \
            does not have are copied; all are read and compared by checksum. Damage in the database is reported, and \
            then nothing is added.\n\n\
            Another process may be writing to the database: the backup has what was there when it began. A program \
            that has it open makes a backup with Db::backup.\n\n\
            After an error or an interrupt the older generations are as they were; the next `create` or `prune` \
            deletes what is left.",
        after_long_help = "Examples:\n  bifold backup create my.db /mnt/other-disk/backups\n  \
            bifold backup create my.db /mnt/nfs/backups --rate 20MiB"
    )]
    Create(CreateArgs),

    /// List the generations of a repository.
    #[command(
        long_about = "List the generations of a repository: number, time (UTC), bytes to restore, bytes that were new, \
            and the database.\n\n\
            Exit code 1 if the record of a generation is damaged.",
        after_long_help = "Examples:\n  bifold backup list /mnt/other-disk/backups\n  \
            bifold backup list /mnt/other-disk/backups --json | jq .number"
    )]
    List(RepositoryArgs),

    /// Read and check every stored byte of all generations.
    #[command(
        long_about = "Read and check every stored byte of all generations, and list all damage with file and the \
            offset of the damaged MiB.\n\n\
            Exit code 1 if something is wrong.",
        after_long_help = "Examples:\n  bifold backup verify /mnt/other-disk/backups"
    )]
    Verify(RepositoryArgs),

    /// Make a generation a database in a new directory.
    #[command(
        long_about = "Make a generation a database in a new directory: the newest one, or the one of --generation. \
            Every byte is checked on the way. Damage is reported, and then nothing is left.",
        after_long_help = "Examples:\n  bifold backup restore /mnt/other-disk/backups restored.db\n  \
            bifold backup restore /mnt/other-disk/backups restored.db --generation 3"
    )]
    Restore(RestoreArgs),

    /// Delete old generations, and the files that only they need.
    #[command(
        long_about = "Delete all generations but the newest N of each database, and the files that no other \
            generation needs.",
        after_long_help = "Examples:\n  bifold backup prune /mnt/other-disk/backups --keep 7"
    )]
    Prune(PruneArgs),
}

#[derive(Args, Debug)]
pub struct CreateArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// The repository: its directory, or a new or empty one.
    pub repository: PathBuf,
    /// Read at most this many bytes a second, such as 20MiB.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
}

#[derive(Args, Debug)]
pub struct RepositoryArgs {
    /// The repository's directory.
    pub repository: PathBuf,
}

#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The repository's directory.
    pub repository: PathBuf,
    /// Where the database goes; must not exist.
    pub to: PathBuf,
    /// The generation's number [default: the newest].
    #[arg(long, value_name = "N")]
    pub generation: Option<u64>,
}

#[derive(Args, Debug)]
pub struct PruneArgs {
    /// The repository's directory.
    pub repository: PathBuf,
    /// How many generations of each database to keep.
    #[arg(long, value_name = "N")]
    pub keep: usize,
}

/// A generation, for people and as JSON.
#[derive(Serialize)]
struct Listed {
    number: u64,
    taken_at: String,
    files: u64,
    bytes: u64,
    new_bytes: u64,
    database: String,
    database_id: String,
    damage: Option<String>,
}

/// A restored database.
#[derive(Serialize)]
struct Restored {
    seconds: f64,
    bytes: u64,
}

/// What was deleted.
#[derive(Serialize)]
struct Pruned {
    generations: Vec<u64>,
    files: u64,
    bytes: u64,
}

/// `bifold backup`
pub fn run(args: &BackupArgs, global: &Global, out: &mut Output) -> Result<()> {
    match &args.command {
        BackupCommand::Create(args) => create(args, global, out),
        BackupCommand::List(args) => list(&args.repository, global, out),
        BackupCommand::Verify(args) => check(&args.repository, global, out),
        BackupCommand::Restore(args) => restore(args, global, out),
        BackupCommand::Prune(args) => prune(args, global, out),
    }
}

fn create(args: &CreateArgs, global: &Global, out: &mut Output) -> Result<()> {
    let db = open::existing(&args.db, global, Access::ReadOnly)?;
    let begin = Instant::now();
    let made = {
        let progress = Progress::bytes("copying", 0);
        let options = BackupOptions::default().with_bytes_per_second(args.rate);
        db.backup_with(&args.repository, options, |at| progress.reach_of(at.bytes_done, at.bytes_total))?
    };
    db.close()?;
    if global.json {
        return out.json(&row(&made));
    }
    out.line(format!(
        "generation {} of {}: {}, {} of them new, in {:.1} s",
        made.number,
        args.db.display(),
        output::bytes(made.bytes),
        output::bytes(made.new_bytes),
        begin.elapsed().as_secs_f64()
    ))
}

fn list(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let rows: Vec<Listed> = Backup::open(path)?.generations()?.iter().map(row).collect();
    let is_damaged = rows.iter().any(|row| row.damage.is_some());
    let printed = print(&rows, global, out);
    if is_damaged { Failure::No(None).after(printed) } else { printed }
}

fn print(rows: &[Listed], global: &Global, out: &mut Output) -> Result<()> {
    if global.json {
        return rows.iter().try_for_each(|row| out.json(row));
    }
    out.line(format!("{:>6}  {:<16} {:>10} {:>10} {:>6}  database", "number", "UTC", "bytes", "new", "files"))?;
    rows.iter().try_for_each(|row| out.line(row.line(out.paint(Tone::Bad, "damaged"))))?;
    out.flush()
}

fn check(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let begin = Instant::now();
    let report = {
        let progress = Progress::bytes("verifying", 0);
        Backup::open(path)?.verify_with(|at| progress.reach_of(at.done_bytes, at.total_bytes))?
    };
    let advice = "generations that do not name this file are whole; make a new backup, which copies it again if the \
                  database still has it";
    verify::show(path, &report, (begin, advice), global, out)
}

fn restore(args: &RestoreArgs, global: &Global, out: &mut Output) -> Result<()> {
    if args.to.symlink_metadata().is_ok() {
        return Err(Failure::trouble(format!("{} exists: give a new directory for the database", args.to.display())));
    }
    let (begin, mut bytes) = (Instant::now(), 0);
    {
        let (progress, _unfinished) = (Progress::bytes("restoring", 0), Unfinished::new(&args.to));
        Backup::open(&args.repository)?.restore_with(args.generation, &args.to, |at| {
            bytes = at.bytes_total;
            progress.reach_of(at.bytes_done, at.bytes_total);
        })?;
    }
    let restored = Restored { seconds: begin.elapsed().as_secs_f64(), bytes };
    if global.json {
        return out.json(&restored);
    }
    let (to, read) = (args.to.display(), output::bytes(restored.bytes));
    out.line(format!("{to} is restored and checked ({read} in {:.1} s)", restored.seconds))
}

fn prune(args: &PruneArgs, global: &Global, out: &mut Output) -> Result<()> {
    let report = Backup::open(&args.repository)?.prune(args.keep)?;
    let pruned = Pruned { generations: report.generations, files: report.files, bytes: report.bytes };
    if global.json {
        return out.json(&pruned);
    }
    let generations = output::counted(pruned.generations.len() as u64, "generation", "generations");
    let files = output::counted(pruned.files, "file", "files");
    out.line(format!("deleted {generations} and {files} ({})", output::bytes(pruned.bytes)))
}

fn row(generation: &Generation) -> Listed {
    Listed {
        number: generation.number,
        taken_at: utc(generation.taken_at_unix_seconds),
        files: generation.files,
        bytes: generation.bytes,
        new_bytes: generation.new_bytes,
        database: generation.source.display().to_string(),
        database_id: format!("{:016x}", generation.database_id),
        damage: generation.damage.as_ref().map(ToString::to_string),
    }
}

impl Listed {
    fn line(&self, damaged: String) -> String {
        if let Some(damage) = &self.damage {
            return format!("{:>6}  {damaged}: {damage}", self.number);
        }
        let (bytes, new_bytes) = (output::bytes(self.bytes), output::bytes(self.new_bytes));
        let (number, taken_at, files) = (self.number, &self.taken_at, output::count(self.files));
        let database = escaped(self.database.as_bytes());
        format!("{number:>6}  {taken_at:<16} {bytes:>10} {new_bytes:>10} {files:>6}  {database}")
    }
}

/// Seconds since 1970 as `2026-11-25 08:30`. (Days to a date: Hinnant, *chrono-compatible low-level date algorithms*.)
fn utc(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds % 86_400 / 60);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    let bytes = bifold::options::parse_size(text)?;
    if bytes == 0 { Err("give at least 1 byte a second".to_owned()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_those_of_the_calendar() {
        let known = [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_795_595_400, "2026-11-25 08:30"),
            (4_107_542_400, "2100-03-01 00:00"),
        ];
        for (seconds, text) in known {
            assert_eq!(utc(seconds), text);
        }
    }
}
