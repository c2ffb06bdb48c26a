//! One file per command.

pub mod advise;
pub mod backup;
pub mod bench;
pub mod changes;
mod compare;
pub mod convert;
pub mod demo;
pub mod entries;
pub mod export;
pub mod import;
pub mod lab;
pub mod maintain;
pub mod options;
pub mod salvage;
pub mod stats;
pub mod vat;
pub mod verify;
