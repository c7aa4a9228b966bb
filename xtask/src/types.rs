//! The size of types: part of `cargo xtask tidy`.
//!
//! A type with many public functions, or with inherent `impl` blocks in many files, does the work of several types. Both
//! have a limit. Types beyond one stand in `type-exceptions.txt` with their figures, which must be exact: they can only
//! shrink, and a line whose type is within the limits must go.
//!
//! Types are counted by crate and name in formatted source: an inherent `impl` begins at a line `impl … {` without
//! ` for ` and ends at the first line that contains only a closing brace at the same indentation. Counted are functions
//! with `pub` alone: others are not public. Functions that a macro makes count once. Modules under `cfg(test)`, tests,
//! benches and examples are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::process::top;

/// The largest number of public functions of a type.
const FUNCTIONS: usize = 40;
/// The largest number of files with inherent `impl` blocks of a type.
const FILES: usize = 3;
const EXCEPTIONS: &str = "xtask/type-exceptions.txt";

/// The figures of one type.
#[derive(Default)]
struct Count {
    functions: usize,
    files: BTreeSet<String>,
}

/// The types of the workspace by crate and name.
#[derive(Default)]
pub struct Types {
    counts: BTreeMap<String, Count>,
}

impl Types {
    /// Adds the inherent `impl` blocks of a source file, given by its path in the workspace.
    pub fn add(&mut self, file: &str, text: &str) {
        let Some((crate_name, path)) = file.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")) else {
            return;
        };
        if path.ends_with("tests.rs") || path.contains("tests/") {
            return;
        }
        let mut open: Option<(String, String)> = None;
        let mut skipped: Option<String> = None;
        let mut test_next = false;
        for line in text.lines() {
            let indentation = &line[..line.len() - line.trim_start().len()];
            if let Some(closing) = &skipped {
                if line == closing {
                    skipped = None;
                }
                continue;
            }
            if test_next && line.trim_start().starts_with("mod ") && line.ends_with('{') {
                skipped = Some(format!("{indentation}}}"));
                continue;
            }
            test_next = line.trim() == "#[cfg(test)]";
            match &open {
                Some((_, closing)) if line == closing => open = None,
                Some((name, closing)) => {
                    let depth = closing.len() - 1 + 4;
                    if indentation.len() == depth && is_public_function(line) {
                        self.counts.entry(name.clone()).or_default().functions += 1;
                    }
                }
                None => {
                    if let Some(name) = implemented(line.trim_start()) {
                        let name = format!("{crate_name}::{name}");
                        self.counts.entry(name.clone()).or_default().files.insert(file.to_owned());
                        open = Some((name, format!("{indentation}}}")));
                    }
                }
            }
        }
    }

    /// Compares all types with the limits and the exceptions.
    pub fn check(&self) -> Result<Vec<String>, String> {
        let text = fs::read_to_string(top().join(EXCEPTIONS)).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
        Ok(self.compare(&exceptions(&text)?))
    }

    fn compare(&self, exceptions: &BTreeMap<String, (usize, usize)>) -> Vec<String> {
        let mut violations = Vec::new();
        for (name, count) in &self.counts {
            let (functions, files) = (count.functions, count.files.len());
            let within = functions <= FUNCTIONS && files <= FILES;
            match exceptions.get(name) {
                None if within => {}
                None => violations.push(format!(
                    "{name}: {functions} public functions in {files} files, at most {FUNCTIONS} in {FILES}: split the type"
                )),
                Some(_) if within => violations.push(format!("{name}: within the limits, remove it from {EXCEPTIONS}")),
                Some(figures) if *figures == (functions, files) => {}
                Some((most, in_files)) if functions <= *most && files <= *in_files => violations.push(format!(
                    "{name}: shrank to {functions} functions in {files} files: lower its figures in {EXCEPTIONS}"
                )),
                Some((most, in_files)) => violations.push(format!(
                    "{name}: {functions} public functions in {files} files, it had {most} in {in_files}: it may only shrink"
                )),
            }
        }
        let gone = exceptions.keys().filter(|name| !self.counts.contains_key(*name));
        violations.extend(gone.map(|name| format!("{name}: there is no such type, remove it from {EXCEPTIONS}")));
        violations
    }

    /// The `most` types with the largest number of public functions, with both figures.
    pub fn largest(&self, most: usize) -> Vec<String> {
        let mut all: Vec<_> = self.counts.iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse((count.functions, count.files.len())));
        let row = |(name, count): (&String, &Count)| format!("{name} {} in {}", count.functions, count.files.len());
        all.into_iter().take(most).map(row).collect()
    }
}

/// The name of the type that an `impl` line implements; `None` for other lines and for traits' implementations.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    if line.contains(" for ") {
        return None;
    }
    let rest = match rest.strip_prefix('<') {
        Some(generics) => after_generics(generics)?,
        None => rest,
    };
    let path = rest.strip_prefix(' ')?;
    let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(path.len());
    let name = path[..end].rsplit("::").next()?;
    name.starts_with(char::is_uppercase).then_some(name)
}

/// The text after generic parameters whose opening bracket was read.
fn after_generics(text: &str) -> Option<&str> {
    let mut depth = 1;
    let mut last = ' ';
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if last != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[at + 1..]);
        }
        last = character;
    }
    None
}

fn is_public_function(line: &str) -> bool {
    let Some(mut rest) = line.trim_start().strip_prefix("pub ") else { return false };
    let words = ["const ", "async ", concat!("un", "safe ")];
    while let Some(next) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = next;
    }
    rest.starts_with("fn ")
}

/// Reads lines `crate::Type FUNCTIONS FILES`.
fn exceptions(text: &str) -> Result<BTreeMap<String, (usize, usize)>, String> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let malformed = || format!("{EXCEPTIONS}: malformed line {line:?}");
        let mut words = line.split_whitespace();
        let name = words.next().ok_or_else(malformed)?;
        let mut figure = || words.next().and_then(|word| word.parse().ok()).ok_or_else(malformed);
        found.insert(name.to_owned(), (figure()?, figure()?));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "impl<T: Fn() -> u8> Wide<T> {\n    pub fn a(&self) {\n    }\n    pub async fn b(&self) {}\n    \
                          pub(crate) fn c() {}\n}\nimpl Clone for Wide {\n    fn clone() {}\n}\n#[cfg(test)]\nmod tests {\n    \
                          impl Wide {\n        pub fn d() {}\n    }\n}\n";

    fn types(files: usize) -> Types {
        let mut types = Types::default();
        (0..files).for_each(|file| types.add(&format!("crates/x/src/{file}.rs"), SOURCE));
        types
    }

    #[test]
    fn public_functions_and_files_are_counted() {
        assert_eq!(types(2).largest(1), ["x::Wide 4 in 2"]);
    }

    #[test]
    fn a_type_in_too_many_files_is_a_violation() {
        assert!(types(3).compare(&BTreeMap::new()).is_empty());
        let found = types(4).compare(&BTreeMap::new());
        assert!(found.len() == 1 && found[0].contains("8 public functions in 4 files"), "{found:?}");
    }

    #[test]
    fn exceptions_can_only_shrink() {
        let permitted = |functions, files| BTreeMap::from([("x::Wide".to_owned(), (functions, files))]);
        assert!(types(4).compare(&permitted(8, 4)).is_empty());
        assert!(types(4).compare(&permitted(7, 4))[0].contains("may only shrink"));
        assert!(types(4).compare(&permitted(9, 5))[0].contains("lower its figures"));
        assert!(types(3).compare(&permitted(6, 4))[0].contains("remove it"));
        assert!(Types::default().compare(&permitted(6, 4))[0].contains("no such type"));
    }
}
