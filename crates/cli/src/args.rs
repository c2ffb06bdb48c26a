//! The command line and its help.

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    commands::{
        self,
        advise::AdviseArgs,
        backup::BackupArgs,
        bench::BenchArgs,
        changes::ChangesArgs,
        convert::ConvertArgs,
        demo::DemoArgs,
        entries::{DelArgs, GetArgs, PutArgs, ScanArgs},
        export::ExportArgs,
        import::ImportArgs,
        lab::{LabArgs, part::PartArgs},
        maintain::{CheckpointArgs, GcArgs},
        salvage::SalvageArgs,
        vat::VatArgs,
    },
    failure::Result,
    global::{DbArgs, Global},
    output::Output,
};

/// An embedded, persistent, ordered key-value store, at the command line.
#[derive(Parser, Debug)]
#[command(
    name = "bifold",
    version,
    propagate_version = true,
    after_help = "Start with `bifold demo`. The help of every command has examples: `bifold put --help`."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show what Bifold does, on real data, in under a minute.
    #[command(
        long_about = "Show what Bifold does, on real data, in under a minute.\n\n\
            Imports files, overwrites a third of them, deletes some, scans, kills itself in the middle of writing, \
            reopens, checks every value and every acknowledged write, verifies every byte, prints what happened and \
            what to type next. The database stays on disk for you to try things.",
        after_long_help = "Examples:\n  \
            bifold demo                    # the files of the repository or directory you are in\n  \
            bifold demo ~/src/linux        # some other directory\n  \
            bifold demo access.log         # each line of a file"
    )]
    Demo(DemoArgs),

    /// Store a value under a key.
    #[command(
        long_about = "Store a value under a key. The database and the keyspace are created if they do not exist.\n\n\
            KEY and VALUE are taken byte by byte as typed, backslashes included. There are two exceptions: the value - \
            stands for standard input, and @FILE for the content of FILE, both unchanged. With --literal these two \
            also stand for themselves; scripts that pass on other people's values should use it. Put an argument that \
            begins with another - after --.\n\n\
            With --escape, KEY and VALUE may have the escapes \\\\ \\t \\n \\r and \\xHH, and a backslash is written \
            \\\\.",
        after_long_help = "Examples:\n  bifold put my.db user/1 Ada\n  bifold put my.db path 'C:\\temp\\new'\n  \
            bifold put my.db photo @photo.jpg\n  date | bifold put my.db now -\n  \
            bifold put my.db mail --literal @ada\n  bifold put my.db list -- --first\n  \
            bifold put my.db --escape 'bin\\x00ary' 'two\\nlines'\n  \
            bifold put log.db today --merge 'ran, ' --set keyspace.merge=append"
    )]
    Put(PutArgs),

    /// Print the value of a key.
    #[command(
        long_about = "Print the value of a key. A pipe or a file gets its bytes unchanged, with nothing added. A \
            terminal gets a newline after the value; if the value is not printable text, it gets escapes, and a note \
            says so. --raw prints the bytes unchanged there, too.\n\n\
            With --escape, KEY may have escapes, and the value is printed on one line with escapes.\n\n\
            Exit code 1 if there is no such key.",
        after_long_help = "Examples:\n  bifold get my.db user/1\n  bifold get my.db photo > photo.jpg\n  \
            bifold get my.db --escape 'bin\\x00ary'"
    )]
    Get(GetArgs),

    /// Delete keys, all in one atomic commit.
    #[command(
        long_about = "Delete keys, all in one atomic commit. Missing keys are no error. Keys are taken as typed; with \
            --escape they may have escapes.",
        after_long_help = "Examples:\n  bifold del my.db user/1\n  bifold del my.db user/1 user/2 user/3"
    )]
    Del(DelArgs),

    /// Print keys and values in key order.
    #[command(
        long_about = "Print keys and values in key order, one entry per line: KEY, a tab, VALUE, both with the escapes \
            \\\\ \\t \\n \\r and \\xHH, as `export` writes them. With --json, one object per line.\n\n\
            Keys of --prefix, --from and --to are taken as typed; with --escape they may have escapes, like the \
            printed keys.",
        after_long_help = "Examples:\n  bifold scan my.db --limit 10\n  bifold scan my.db --prefix user/\n  \
            bifold scan my.db --from user/1 --to user/5 --reverse --keys-only"
    )]
    Scan(ScanArgs),

    /// Read keys and values from a file or a directory.
    #[command(
        long_about = "Read keys and values from a file or a directory. The database and the keyspace are created if \
            they do not exist.\n\n\
            tsv    KEY, a tab, VALUE; \\\\ \\t \\n \\r and \\xHH stand for backslash, tab, newline, carriage return \
            and any byte\n\
            jsonl  {\"key\":\"…\",\"value\":\"…\"}, or key_base64 and value_base64 for bytes that are not UTF-8; \
            expires_at_ms, milliseconds since 1970 or null for never, where the keyspace's ttl is not to decide\n\
            dir    relative paths are keys, contents are values; symbolic links are not followed\n\n\
            The file is read twice: first to check all of it, then to import it. If a line is wrong, it is reported as \
            FILE:LINE, nothing is written and the exit code is 2. FILE may be - for standard input, or a pipe: the \
            input is saved while it is checked, in a file without a name in $TMPDIR, which needs as much space. An \
            interrupted import keeps the commits before; repeat it. If a key occurs several times, the last value \
            wins.\n\n\
            As long as keys ascend, an input of a megabyte or more becomes tables and value files without the log, \
            which is faster; every 256 MiB are one commit. From the first key on that does not ascend, or from the \
            beginning with --no-ingest, entries are written in commits of about a megabyte.",
        after_long_help = "Examples:\n  bifold import my.db users.tsv --format tsv\n  \
            bifold import my.db events.jsonl --format jsonl\n  bifold import my.db ~/Documents --format dir\n  \
            bifold export a.db | bifold import b.db - --format tsv"
    )]
    Import(ImportArgs),

    /// Write all keys and values to standard output, in key order.
    #[command(
        long_about = "Write all keys and values to standard output, in key order, in a format that `import` reads back \
            exactly. With jsonl that is true of the instants at which entries expire, too. tsv cannot say them: \
            entries that expire are refused, and others get the ttl of the keyspace that they are imported into.\n\n\
            Damage ends it with exit code 2. With --skip-damaged it goes on behind damaged blocks of tables and leaves \
            out values that cannot be read. Each is reported on standard error with file and offset, as JSON with \
            --json, and the exit code is 1. For a block the report has the keys between which something is missing: \
            all of those are left out, because what older tables have of them may be out of date. All that is written \
            is right. The database must open: where its manifest, its log or the end of a table is damaged, see \
            `bifold salvage --help`.",
        after_long_help = "Examples:\n  bifold export my.db --format tsv > all.tsv\n  \
            bifold export my.db --format jsonl | gzip > all.jsonl.gz\n  \
            bifold export damaged.db --skip-damaged > rest.tsv"
    )]
    Export(ExportArgs),

    /// Print what has changed, commit by commit.
    #[command(long_about = crate::commands::changes::LONG_ABOUT, after_long_help = crate::commands::changes::EXAMPLES)]
    Changes(ChangesArgs),

    /// Show what a database holds and where its bytes are.
    #[command(
        long_about = "Show what a database holds and where its bytes are: levels, space, memory, and the bytes read \
            and written to open it.",
        after_long_help = "Examples:\n  bifold stats my.db\n  bifold stats my.db --json | jq .space"
    )]
    Stats(DbArgs),

    /// Show the options of a keyspace, or change them.
    #[command(
        long_about = "Show the options of a keyspace, as TOML that --options reads, or change them.\n\n\
            The options that --set and --options name change, all others stay. They apply to everything that is \
            written from now on; stored data changes when compaction or GC rewrites it. These \
            cannot change: keyspace.placement, keyspace.hash_index and keyspace.merge. `bifold convert` copies a \
            database into one with other values of these.\n\n\
            Every command that writes also changes the options given to it.",
        after_long_help = "Examples:\n  bifold options my.db\n  bifold options my.db --set keyspace.compression=lz4\n  \
            bifold options my.db --keyspace users --set keyspace.values.space_target=1.2\n  \
            bifold options my.db --set keyspace.compaction.tiered.size_ratio=4 && bifold compact my.db"
    )]
    Options(DbArgs),

    /// Read and check every byte of every file of a database.
    #[command(
        long_about = "Read and check every byte of every file of a database, and list all damage with file and offset. \
            Where another process writes to it, what was there at the beginning is checked.\n\n\
            Exit code 1 if something is wrong.",
        after_long_help = "Examples:\n  bifold verify my.db\n  bifold verify my.db --json"
    )]
    Verify(DbArgs),

    /// Merge everything down to the last level: no dead bytes, fewest files to read.
    #[command(
        long_about = "Flush and compact all keyspaces, and wait until that is done: no dead bytes remain and reads \
            touch the fewest files.",
        after_long_help = "Examples:\n  bifold compact my.db"
    )]
    Compact(DbArgs),

    /// Run GC on separated values, or explain it.
    #[command(
        long_about = "Run GC on separated values (all placements but inline). With \
            --explain, print for each group or file what it holds, its score (GC takes the highest first), and why GC \
            does not take it now. With --json, one object for each.",
        after_long_help = "Examples:\n  bifold gc my.db --explain\n  bifold gc my.db"
    )]
    Gc(GcArgs),

    /// Make a copy of a database that can be opened on its own.
    #[command(
        long_about = "Make a consistent copy of a database in a new directory, which can be opened on its own.\n\n\
            On the same file system the copy shares tables and value files with the database by hard links, so it \
            takes little time and space. Such a copy is no backup: damage to a shared file damages both. On another \
            file system everything is copied, each time. `bifold backup` makes backups.",
        after_long_help = "Examples:\n  bifold checkpoint my.db my-copy.db\n  \
            bifold checkpoint my.db /mnt/other-disk/my-copy.db"
    )]
    Checkpoint(CheckpointArgs),

    /// Back up a database, and list, check, restore and delete its backups.
    #[command(long_about = crate::commands::backup::LONG_ABOUT, after_long_help = crate::commands::backup::EXAMPLES)]
    Backup(BackupArgs),

    /// Copy a database into a new one with another placement of values.
    #[command(
        long_about = "Copy a database into a new one with another placement of values: inline, wisckey, hashkv, novkv, \
            diffkv, unikv, streams, or auto, which new databases have: streams for values of 16 KiB and more. The \
            placement of a database cannot change; this makes another database.\n\n\
            All keyspaces are copied in key order. Each keeps its options, except the placement and what --set changes \
            for all of them, such as keyspace.values.separate_from_bytes=1KiB. Database options in --options and --set \
            apply to DST. SRC is opened read-only, so no process can write to it meanwhile. At the end DST is reopened \
            and every entry is compared with SRC.\n\n\
            Until then the copy is called DST.partial: a directory called DST is complete. After a failure, remove \
            DST.partial and start again.",
        after_long_help = "Examples:\n  bifold convert my.db new.db --placement hashkv\n  \
            bifold convert my.db new.db --placement wisckey --set keyspace.values.separate_from_bytes=1KiB"
    )]
    Convert(ConvertArgs),

    /// Read a damaged database, or value files whose index is lost, and create a new database from what is whole.
    #[command(
        long_about = "Given a directory, read a database of which anything may be damaged: tables, logs, value files, \
            the manifest. It takes the newest version of each key that whole blocks and records have, and reports what \
            is lost and how many keys may be older than what is lost; docs/salvage.md says more. It never changes the \
            directory, and refuses one that a process has open for writing.\n\n\
            Given files, read value files (000014.val) whose index is lost: no manifest, no tables, no logs. Whole \
            records are found however damaged the bytes around them are. Without --out it only reports the records of \
            each file, damaged stretches with offset and length, and the state of each key. With --out DIR it creates \
            a new database with the newest value of every key, unless something newer is recorded: a delete, a note \
            that the key's value moved elsewhere, or an entry in a drop file of placement novkv. It never changes the \
            files. DIR is called DIR.partial until it is complete. Options of the new database come from --options and \
            --set.\n\n\
            Give it all value files of one database at once, so that it finds the newest version of each key. Never \
            mix the files of two databases.\n\n\
            Value files do not record the following, so salvage cannot restore it:\n\
            * inline values: short ones, and all of placement inline. They are lost.\n\
            * deletes and range deletes of placements wisckey, diffkv, unikv and streams: deleted values come back \
            unless GC has removed them.\n\
            * deletes of placement novkv that no flush or compaction has seen together with what they delete, or whose \
            drop file is missing or damaged: deleted values come back unless GC has removed them.\n\
            * deletes of placement hashkv whose note was removed by GC, is in a missing file, or was lost with the end \
            of its file: deleted values come back, too.\n\
            * whether a damaged stretch held a newer version of a key: an older value comes back then.\n\
            * commits that a crash undid, and batches: each value is restored on its own.\n\
            * names of keyspaces: `default` for the id that a new database gives it, otherwise `keyspace-ID` or the \
            name from --name; `keyspace-of-file-N` for a file that has lost its keyspace id.\n\n\
            Exit code 1 if something was damaged, even if all the rest was restored.",
        after_long_help = "Examples:\n  bifold salvage damaged.db --out new.db\n  bifold salvage 000014.val --keys\n  \
            bifold salvage lost.db/*.val --out new.db --set keyspace.placement=hashkv\n  \
            bifold salvage lost.db/*.val --out new.db --all --name 7=users"
    )]
    Salvage(SalvageArgs),

    /// Measure load, update, read, scan and YCSB, for Bifold alone or compared with a peer.
    #[command(long_about = crate::commands::bench::LONG_ABOUT, after_long_help = crate::commands::bench::EXAMPLES)]
    Bench(Box<BenchArgs>),

    /// Run the papers' experiments and compare with other stores on this machine, with a report.
    #[command(long_about = crate::commands::lab::LONG_ABOUT, after_long_help = crate::commands::lab::EXAMPLES)]
    Lab(LabArgs),

    /// One run of the lab, in its own process.
    #[command(hide = true)]
    LabPart(PartArgs),

    /// Predict the cost of a design by the VAT model: bytes moved, time, space, the best levels.
    #[command(long_about = crate::commands::vat::LONG_ABOUT, after_long_help = crate::commands::vat::EXAMPLES)]
    Vat(VatArgs),

    /// Say which placement, thresholds and tree fit a workload, and why.
    #[command(long_about = crate::commands::advise::LONG_ABOUT, after_long_help = crate::commands::advise::EXAMPLES)]
    Advise(AdviseArgs),

    /// The writer that `demo` kills.
    #[command(hide = true)]
    DemoWriter(DbArgs),
}

/// Runs the given command.
pub fn run(cli: &Cli) -> Result<()> {
    let global = &cli.global;
    let mut out = Output::new();
    match &cli.command {
        Command::Demo(args) => commands::demo::run(args, global, &mut out),
        Command::DemoWriter(args) => commands::demo::writer::run(&args.db, global, &mut out),
        Command::Put(args) => commands::entries::put(args, global),
        Command::Get(args) => commands::entries::get(args, global, &mut out),
        Command::Del(args) => commands::entries::del(args, global),
        Command::Scan(args) => commands::entries::scan(args, global, &mut out),
        Command::Import(args) => commands::import::run(args, global, &mut out),
        Command::Changes(args) => commands::changes::run(args, global, &mut out),
        Command::Export(args) => commands::export::run(args, global, &mut out),
        Command::Stats(args) => commands::stats::run(&args.db, global, &mut out),
        Command::Options(args) => commands::options::run(&args.db, global, &mut out),
        Command::Verify(args) => commands::verify::run(&args.db, global, &mut out),
        Command::Compact(args) => commands::maintain::compact(&args.db, global, &mut out),
        Command::Gc(args) => commands::maintain::gc(args, global, &mut out),
        Command::Checkpoint(args) => commands::maintain::checkpoint(args, global, &mut out),
        Command::Backup(args) => commands::backup::run(args, global, &mut out),
        Command::Convert(args) => commands::convert::run(args, global, &mut out),
        Command::Salvage(args) => commands::salvage::run(args, global, &mut out),
        Command::Bench(args) => commands::bench::run(args, global, &mut out),
        Command::Lab(args) => commands::lab::run(args, global, &mut out),
        Command::LabPart(args) => commands::lab::part::run(args, &mut out),
        Command::Vat(args) => commands::vat::run(args, global, &mut out),
        Command::Advise(args) => commands::advise::run(args, global, &mut out),
    }?;
    out.flush()
}

/// The command at the beginning of `words`, such as `get` or `vat model`; empty if the first word is none.
pub fn command_of(words: impl Iterator<Item = String>) -> String {
    let mut at = Cli::command();
    let mut names = Vec::new();
    for word in words {
        let found = at.get_subcommands().find(|command| command.get_name() == word && !command.is_hide_set());
        let Some(found) = found.cloned() else { break };
        at = found;
        names.push(word);
    }
    names.join(" ")
}

#[cfg(test)]
mod tests;
