//! Errors as one line on standard error, and the exit code.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

/// The result of every command.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a command ends without success.
#[derive(Debug)]
pub enum Failure {
    /// A valid question has a negative answer: exit code 1. `None` if it was already printed.
    No(Option<String>),
    /// Usage, bad input or an error: exit code 2.
    Trouble(String),
    /// The reader of our output has closed the pipe (`bifold scan … | head`), which is no error.
    ClosedPipe,
}

impl Failure {
    /// Usage, bad input or an error.
    pub fn trouble(message: impl Into<String>) -> Self {
        Self::Trouble(message.into())
    }

    /// A user's file that cannot be read or written.
    pub fn file(verb: &str, path: &Path, error: &io::Error) -> Self {
        Self::Trouble(format!("cannot {verb} {}: {error}", path.display()))
    }

    /// A failed write to standard output.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Trouble(format!("cannot write to standard output: {error}")),
        }
    }

    /// What a command with this answer ends with once its output is `printed`: the answer counts even if the reader has
    /// closed the pipe before it had all of it.
    pub fn after(self, printed: Result<()>) -> Result<()> {
        match printed {
            Ok(()) | Err(Self::ClosedPipe) => Err(self),
            other => other,
        }
    }

    /// Prints the message, and returns the exit code.
    pub fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::No(message) => (message, 1),
            Self::Trouble(message) => (Some(message), 2),
            Self::ClosedPipe => (None, 0),
        };
        if let Some(message) = message {
            // Standard error may be closed as well; then the message is lost.
            let _ = writeln!(io::stderr(), "bifold: {}", one_line(&message));
        }
        ExitCode::from(code)
    }
}

impl From<bifold::Error> for Failure {
    fn from(error: bifold::Error) -> Self {
        Self::Trouble(error.to_string())
    }
}

impl From<bifold_lab::Failure> for Failure {
    fn from(failure: bifold_lab::Failure) -> Self {
        Self::Trouble(failure.to_string())
    }
}

/// What clap says of the words behind a command: help and version go to standard output; any other message becomes one
/// line.
pub fn usage(error: &clap::Error, command: &str) -> Result<()> {
    if !error.use_stderr() {
        return error.print().map_err(|e| Failure::output(&e));
    }
    let help = if command.is_empty() { "bifold --help".to_owned() } else { format!("bifold {command} --help") };
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let start = if command.is_empty() { "start with `bifold demo`, or " } else { "" };
        return Err(Failure::trouble(format!("no command: {start}see `{help}`")));
    }
    let text = error.render().to_string();
    // The error comes first; usage and hints follow on lines of their own.
    let wrong = text.split("\nUsage:").next().unwrap_or(&text).split("\nFor more").next().unwrap_or_default();
    let wrong = one_line(wrong.trim_start_matches("error:"));
    Err(Failure::Trouble(format!("{wrong}; see `{help}`")))
}

/// The lines of a message, joined.
fn one_line(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}
