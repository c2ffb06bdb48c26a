//! Dependency policy, from `cargo metadata`: every package comes from the registry or this repository, and its
//! licence is on the list in `deny.toml`. This needs nothing installed; `cargo deny` reads the same file and checks
//! more.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// Checks all packages of the lock file.
pub fn run() -> Result<(), String> {
    let policy: toml::Table = std::fs::read_to_string("deny.toml")
        .map_err(|e| format!("deny.toml: {e}"))?
        .parse()
        .map_err(|e| format!("deny.toml: {e}"))?;
    let allowed: BTreeSet<&str> =
        policy["licenses"]["allow"].as_array().into_iter().flatten().filter_map(toml::Value::as_str).collect();
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let problems: Vec<String> = packages.iter().filter_map(|package| problem(package, &allowed)).collect();
    if problems.is_empty() {
        println!("{} packages, all from the registry or this repository, all licences allowed", packages.len());
        return Ok(());
    }
    Err(problems.join("\n"))
}

fn metadata() -> Result<Value, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn problem(package: &Value, allowed: &BTreeSet<&str>) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    if package["source"].as_str().is_some_and(|source| !source.starts_with("registry+")) {
        return Some(format!("{name}: comes from {}, neither the registry nor this repository", package["source"]));
    }
    let licence = package["license"].as_str().unwrap_or("none");
    (!is_allowed(licence, allowed)).then(|| format!("{name}: licence `{licence}` is not on the list in deny.toml"))
}

/// Whether allowed licences satisfy an SPDX expression: one side of each `OR`, all sides of each `AND`.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.trim();
    if let Some(inner) = expression.strip_prefix('(').and_then(|e| e.strip_suffix(')'))
        && !inner.contains(['(', ')'])
    {
        return is_allowed(inner, allowed);
    }
    // Before SPDX expressions, licences were joined with `/`; it means `OR`.
    if let Some(sides) = split(expression, " AND ") {
        return sides.iter().all(|side| is_allowed(side, allowed));
    }
    if let Some(sides) = split(expression, " OR ").or_else(|| split(expression, "/")) {
        return sides.iter().any(|side| is_allowed(side, allowed));
    }
    allowed.contains(expression)
}

/// The sides of an expression joined by `joint` outside parentheses, if there are several.
fn split<'a>(expression: &'a str, joint: &str) -> Option<Vec<&'a str>> {
    let mut sides = Vec::new();
    let (mut depth, mut start, mut at) = (0, 0, 0);
    while at < expression.len() {
        match expression.as_bytes()[at] {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ if depth == 0 && expression[at..].starts_with(joint) => {
                sides.push(&expression[start..at]);
                at += joint.len();
                start = at;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    sides.push(&expression[start..]);
    (sides.len() > 1).then_some(sides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_satisfied_by_one_side_of_or_and_all_sides_of_and() {
        let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Unicode-3.0"]);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("MIT/Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("GPL-2.0 OR (MIT AND GPL-3.0)", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }
}
