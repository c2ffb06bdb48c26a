//! What all commands are given.

use std::path::PathBuf;

use bifold::Durability;
use clap::Args;

/// Options of every command.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The keyspace to work on.
    #[arg(long, global = true, value_name = "NAME", default_value = "default")]
    pub keyspace: String,

    /// Whether it was given.
    #[arg(skip)]
    pub names_keyspace: bool,

    /// What a write survives: sync, a power loss and a kill; buffered, a kill; memory, neither until the program ends
    /// [default: buffered].
    #[arg(long, global = true, value_name = "LEVEL", value_parser = durability)]
    pub durability: Option<Durability>,

    /// Set one option, such as memory_limit=256MiB or keyspace.compression=lz4; may be given several times.
    #[arg(long, global = true, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Read options from a TOML file; --set and --durability override it.
    #[arg(long, global = true, value_name = "FILE.toml")]
    pub options: Option<PathBuf>,

    /// Print figures and entries as JSON, one object per line.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DbArgs {
    /// The database's directory.
    pub db: PathBuf,
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "sync" => Ok(Durability::Sync),
        "buffered" => Ok(Durability::Buffered),
        "memory" => Ok(Durability::Memory),
        _ => Err("choose sync, buffered or memory".to_owned()),
    }
}
