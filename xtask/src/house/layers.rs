//! The layers of crate `bifold`, and which files import from a layer that is not below their own.

use std::{collections::BTreeSet, fs};

use super::Source;

/// Where the layers are listed, from the bottom to the top.
const TABLE: &str = "ARCHITECTURE.md";

/// How the rows of that table are preceded.
const TABLE_HEAD: &str = "| layer | what it is |\n|---|---|\n";

/// Where the layers are.
const CODE: &str = "crates/bifold/src/";

/// The layers of the page, from the bottom to the top.
pub(super) fn listed() -> Result<Vec<String>, String> {
    let text = fs::read_to_string(TABLE).map_err(|e| format!("{TABLE}: {e}"))?;
    match rows(&text) {
        layers if layers.is_empty() => Err(format!("{TABLE} has no table of layers")),
        layers => Ok(layers),
    }
}

fn rows(page: &str) -> Vec<String> {
    let rows = page.split_once(TABLE_HEAD).map_or("", |(_, rows)| rows).lines();
    let name = |row: &str| row.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned());
    rows.map_while(name).collect()
}

/// Imports that do not point to a lower layer, and what is in no layer or no longer there. Tests may import anything.
pub(super) fn upward(files: &[Source], layers: &[String]) -> Vec<String> {
    let tests: BTreeSet<String> = files.iter().flat_map(test_modules).collect();
    let is_test = |file: &str| tests.iter().any(|test| file == test || file.starts_with(&format!("{test}/")));
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for source in files {
        let Some(module) = module_of(source).filter(|module| *module != "lib" && !is_test(module)) else { continue };
        let own = module.split('/').next().unwrap_or(module);
        let rank = |name: &str| layers.iter().position(|layer| layer == name);
        if rank(own).is_none() {
            found.push(format!("{}: `{own}` is no layer of {TABLE}", source.path));
        }
        seen.insert(own);
        for name in names_at_root(module, &code(&source.text)) {
            if name != own && rank(&name) >= rank(own) || rank(&name).is_none() {
                found.push(format!("{}: `{own}` imports `{name}`", source.path));
            }
        }
    }
    let gone = layers.iter().filter(|layer| !seen.contains(layer.as_str()));
    found.extend(gone.map(|layer| format!("{TABLE}: layer `{layer}` is not there")));
    found
}

/// The path of a file of the crate, without its ending.
fn module_of(source: &Source) -> Option<&str> {
    source.path.strip_prefix(CODE)?.strip_suffix(".rs")
}

/// Modules with files of their own that a file declares for tests only.
fn test_modules(source: &Source) -> Vec<String> {
    let Some(module) = module_of(source) else { return Vec::new() };
    let lines: Vec<&str> = source.text.lines().collect();
    let declared = lines.windows(2).filter(|two| two[0] == "#[cfg(test)]").filter_map(|two| {
        let (_, name) = two[1].strip_suffix(';')?.rsplit_once("mod ")?;
        Some(if module == "lib" { name.to_owned() } else { format!("{module}/{name}") })
    });
    declared.collect()
}

/// What is compiled without tests, without comments. A module of tests within a file is the file's last item.
fn code(text: &str) -> String {
    let code = text.lines().take_while(|line| *line != "mod tests {");
    code.filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// Each module of the crate's root that this code of a module names, once.
fn names_at_root(module: &str, code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_$:".contains(&byte);
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if at == 0 || !inner(code.as_bytes()[at - 1]) {
                note_names(tree_at(&code[at..]), module.split('/').count(), &mut names);
            }
        }
    }
    names
}

/// The path at the beginning of `code`, or the tree of paths.
fn tree_at(code: &str) -> &str {
    let mut depth = 0;
    let ends = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth < 0 || depth == 0 && !(c.is_alphanumeric() || "_:}".contains(c))
    };
    &code[..code.find(ends).unwrap_or(code.len())]
}

/// Notes which modules of the root a tree of paths begins with, if it is read in a module so far below the root.
fn note_names(tree: &str, below: usize, names: &mut BTreeSet<String>) {
    let tree = tree.trim();
    if let Some(rest) = tree.strip_prefix("crate::") {
        note_names(rest, 0, names);
    } else if let Some(rest) = tree.strip_prefix("super::") {
        note_names(rest, below.saturating_sub(1), names);
    } else if let Some(group) = tree.strip_prefix('{') {
        split(group.strip_suffix('}').unwrap_or(group)).for_each(|tree| note_names(tree, below, names));
    } else if let Some(name) = tree.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|_| below == 0) {
        names.extend((!name.is_empty()).then(|| name.to_owned()));
    }
}

/// The parts of a group, which commas separate.
fn split(group: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    group.split(move |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(module: &str, text: &str) -> Source {
        Source { path: format!("{CODE}{module}.rs"), text: text.to_owned() }
    }

    fn found(module: &str, text: &str) -> Vec<String> {
        let layers = ["low", "middle", "high"].map(str::to_owned);
        let root = file("lib", "mod low;\nmod high;\n#[cfg(test)]\nmod bed;\npub use crate::high::Top;\n");
        let files = [root, file("low", ""), file("middle", ""), file("high", ""), file(module, text)];
        upward(&files, &layers)
    }

    #[test]
    fn an_import_from_a_higher_layer_is_found_however_it_is_written() {
        let wrong = |name: &str| vec![format!("{CODE}middle/a.rs: `middle` imports `{name}`")];
        for text in [
            "use crate::high::Top;\n",
            "use crate::{\n    high::{Top, b::C},\n    low::D,\n};\n",
            "use crate::{low::{A, B}, high};\n",
            "use super::super::high::Top;\n",
            "use super::{B, super::{high::Top, low::D}};\n",
            "pub(crate) use crate::high::Top;\n",
            "fn f() { let top = crate::high::Top::new(); }\n",
            "fn f(top: &super::super::high::Top) {}\n",
            "#[cfg(test)]\nmod tests;\n\nuse crate::high::Top;\n",
        ] {
            assert_eq!(found("middle/a", text), wrong("high"), "{text}");
        }
        assert_eq!(found("middle/a", "use crate::Top;\n"), wrong("Top"), "the root is no layer");
    }

    #[test]
    fn imports_from_lower_layers_and_of_tests_are_not() {
        let text = "//! [`Top`](crate::high::Top)\nuse crate::{low::{self, A}, middle::b};\nuse super::{B, c::high};\n\
            use other::high;\n\n#[cfg(test)]\nmod tests {\n    use crate::high::Top;\n}\n";
        assert_eq!(found("middle/a", text), Vec::<String>::new());
        assert_eq!(found("bed", "use crate::high::Top;\n"), Vec::<String>::new());
        assert_eq!(found("bed/b", "use crate::high::Top;\n"), Vec::<String>::new());
        assert_eq!(found("high/a", "use super::super::low;\nuse crate::middle::B;\n"), Vec::<String>::new());
    }

    #[test]
    fn code_and_table_have_the_same_layers() {
        assert_eq!(found("new/a", ""), [format!("{CODE}new/a.rs: `new` is no layer of {TABLE}")]);
        let layers = ["low", "gone"].map(str::to_owned);
        assert_eq!(upward(&[file("low/a", "")], &layers), [format!("{TABLE}: layer `gone` is not there")]);
        let page = format!("text\n\n{TABLE_HEAD}| `low` | `a` |\n| `high` | b |\n\n| `none` | c |\n");
        assert_eq!(rows(&page), ["low", "high"]);
    }
}
