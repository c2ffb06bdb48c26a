//! The machine of a run, as far as the system reports it.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    file_system,
    system::{System, memory_info},
};

/// A machine, and the program that ran on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors the program may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// The operating system and the number of its version.
    pub system: String,
    /// This program's version.
    pub bifold: String,
    /// Whether it is an optimised build: figures of a debug build mean nothing.
    pub optimised: bool,
    /// The type of the stores' file system, such as `ext4`; `None` if the system did not report it, and in records of
    /// earlier versions.
    #[serde(default)]
    pub file_system: Option<String>,
    /// Settings of the system for buffered files; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<System>,
}

impl Machine {
    /// This machine, with stores below the directory `data`. The name of the directory is not stored.
    #[must_use]
    pub fn here(data: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        // The suffix of the version names the builder.
        let release = read("/proc/sys/kernel/osrelease");
        let release = release.trim().split('-').next().unwrap_or_default();
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory_info("MemTotal").unwrap_or(0),
            system: format!("{} {release}", std::env::consts::OS),
            bifold: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            file_system: file_system::type_of(data),
            settings: Some(System::here(data)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_known_of_every_machine() {
        let here = Machine::here(Path::new("."));
        assert!(here.processors >= 1 && !here.bifold.is_empty() && !here.system.is_empty(), "{here:?}");
        let json = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), here);
    }

    #[test]
    fn records_from_before_more_was_asked_are_read() {
        let old =
            r#"{"processor":"","processors":2,"memory":1,"system":"linux 6.1","bifold":"0.1.0","optimised":true}"#;
        let old = serde_json::from_str::<Machine>(old).unwrap();
        assert_eq!((old.file_system, old.settings), (None, None));
    }
}
