//! The command line is consistent, and teaches.

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_an_example() {
    fn check(name: &str, commands: &clap::Command) {
        for command in commands.get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = format!("{name} {}", command.get_name());
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&name), "{name}: {help}");
            check(&name, command);
        }
    }
    check("bifold", &Cli::command());
}

#[test]
fn the_command_is_found_in_what_was_typed() {
    let of = |line: &str| command_of(line.split(' ').map(str::to_owned));
    for (line, command) in [
        ("get db key", "get"),
        ("vat model --levels 5", "vat model"),
        ("vat frobnicate", "vat"),
        ("gett db", ""),
        ("demo-writer db", ""),
    ] {
        assert_eq!(of(line), command, "{line}");
    }
}
