//! The `bifold` program: a database at the command line.
//!
//! | file | what it is |
//! |---|---|
//! | [`args`] | the command line, its help, and which command runs |
//! | [`global`] | what all commands are given |
//! | [`commands`] | one file per command |
//! | [`formats`] | TSV, JSON Lines and directories of files to keys and values, and back |
//! | [`open`] | opens a database with the given options |
//! | [`fresh`] | new databases that are made completely or not at all |
//! | [`interrupt`] | removes unfinished files when the program is interrupted |
//! | [`failure`] | errors as one line, and the exit code |
//! | [`output`] | standard output, figures for people or as JSON, colours |
//! | [`progress`] | progress bars, at a terminal only |
//! | [`publish`] | files that appear completely or not at all |
//!
//! Exit codes: 0 success; 1 a negative answer (key not found, damage found); 2 usage, bad input and errors.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod formats;
mod fresh;
mod global;
mod interrupt;
mod open;
mod output;
mod progress;
mod publish;

use std::process::ExitCode;

use args::Cli;
use clap::{CommandFactory, FromArgMatches, parser::ValueSource};

fn main() -> ExitCode {
    bifold::give_back_freed_memory();
    let result = match typed() {
        Ok(cli) => args::run(&cli),
        Err(error) => failure::usage(&error, &args::command_of(words())),
    };
    interrupt::wait_if_ending();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// What was typed, up to a word that is not UTF-8, which is no command.
fn words() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map_while(|word| word.into_string().ok())
}

/// The same as options of a command.
fn typed() -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    cli.global.names_keyspace = matches.value_source("keyspace") == Some(ValueSource::CommandLine);
    Ok(cli)
}
