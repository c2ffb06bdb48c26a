//! The limits that keep the code readable, counted: files, functions, lines, the seam, where placements are named, and
//! what imports upward.
//! Clippy has the same limit for functions (`too-many-lines-threshold` in clippy.toml).

mod layers;

use std::{collections::BTreeMap, fs, process::Command};

/// Lines of a Rust file.
const FILE_LINES_MAX: usize = 500;

/// Lines of a function between its first and its last, without empty ones and comments.
const FUNCTION_LINES_MAX: usize = 60;

/// What may stand before `fn`.
const QUALIFIERS: [&str; 10] = ["", "pub", "crate", "super", "in", "const", "unsafe", "async", "extern", "C"];

/// Columns of a line.
const COLUMNS_MAX: usize = 120;

/// Files and lines that are still above these limits, which no change may add to: they are to become none.
const LONG_FILES_LEFT: usize = 0;
const WIDE_LINES_LEFT: usize = 0;

/// Methods that a placement must write itself.
const REQUIRED_METHODS_MAX: usize = 8;

/// Where the trait is.
const SEAM: &str = "crates/values/src/placement.rs";

/// What a placement may not be called outside its own module, its registration and tests.
const PLACEMENTS: [&str; 10] =
    ["HashKv", "hashkv", "DiffKv", "diffkv", "NovKv", "novkv", "UniKv", "unikv", "WiscKey", "wisckey"];

/// Crates of the engine: others (the program, the lab, the simulations, the advice) name placements because users do.
const ENGINE: [&str; 6] = ["contract", "format", "io", "index", "values", "bifold"];

/// Where placements are defined, registered and described to users.
const REGISTRATION: [&str; 4] = [
    "crates/values/src/placements",
    "crates/bifold/src/settings/options",
    "crates/bifold/src/state/presets.rs",
    "crates/bifold/src/lib.rs",
];

/// A page that names functions in steps such as `read.rs:look`.
struct Page {
    path: &'static str,
    /// Where the files of a step may be: its path is the end of theirs.
    roots: &'static [&'static str],
}

/// The pages whose steps must be there: the walk through the code, and the papers' rows with their code and tests.
const PAGES: [Page; 2] = [
    Page { path: "ARCHITECTURE.md", roots: &["crates/bifold/src/", "crates/index/src/", "crates/values/src/"] },
    Page { path: "docs/papers.md", roots: &["crates/"] },
];

/// Counts everything, prints the counts, and fails when one is above its limit.
pub fn run() -> Result<(), String> {
    let files = sources()?;
    let mut problems = Vec::new();
    let mut count = |what: &str, found: Vec<String>, most: usize| {
        println!("{what}: {} (at most {most})", found.len());
        if found.len() > most {
            problems.extend(found.into_iter().map(|place| format!("{place}: {what}")));
        }
    };
    count("files of more than 500 lines", files.iter().filter_map(long_file).collect(), LONG_FILES_LEFT);
    count("functions of more than 60 lines", files.iter().flat_map(long_functions).collect(), 0);
    count("lines of more than 120 columns", files.iter().flat_map(wide_lines).collect(), WIDE_LINES_LEFT);
    count("placements named elsewhere", files.iter().flat_map(strange_names).collect(), 0);
    count("types that share their name with another of their crate", same_names(&files), 0);
    let layers = layers::listed()?;
    count("imports in bifold of what is not in a lower layer", layers::upward(&files, &layers), 0);
    for page in &PAGES {
        let text = fs::read_to_string(page.path).map_err(|e| format!("{}: {e}", page.path))?;
        count(&format!("functions that {} names and that are not there", page.path), page.lost(&text, &files), 0);
    }
    let papers = &PAGES[1];
    let text = fs::read_to_string(papers.path).map_err(|e| format!("{}: {e}", papers.path))?;
    count(&format!("functions that {} calls tests and that are none", papers.path), papers.untested(&text, &files), 0);
    let required = required_methods(&files)?;
    println!("required methods of `Placement`: {required} (at most {REQUIRED_METHODS_MAX})");
    if required > REQUIRED_METHODS_MAX {
        problems.push(format!("{SEAM}: `Placement` requires {required} methods, not {REQUIRED_METHODS_MAX} at most"));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// A Rust file of this repository.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

fn sources() -> Result<Vec<Source>, String> {
    let listed =
        Command::new("git").args(["ls-files", "*.rs"]).output().map_err(|e| format!("cannot start git: {e}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let read = |path: &str| {
        let text = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        Ok(Source { path: path.to_owned(), text })
    };
    let files: Vec<Source> =
        String::from_utf8_lossy(&listed.stdout).lines().map(read).collect::<Result<_, String>>()?;
    if files.is_empty() { Err("git lists no Rust files here".to_owned()) } else { Ok(files) }
}

fn long_file(file: &Source) -> Option<String> {
    let lines = file.text.lines().count();
    (lines > FILE_LINES_MAX).then(|| format!("{} ({lines} lines)", file.path))
}

/// A function ends at the first brace that is indented as far as it is: rustfmt sees to that.
fn long_functions(file: &Source) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let is_first = |line: &str| !is_comment(line) && words(line).find(|word| !QUALIFIERS.contains(word)) == Some("fn");
    let indent = |line: &str| line.len() - line.trim_start().len();
    let counts = |line: &&&str| !line.trim().is_empty() && !is_comment(line);
    let too_long = |(at, first): (usize, &&str)| {
        let as_far = |line: &&str| indent(line) == indent(first);
        let body = at + lines[at..].iter().position(|line| as_far(line) && line.ends_with(['{', '}', ';']))?;
        if !lines[body].ends_with('{') {
            return None;
        }
        let end = body + lines[body..].iter().position(|line| as_far(line) && line.trim() == "}")?;
        let count = lines[body + 1..end].iter().filter(counts).count();
        (count > FUNCTION_LINES_MAX).then(|| format!("{}:{} ({count} lines)", file.path, at + 1))
    };
    lines.iter().enumerate().filter(|(_, line)| is_first(line)).filter_map(too_long).collect()
}

fn wide_lines(file: &Source) -> Vec<String> {
    let is_wide = |&(_, line): &(usize, &str)| line.chars().count() > COLUMNS_MAX;
    file.lines().filter(is_wide).map(|(at, _)| format!("{}:{at}", file.path)).collect()
}

/// Code of the engine, not its comments and tests, that names a placement.
fn strange_names(file: &Source) -> Vec<String> {
    let is_engine = ENGINE.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
    let is_exempt = REGISTRATION.iter().any(|place| file.path.starts_with(place));
    if !is_engine || is_exempt || file.path.ends_with("tests.rs") {
        return Vec::new();
    }
    let code = file.lines().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    let code = code.filter(|(_, line)| !line.trim_start().starts_with("//"));
    let names_one = |line: &str| words(line).any(|word| PLACEMENTS.contains(&word));
    code.filter(|(_, line)| names_one(line)).map(|(at, _)| format!("{}:{at}", file.path)).collect()
}

/// Types outside of tests that another file of their crate declares, too, public or not.
fn same_names(files: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for file in files {
        let Some((name, path)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        if path.split('/').any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        for (at, line) in file.lines().take_while(|(_, line)| *line != "mod tests {") {
            if let Some(declared) = declared_type(line) {
                places.entry((name, declared)).or_default().push(format!("{}:{at} ({declared})", file.path));
            }
        }
    }
    places.into_values().filter(|places| places.len() > 1).flatten().collect()
}

/// The type that a line declares outside of functions and modules.
fn declared_type(line: &str) -> Option<&str> {
    if line.starts_with([' ', '/']) {
        return None;
    }
    let is_keyword = |word: &&str| ["struct", "enum", "trait", "union"].contains(word);
    let mut words = words(line).filter(|word| !word.is_empty() && !QUALIFIERS.contains(word) && *word != "super");
    words.next().filter(is_keyword).and_then(|_| words.next())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

impl Page {
    /// Steps of the page's text whose file has no such function.
    fn lost(&self, text: &str, files: &[Source]) -> Vec<String> {
        let code = text.split('`').skip(1).step_by(2);
        let steps = code.filter_map(|code| code.split_once(".rs:"));
        let lost = steps.filter(|(file, function)| !self.has(file, function, files));
        lost.map(|(file, function)| format!("{}: `{file}.rs:{function}`", self.path)).collect()
    }

    fn has(&self, file: &str, function: &str, files: &[Source]) -> bool {
        let declared = declarations(function);
        self.files_of(file, files).any(|source| declared.iter().any(|declared| source.text.contains(declared)))
    }

    /// The files that a step may mean by `file`.
    fn files_of<'a>(&self, file: &str, files: &'a [Source]) -> impl Iterator<Item = &'a Source> {
        let (ending, roots) = (format!("/{file}.rs"), self.roots);
        files.iter().filter(move |source| {
            roots.iter().any(|root| source.path.starts_with(root)) && source.path.ends_with(&ending)
        })
    }

    /// Functions in the columns `test` of the page's tables that no test runner runs.
    fn untested(&self, text: &str, files: &[Source]) -> Vec<String> {
        let rows = battery_rows(files);
        let (mut found, mut column) = (Vec::new(), None);
        for line in text.lines() {
            let cells: Vec<&str> = line.split(" | ").map(|cell| cell.trim_matches([' ', '|'])).collect();
            if !line.starts_with('|') {
                column = None;
            } else if let Some(at) = cells.iter().position(|cell| *cell == "test") {
                column = Some(at);
            } else if let Some(cell) = column.and_then(|at| cells.get(at)) {
                let steps = cell.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(".rs:"));
                let is_none = |(file, function): &(&str, &str)| {
                    let is_row = |source: &Source| rows.contains(&row(&source.path, function));
                    !self.files_of(file, files).any(|source| is_test(source, function) || is_row(source))
                };
                found.extend(
                    steps.filter(is_none).map(|(file, function)| format!("{}: `{file}.rs:{function}`", self.path)),
                );
            }
        }
        found
    }
}

/// How a function's declaration begins in the code.
fn declarations(function: &str) -> [String; 2] {
    let name = function.rsplit("::").next().unwrap_or(function);
    ["(", "<"].map(|end| format!("fn {name}{end}"))
}

/// Whether a function of this name has the attribute `#[test]`, as tests in `proptest!` have, too.
fn is_test(source: &Source, function: &str) -> bool {
    let declared = declarations(function);
    let mut has_attribute = false;
    for line in source.text.lines().map(str::trim) {
        if line == "#[test]" {
            has_attribute = true;
        } else if has_attribute && declared.iter().any(|declared| line.contains(declared)) {
            return true;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            has_attribute = false;
        }
    }
    false
}

/// Where the macros are that make a test of each row of the battery.
const BATTERY: &str = "crates/conformance/src/lib.rs";

/// The rows that the battery's macros make tests of, as `module: function`.
fn battery_rows(files: &[Source]) -> Vec<String> {
    let battery = files.iter().filter(|source| source.path == BATTERY);
    battery.flat_map(|source| source.text.lines().map(|line| line.trim().to_owned())).collect()
}

/// How the battery's macros name a function of a file of its crate.
fn row(path: &str, function: &str) -> String {
    let module = path.strip_prefix("crates/conformance/src/").and_then(|file| file.strip_suffix(".rs"));
    module.map_or_else(String::new, |module| format!("{module}: {function}"))
}

/// Methods of the trait that end with a semicolon: those without a body of their own.
fn required_methods(files: &[Source]) -> Result<usize, String> {
    let seam = files.iter().find(|file| file.path == SEAM).ok_or_else(|| format!("{SEAM} is not there"))?;
    let mut lines = seam.text.lines().skip_while(|line| !line.starts_with("pub trait Placement"));
    if lines.next().is_none() {
        return Err(format!("{SEAM} has no `pub trait Placement`"));
    }
    let body: Vec<&str> = lines.take_while(|line| *line != "}").collect();
    Ok(count_required(&body))
}

fn count_required(body: &[&str]) -> usize {
    let mut required = 0;
    let mut is_signature = false;
    for line in body.iter().map(|line| line.trim()).filter(|line| !line.starts_with("//")) {
        is_signature |= line.starts_with("fn ");
        if is_signature && line.ends_with(';') {
            required += 1;
        }
        if is_signature && (line.ends_with(';') || line.ends_with('{') || line.ends_with('}')) {
            is_signature = false;
        }
    }
    required
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn long_files_and_wide_lines_are_found() {
        assert_eq!(long_file(&file("a.rs", &"x\n".repeat(500))), None);
        assert_eq!(long_file(&file("a.rs", &"x\n".repeat(501))).as_deref(), Some("a.rs (501 lines)"));
        let wide = format!("{}\n{}\n", "ä".repeat(120), "ä".repeat(121));
        assert_eq!(wide_lines(&file("a.rs", &wide)), ["a.rs:2"]);
    }

    #[test]
    fn long_functions_are_found_however_they_are_indented() {
        let function = |lines: usize| format!("    pub(crate) fn f() {{\n{}    }}\n", "        x();\n".repeat(lines));
        assert!(long_functions(&file("a.rs", &function(60))).is_empty());
        let text = format!("impl A {{\n    // fn\n    fn g();\n{}}}\n", function(61));
        assert_eq!(long_functions(&file("a.rs", &text)), ["a.rs:4 (61 lines)"]);
        assert!(long_functions(&file("a.rs", "fn one_line() {}\nfn f() {\n    // a comment\n\n}\n")).is_empty());
    }

    #[test]
    fn placements_are_named_in_their_own_modules_comments_and_tests_only() {
        let text = "// hashkv\nlet a = HashKv;\n#[cfg(test)]\nmod tests { use HashKv; }\n";
        assert_eq!(strange_names(&file("crates/index/src/a.rs", text)), ["crates/index/src/a.rs:2"]);
        assert!(strange_names(&file("crates/values/src/placements/hashkv.rs", text)).is_empty());
        assert!(strange_names(&file("crates/cli/src/a.rs", text)).is_empty());
        assert!(strange_names(&file("crates/index/src/a.rs", "let hashkv_like = 1;\n")).is_empty());
    }

    #[test]
    fn types_of_one_name_are_found_in_a_crate_and_outside_of_tests() {
        let text = "pub(crate) struct Shape<'a> {\n}\nmod tests {\n    struct Bed;\n}\nenum Later {}\n";
        let other = "enum Shape {}\n/// struct Bed\nstruct Later;\n";
        let places =
            ["index/src/a.rs", "index/src/b/c.rs", "values/src/a.rs", "index/src/d/tests.rs", "index/tests/e.rs"];
        let texts = [text, other, other, other, other];
        let files: Vec<_> =
            places.iter().zip(texts).map(|(path, text)| file(&format!("crates/{path}"), text)).collect();
        assert_eq!(same_names(&files), ["crates/index/src/a.rs:1 (Shape)", "crates/index/src/b/c.rs:1 (Shape)"]);
    }

    #[test]
    fn steps_of_a_page_are_functions_of_their_file() {
        let code = "fn look(&self) {}\nfn find<T>() {}\n";
        let files = [file("crates/bifold/src/read/get.rs", code), file("crates/bifold/tests/all/ranges.rs", code)];
        let text =
            "`get.rs:look`, `get.rs:Engine::find`, `get.rs:gone`, `lost.rs:look`, `ranges.rs:look`, `get.rs`, look";
        let lost = |page: &Page| page.lost(text, &files);
        let [walk, papers] = PAGES;
        assert_eq!(
            lost(&walk),
            ["get.rs:gone", "lost.rs:look", "ranges.rs:look"].map(|s| format!("ARCHITECTURE.md: `{s}`"))
        );
        assert_eq!(lost(&papers), ["get.rs:gone", "lost.rs:look"].map(|s| format!("docs/papers.md: `{s}`")));
    }

    #[test]
    fn what_a_page_calls_a_test_is_run_as_one() {
        let code = "#[test]\n#[ignore]\nfn runs() {}\nfn helps() {}\n\
            proptest! {\n    #[test]\n    fn tries(n in 0..9) {}\n}\n";
        let files = [
            file("crates/index/src/a.rs", code),
            file("crates/conformance/src/moves.rs", "pub fn a01(case: &Case) {}\npub fn a02(case: &Case) {}\n"),
            file(BATTERY, "            moves: a01\n            deletes: a02\n"),
        ];
        let text = "`index/src/a.rs:helps`\n\n| code | test |\n|---|---|\n\
            | `index/src/a.rs:helps` | `index/src/a.rs:runs`, `index/src/a.rs:tries`, `index/src/a.rs:helps` |\n\
            | – | `conformance/src/moves.rs:a01`, `conformance/src/moves.rs:a02` |\n\
            \n| code |\n|---|\n| `index/src/a.rs:helps` |\n";
        let none = ["index/src/a.rs:helps", "conformance/src/moves.rs:a02"].map(|s| format!("docs/papers.md: `{s}`"));
        assert_eq!(PAGES[1].untested(text, &files), none);
    }

    #[test]
    fn methods_without_a_body_are_required() {
        let body = [
            "    /// One; two.",
            "    fn one(&self) -> u64;",
            "",
            "    fn two(",
            "        &self,",
            "    ) -> Result<()>;",
            "    fn three(&self) {}",
            "    fn four(&self) -> u64 {",
            "        let x = 1;",
            "        x",
            "    }",
        ];
        assert_eq!(count_required(&body), 2);
    }
}
