//! The `bifold` program: a database at the command line.
//!
//! | file | what it is |
//! |---|---|
//! | [`args`] | what can be typed, and the help that teaches it |
//! | [`commands`] | one file per command |
//! | [`formats`] | TSV, JSON Lines, directories of files: into keys and values and back |
//! | [`open`] | opening a database with the options that were given |
//! | [`fresh`] | new databases that are made as a whole or not at all |
//! | [`interrupt`] | what is removed when the program is interrupted |
//! | [`failure`] | what went wrong, in one line, and the exit code |
//! | [`output`] | standard output, figures for people or as JSON, colours |
//! | [`progress`] | progress bars, at a terminal only |
//! | [`publish`] | files that appear whole or not at all |
//! | [`room`] | directories that are filled for a while |
//!
//! Exit codes: 0 done; 1 the answer is no (key not found, damage found); 2 usage, bad input and errors.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod formats;
mod fresh;
mod interrupt;
mod open;
mod output;
mod progress;
mod publish;
mod room;

use std::process::ExitCode;

use args::Cli;
use clap::Parser;

fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => commands::run(&cli),
        Err(error) => failure::usage(&error),
    };
    interrupt::wait_if_ending();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
