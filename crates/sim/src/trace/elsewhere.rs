//! For systems where programs cannot be traced.

use std::{
    path::Path,
    process::{Command, ExitStatus},
};

use super::{Answer, Counted, Fault, Kind};

/// Always fails.
pub(super) fn supervise(
    _command: Command,
    _root: &Path,
    _counted: Counted,
    _fault: Option<Fault>,
) -> Result<(ExitStatus, u64, Option<(Kind, Option<Answer>)>), String> {
    Err("only on Linux with x86_64 or aarch64".to_owned())
}
