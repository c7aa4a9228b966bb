//! Command lines as OpenZFS's tools take them: single letters that cluster (`-Hpo name`), options anywhere before `--`,
//! long options with or without `=`.

use crate::failure::Failure;
use std::ffi::OsString;

/// Options of a command: letters, those with a value followed by `:`, and long names that are aliases of a letter.
pub struct Spec {
    /// The command, as errors name it.
    pub command: &'static str,
    /// `"Hpo:d:"`.
    pub letters: &'static str,
    /// `("json", 'j')`. A letter that is not in `letters` takes no value.
    pub long: &'static [(&'static str, char)],
    /// One line that shows how it is used.
    pub usage: &'static str,
}

/// A parsed command line.
#[derive(Debug, Default)]
pub struct Args {
    options: Vec<(char, Option<OsString>)>,
    /// Operands in order.
    pub words: Vec<OsString>,
}

impl Spec {
    /// Sorts options from words.
    pub fn parse(&self, line: Vec<OsString>) -> Result<Args, Failure> {
        let mut out = Args::default();
        let mut line = line.into_iter();
        while let Some(word) = line.next() {
            let Some(text) = word.to_str().filter(|t| t.starts_with('-') && t.len() > 1) else {
                out.words.push(word);
                continue;
            };
            if text == "--" {
                out.words.extend(line);
                break;
            }
            if let Some(long) = text.strip_prefix("--") {
                self.long(long, &mut line, &mut out)?;
                continue;
            }
            self.cluster(text, &mut line, &mut out)?;
        }
        Ok(out)
    }

    fn cluster(&self, text: &str, line: &mut impl Iterator<Item = OsString>, out: &mut Args) -> Result<(), Failure> {
        let mut rest = text.chars();
        rest.next();
        while let Some(letter) = rest.next() {
            match self.takes_value(letter) {
                None => return Err(self.unknown(&format!("-{letter}"))),
                Some(false) => out.options.push((letter, None)),
                Some(true) => {
                    let glued: String = rest.collect();
                    let value = if glued.is_empty() { line.next() } else { Some(glued.into()) };
                    let value = value.ok_or_else(|| self.misused(&format!("option -{letter} needs a value")))?;
                    out.options.push((letter, Some(value)));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn long(&self, text: &str, line: &mut impl Iterator<Item = OsString>, out: &mut Args) -> Result<(), Failure> {
        let (name, glued) = match text.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text, None),
        };
        let Some((_, letter)) = self.long.iter().find(|(n, _)| *n == name) else {
            return Err(self.unknown(&format!("--{name}")));
        };
        if self.takes_value(*letter) == Some(true) {
            let value =
                glued.or_else(|| line.next()).ok_or_else(|| self.misused(&format!("option --{name} needs a value")))?;
            out.options.push((*letter, Some(value)));
        } else if glued.is_some() {
            return Err(self.misused(&format!("option --{name} takes no value")));
        } else {
            out.options.push((*letter, None));
        }
        Ok(())
    }

    fn takes_value(&self, letter: char) -> Option<bool> {
        if letter == ':' {
            return None;
        }
        let at = self.letters.find(letter)?;
        Some(self.letters.get(at + letter.len_utf8()..).is_some_and(|rest| rest.starts_with(':')))
    }

    fn unknown(&self, option: &str) -> Failure {
        self.misused(&format!("invalid option '{option}'"))
    }

    /// A failure that ends with the usage line.
    pub fn misused(&self, what: &str) -> Failure {
        Failure::usage(format!("{}: {what}\nusage: {}", self.command, self.usage))
    }
}

impl Args {
    /// Whether the option was given.
    pub fn has(&self, letter: char) -> bool {
        self.count(letter) > 0
    }

    /// How often the option was given.
    pub fn count(&self, letter: char) -> usize {
        self.options.iter().filter(|(l, _)| *l == letter).count()
    }

    /// The last value of the option.
    pub fn value(&self, letter: char) -> Option<String> {
        self.values(letter).pop().map(|v| v.to_string_lossy().into_owned())
    }

    /// All values of the option.
    pub fn values(&self, letter: char) -> Vec<OsString> {
        self.options.iter().filter(|(l, _)| *l == letter).filter_map(|(_, v)| v.clone()).collect()
    }

    /// Options in their order, with their values.
    pub fn in_order(&self) -> impl Iterator<Item = (char, Option<&OsString>)> {
        self.options.iter().map(|(l, v)| (*l, v.as_ref()))
    }

    /// The `n`th word as text.
    pub fn word(&self, n: usize) -> Option<String> {
        self.words.get(n).map(|w| w.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec { command: "t", letters: "Hpo:d:J", long: &[("json", 'J'), ("dir", 'd')], usage: "t" };

    fn parse(line: &[&str]) -> Result<Args, Failure> {
        SPEC.parse(line.iter().map(OsString::from).collect())
    }

    #[test]
    fn clusters_values_and_words() {
        let a = parse(&["-Hpo", "name,used", "pool", "-d/x", "--json", "--dir=y", "--", "-z"]).unwrap();
        assert!(a.has('H') && a.has('p') && a.has('J'));
        assert_eq!(a.value('o').as_deref(), Some("name,used"));
        assert_eq!(a.values('d'), ["/x", "y"]);
        assert_eq!(a.words, ["pool", "-z"]);
    }

    #[test]
    fn misuse_is_named() {
        for (line, what) in [
            (&["-x"][..], "invalid option '-x'"),
            (&["--what"], "invalid option '--what'"),
            (&["-o"], "option -o needs a value"),
            (&["--json=1"], "option --json takes no value"),
        ] {
            let failure = parse(line).unwrap_err();
            assert_eq!(failure.code, 2);
            assert!(failure.line.contains(what), "{}", failure.line);
        }
    }
}
