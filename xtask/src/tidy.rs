//! `cargo xtask tidy`: rules that neither the compiler nor clippy checks.
//!
//! - Layering: the table below is the only place that allows an edge between crates. It is checked against `cargo
//!   metadata`, so each new edge is a reviewed line here.
//! - Sizes: source files and functions have a maximum length. Files and functions that are longer today are listed
//!   with their length in `tidy-exceptions.txt`; these lengths can only decrease.
//! - Types have a maximum number of public functions and of files that implement them (`types`).
//! - Every module opens with its documentation (`//!`); no unfinished work; no path of one machine; `unsafe` only in
//!   the listed crates; locks have a place in the order of locks.
//! - Language: no banned words (`words`), no packed tuple bindings.
//!
//! Functions are measured by rustfmt's layout: a function begins at a line with `fn` and ends at the first line that
//! contains only a closing brace at the same indentation. This is a heuristic for formatted code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::licences::metadata;
use crate::process::{Outcome, top};
use crate::types::Types;
use crate::words;

/// The workspace crates that each crate may depend on. A crate absent here may depend on none.
const EDGES: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("codec", &["format"]),
    ("machine", &[]),
    ("linux", &["machine"]),
    ("sim", &["machine"]),
    ("object-store", &["machine", "linux"]),
    ("blocks", &["format", "codec", "machine"]),
    ("cache", &["format", "codec", "machine", "blocks"]),
    ("dmu", &["format", "codec", "machine", "blocks", "cache"]),
    ("zil", &["format", "codec", "machine", "blocks", "cache", "dmu"]),
    ("dsl", &["format", "codec", "machine", "blocks", "cache", "dmu"]),
    ("send", &["format", "codec", "machine", "blocks", "dmu", "dsl"]),
    ("files", &["format", "machine", "dmu", "zil", "dsl"]),
    ("volumes", &["format", "machine", "dmu", "zil", "dsl"]),
    ("pool", &["format", "codec", "machine", "blocks", "cache", "dmu", "zil", "dsl", "files", "volumes"]),
    (
        "engine",
        &["format", "codec", "machine", "blocks", "cache", "dmu", "zil", "dsl", "send", "files", "volumes", "pool"],
    ),
    ("front", &["machine"]),
    ("nfs", &["machine", "front"]),
    ("nbd", &["machine", "front"]),
    ("iscsi", &["machine", "front"]),
    ("analytics", &["format", "codec", "machine", "doctor", "blocks", "dsl", "files", "pool", "engine"]),
    ("admin", &["format", "machine", "blocks", "dmu", "dsl", "files", "pool", "engine", "analytics", "front"]),
    ("program", &["format", "machine", "dmu", "dsl", "pool", "engine", "admin"]),
    ("web", &["machine", "engine", "front", "analytics"]),
    ("csi", &["machine", "dsl", "front", "admin"]),
    ("lab", &["format", "codec", "machine"]),
    ("planner", &["format", "codec", "machine", "sim", "blocks", "dsl", "files", "volumes", "pool", "engine"]),
    ("fuse", &["machine", "linux", "files"]),
    ("doctor", &[]),
    ("smb", &["machine"]),
    (
        "daemon",
        &[
            "codec", "machine", "dmu", "zil", "dsl", "files", "volumes", "pool", "engine", "front", "nfs", "nbd",
            "iscsi", "fuse", "smb",
        ],
    ),
    (
        "weir",
        &[
            "format",
            "codec",
            "machine",
            "linux",
            "object-store",
            "blocks",
            "cache",
            "dmu",
            "zil",
            "dsl",
            "send",
            "files",
            "volumes",
            "pool",
            "engine",
            "analytics",
            "admin",
            "web",
            "lab",
            "planner",
            "program",
            "daemon",
            "doctor",
            "csi",
        ],
    ),
    (
        "conformance",
        &[
            "format",
            "codec",
            "machine",
            "linux",
            "sim",
            "blocks",
            "cache",
            "dmu",
            "zil",
            "dsl",
            "send",
            "files",
            "volumes",
            "pool",
            "engine",
            "front",
            "nfs",
            "nbd",
            "iscsi",
            "object-store",
            "smb",
            "analytics",
            "admin",
            "csi",
            "daemon",
            "doctor",
            "lab",
            "planner",
            "web",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that the tests of every crate may also depend on: they contain no engine code.
const TEST_ONLY: &[&str] = &["sim", "linux", "object-store"];

/// The only crates with `unsafe`: the codec's SIMD kernels and the operating system interface.
const UNSAFE_CRATES: &[&str] =
    &["crates/codec/", "crates/linux/", "crates/machine/src/slab.rs", "crates/machine/src/buf.rs"];

/// Places of locks without an order: the platform's implementations and the locks themselves, the codec, which is below them,
/// and the programs that judge.
const UNORDERED_LOCKS: &[&str] = &[
    "crates/linux/",
    "crates/sim/",
    "crates/planner/",
    "crates/conformance/",
    "crates/codec/",
    "crates/machine/src/lock",
    "xtask/",
];

const FILE_LINES: usize = 600;
const TEST_FILE_LINES: usize = 1000;
const FUNCTION_LINES: usize = 80;
const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";

/// Entry point of the task: prints every violation and fails if there is one.
pub fn run() -> Outcome {
    let mut violations = edges(&metadata(true)?);
    let mut sizes = Sizes::read()?;
    let mut types = Types::default();
    let top = top();
    let mut files = Vec::new();
    collect(&top, &mut files)?;
    files.sort();
    for path in &files {
        let name = path.strip_prefix(&top).unwrap_or(path).to_string_lossy().into_owned();
        let Ok(text) = fs::read_to_string(path) else { continue };
        violations.extend(leftovers(&name, &text));
        violations.extend(words::check(&name, &text));
        if name.ends_with(".rs") {
            violations.extend(module_docs(&name, &text));
            violations.extend(unsafe_outside(&name, &text));
            violations.extend(locks_without_order(&name, &text));
            violations.extend(sizes.check(&name, &text));
            types.add(&name, &text);
        }
    }
    violations.extend(sizes.unused_exceptions());
    violations.extend(types.check()?);
    if violations.is_empty() {
        println!("tidy: {} files checked; largest types: {}", files.len(), types.largest(5).join(", "));
        return Ok(());
    }
    Err(format!("{}\ntidy: {} violations", violations.join("\n"), violations.len()))
}

/// Compares every dependency between workspace crates with the table.
fn edges(metadata: &serde_json::Value) -> Vec<String> {
    let mut violations = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = short(package["name"].as_str().unwrap_or_default());
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            violations.push(format!("layering: crate {name} is not in the table of xtask/src/tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["path"].is_null() {
                continue;
            }
            let to = short(dependency["name"].as_str().unwrap_or_default());
            let in_tests = dependency["kind"].as_str() == Some("dev");
            if !allowed.contains(&to) && !(in_tests && (TEST_ONLY.contains(&to) || to == name)) {
                violations.push(format!("layering: {name} must not use {to}"));
            }
        }
    }
    violations
}

fn short(name: &str) -> &str {
    name.strip_prefix("weir-").unwrap_or(name)
}

/// Collects the repository's text files, without build output and hidden files except `.ci`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "corpus" && name != "artifacts" && (!name.starts_with('.') || name == ".ci")
            {
                collect(&path, files)?;
            }
        } else if is_text(&name) || path.parent().and_then(Path::file_name).is_some_and(|name| name == ".ci") {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    [".rs", ".md", ".toml", ".sh", ".txt", ".yml"].iter().any(|ending| name.ends_with(ending))
}

/// Marks of unfinished work, and paths that exist on one machine only.
fn leftovers(name: &str, text: &str) -> Vec<String> {
    // Concatenated from halves so that this file does not contain the marks.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
    ];
    let places = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!("/ho", "me/")];
    let mut violations = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
            violations.push(format!("{name}:{}: leftover {mark}", number + 1));
        }
        if let Some(place) = places.iter().find(|place| line.contains(**place)) {
            violations.push(format!("{name}:{}: path of one machine ({place})", number + 1));
        }
    }
    violations
}

/// Each module except tests must open with `//!`.
fn module_docs(name: &str, text: &str) -> Option<String> {
    let opens = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#![")).unwrap_or_default();
    let exempt = name.ends_with("/tests.rs") || name.contains("/tests/") || name.ends_with("build.rs");
    (!exempt && !opens.starts_with("//!")).then(|| format!("{name}: does not open with module documentation (//!)"))
}

fn unsafe_outside(name: &str, text: &str) -> Vec<String> {
    let word = concat!("un", "safe");
    if UNSAFE_CRATES.iter().any(|path| name.starts_with(path)) {
        return Vec::new();
    }
    let used = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        [" {", " fn", " impl"].iter().any(|after| code.contains(&format!("{word}{after}")))
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| used(line))
        .map(|(number, _)| format!("{name}:{}: {word} outside codec and machine", number + 1))
        .collect()
}

/// Locks of the standard library outside tests, whose order nothing checks.
fn locks_without_order(name: &str, text: &str) -> Vec<String> {
    let is_source = name.contains("/src/") && !name.ends_with("/tests.rs") && !name.contains("/tests/");
    if !is_source || UNORDERED_LOCKS.iter().any(|place| name.starts_with(place)) {
        return Vec::new();
    }
    let is_lock = |line: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        line.contains("std::sync::") && words.any(|word| matches!(word, "Mutex" | "RwLock"))
    };
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines()
        .enumerate()
        .filter(|(_, line)| is_lock(line))
        .map(|(number, _)| format!("{name}:{}: a lock of std::sync: use weir_machine::lock", number + 1))
        .collect()
}

/// Checks lengths against the limits and the exceptions.
struct Sizes {
    /// `path` or `path::function` → the permitted length.
    exceptions: BTreeMap<String, usize>,
    used: Vec<String>,
}

impl Sizes {
    fn read() -> Result<Sizes, String> {
        let text = fs::read_to_string(top().join(EXCEPTIONS)).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
        let mut exceptions = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let (name, lines) =
                line.rsplit_once(' ').ok_or_else(|| format!("{EXCEPTIONS}: malformed line {line:?}"))?;
            let lines = lines.parse().map_err(|_| format!("{EXCEPTIONS}: malformed length in {line:?}"))?;
            exceptions.insert(name.to_string(), lines);
        }
        Ok(Sizes { exceptions, used: Vec::new() })
    }

    fn check(&mut self, name: &str, text: &str) -> Vec<String> {
        let tests = name.ends_with("/tests.rs") || name.contains("/tests/");
        let mut violations = Vec::new();
        let limit = if tests { TEST_FILE_LINES } else { FILE_LINES };
        violations.extend(self.over(name, text.lines().count(), limit));
        for (function, lines) in functions(text) {
            violations.extend(self.over(&format!("{name}::{function}"), lines, FUNCTION_LINES));
        }
        violations
    }

    fn over(&mut self, name: &str, lines: usize, limit: usize) -> Option<String> {
        if lines <= limit {
            return None;
        }
        match self.exceptions.get(name) {
            Some(figure) if lines == *figure => {
                self.used.push(name.to_string());
                None
            }
            Some(figure) if lines < *figure => {
                self.used.push(name.to_string());
                Some(format!("{name}: shrank from {figure} to {lines} lines: lower its length in {EXCEPTIONS}"))
            }
            _ => Some(format!("{name}: {lines} lines, at most {limit}")),
        }
    }

    fn unused_exceptions(&self) -> Vec<String> {
        let unused_exceptions = self.exceptions.keys().filter(|name| !self.used.contains(name));
        unused_exceptions.map(|name| format!("{name}: no longer too long, remove it from {EXCEPTIONS}")).collect()
    }
}

/// Name and length of each function in formatted source. Of two functions with the same name, the longer one is
/// reported.
fn functions(text: &str) -> BTreeMap<String, usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = BTreeMap::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let depth = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(depth));
        let one_line = line.ends_with('}') || line.ends_with(';');
        let Some(end) = lines[start..].iter().position(|line| **line == closing) else { continue };
        if !one_line {
            let longest = found.entry(name.to_string()).or_insert(0);
            *longest = (end + 1).max(*longest);
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    let words = ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", concat!("un", "safe "), "extern \"C\" "];
    while let Some(next) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = next;
    }
    let name = rest.strip_prefix("fn ")?;
    let end = name.find(|character: char| !(character.is_alphanumeric() || character == '_'))?;
    Some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_by_indentation() {
        let text = "impl A {\n    pub async fn long(&self) {\n        if x {\n        }\n    }\n\n    fn short() {}\n}\nfn last() {\n}\n";
        let found = functions(text);
        assert_eq!(found.get("long"), Some(&4));
        assert_eq!(found.get("last"), Some(&2));
        assert_eq!(found.get("short"), None);
    }

    #[test]
    fn an_upward_edge_is_a_violation() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "weir-format", "dependencies": [{ "name": "weir-pool", "path": "x", "kind": null }] },
            { "name": "weir-codec", "dependencies": [{ "name": "weir-format", "path": "x", "kind": null }] },
            { "name": "weir-blocks", "dependencies": [{ "name": "weir-sim", "path": "x", "kind": "dev" }] },
            { "name": "weir-odd", "dependencies": [] },
        ]});
        assert_eq!(
            edges(&metadata),
            ["layering: format must not use pool", "layering: crate odd is not in the table of xtask/src/tidy.rs"]
        );
    }

    #[test]
    fn locks_have_an_order() {
        let text = "use std::sync::{Arc, Mutex};\n#[cfg(test)]\nuse std::sync::RwLock;\n";
        let found = locks_without_order("crates/files/src/tree.rs", text);
        assert_eq!(found, ["crates/files/src/tree.rs:1: a lock of std::sync: use weir_machine::lock"]);
        assert!(locks_without_order("crates/linux/src/net.rs", text).is_empty());
        assert!(locks_without_order("crates/files/src/tree.rs", "use std::sync::{Arc, MutexGuard};").is_empty());
    }

    #[test]
    fn exceptions_only_decrease() {
        let mut sizes =
            Sizes { exceptions: [("a.rs".to_string(), 700), ("b.rs".to_string(), 650)].into(), used: vec![] };
        assert_eq!(sizes.over("a.rs", 700, 600), None);
        assert!(sizes.over("a.rs", 690, 600).is_some_and(|violation| violation.contains("lower its length")));
        assert!(sizes.over("a.rs", 701, 600).is_some_and(|violation| violation.contains("at most 600")));
        assert_eq!(sizes.unused_exceptions().len(), 1);
    }

    #[test]
    fn unfinished_work_and_local_paths_are_found() {
        let text = format!("// {}: later\nlet p = \"{}x\";\n", concat!("TO", "DO"), concat!("/wo", "rk/"));
        assert_eq!(leftovers("a.rs", &text).len(), 2);
    }
}
