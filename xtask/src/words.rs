//! Rules of language: standard terms instead of private ones, and no packed tuple bindings.
//!
//! [`banned`] searches comments, doc comments, string literals, function names and Markdown for words that readers who
//! know ZFS would have to look up, and names the term to use instead. Inline code in backticks is skipped, because it
//! may quote an identifier of another crate. Type, constant and module names are checked where they are defined, so a
//! crate is not blamed for a name that it imports. Words are matched as whole words, over line breaks of a paragraph.
//!
//! [`packed_bindings`] finds `let (a, b) = (x, y);`, which saves a line and costs the reader the counting of positions.
//! A swap such as `let (a, b) = (b, a);` is allowed, because it cannot be written as two statements.
//!
//! The rules apply to every file that `tidy` reads, except those in [`EXEMPT`].

/// Files to which the rules do not apply: this one lists the banned words.
const EXEMPT: &[&str] = &["xtask/src/words.rs"];

/// Banned words and phrases, the replacement, and phrases in which they are allowed.
const PROSE: &[(&str, &str, &[&str])] = &[
    ("whoever", "name the actor", &[]),
    ("whomever", "name the actor", &[]),
    ("somebody", "name the actor", &[]),
    ("everybody", "name the actors", &[]),
    ("anybody", "name the actor", &[]),
    ("nobody", "name the actor", &["user nobody", "uid nobody", "group nobody", "nobody nogroup"]),
    ("who asks", "the caller", &[]),
    ("who reads", "the reader", &[]),
    ("who writes", "the writer", &[]),
    ("who only reads", "a read-only import", &[]),
    ("by and by", "asynchronously", &[]),
    ("so many", "the number with its unit", &[]),
    ("for ever", "forever, indefinitely", &[]),
    ("under way", "in progress, running", &[]),
    ("is to be", "an active verb", &[]),
    ("are to be", "an active verb", &[]),
    ("data set", "dataset", &[]),
    ("data sets", "datasets", &[]),
    ("told", "the fact itself, as a plain statement", &[]),
    ("aside", "a term for what is set apart (checkpoint map, obsolete map)", &["set aside"]),
    ("ripe", "deferred frees that can be released", &[]),
    ("umpire", "pointer freshness", &[]),
    ("heirloom", "inherited ACL", &[]),
    ("babbler", "a client that sends too many options", &[]),
    ("forged", "invalid, altered", &[]),
    ("gate", "transaction admission", &[]),
    ("gates", "transaction admission", &[]),
    ("door", "front end", &["solaris door"]),
    ("doors", "front ends", &["solaris doors"]),
    ("bell", "notifier, waker", &[]),
    ("keeper", "the name of the component", &[]),
    ("crew", "thread pool", &[]),
    ("sold", "allocatable", &[]),
    ("lent", "shared", &[]),
    ("rooms", "crates, modules", &[]),
    ("chore", "task", &[]),
    ("chores", "tasks", &[]),
    ("nameless", "unlinked", &[]),
    ("nonsense", "malformed", &[]),
    ("makes no sense", "is malformed", &[]),
    ("make no sense", "are malformed", &[]),
    ("mend", "repair", &[]),
    ("mends", "repairs", &[]),
    ("mended", "repaired, fixed", &[]),
    ("stands", "is", &["stands for"]),
    ("lies", "is", &[]),
    ("lets", "allows", &[]),
    ("open group", "open txg", &[]),
    ("quiescing group", "quiescing txg", &[]),
    ("syncing group", "syncing txg", &[]),
    ("synced group", "synced txg", &[]),
    ("same group", "same txg", &[]),
    ("next group", "next txg", &[]),
    ("each group", "each txg", &[]),
];

/// Banned names of types, functions, constants and modules, with the replacement.
const NAMES: &[(&str, &str)] = &[
    ("Gate", "TxAdmission"),
    ("PoolGate", "PoolTxAdmission"),
    ("TxGroups", "TxgTracker"),
    ("Missed", "LeafDtls"),
    ("missed", "dtl"),
    ("Aside", "NonMetaslabFrees"),
    ("AsideMaps", "CheckpointAndObsoleteMaps"),
    ("take_aside", "drain_non_metaslab_frees"),
    ("Ripe", "DeferredFrees"),
    ("ripen", "release_deferred"),
    ("told_segments", "allocated_as_synced"),
    ("Umpire", "PointerFreshness"),
    ("Door", "FuseOps, OpenDataset, AdminSocket"),
    ("Said", "LogPayload, Line"),
    ("log_unsaid", "log_barrier_until_synced"),
    ("Asked", "IoctlRequest, KeyPrompt"),
    ("Shown", "OpenPool, PoolStatus"),
    ("Front", "Exports"),
    ("Forged", "InvalidPointer"),
    ("Crew", "ThreadPool"),
    ("Keeper", "HeapTrimmer"),
    ("Letter", "UringOp"),
    ("Bell", "FaultNotifier, EventFdWaker"),
    ("hurried", "with_contention_deadline"),
    ("Heirloom", "InheritedAcl"),
    ("dress", "init_attributes"),
    ("Doomed", "DestroyPlan"),
    ("Elsewhere", "RemoteProcess"),
    ("Whose", "PoolOwner"),
    ("Who", "QuotaPrincipal, AceWho"),
    ("is_overtaken", "raced_with_sync"),
    ("reborn", "with_birth"),
    ("lies", "corrupt, compare_to_resume"),
    ("Turn", "a name for the step, ticket or decision"),
    ("Held", "a name for the guard, permit or lock"),
    ("Kept", "a name for the guard or entry"),
    ("Noted", "PendingAtimes"),
    ("Stretch", "ScanPass, Extent"),
    ("reluctance", "read_preference"),
    ("reckon", "compute_space"),
    ("MOST", "MAX_ and the unit"),
    ("AT_ONCE", "MAX_CONCURRENT_ and the unit"),
    ("TOGETHER", "MAX_BATCH_ and the unit"),
    ("SHORTLY", "a TTL"),
    ("FOREVER", "NEVER_EXPIRES, a TTL"),
    ("AGAIN", "RESCAN_BIT"),
];

/// Prefixes of banned constants, with the replacement.
const PREFIXES: &[(&str, &str)] = &[("LONGEST_", "MAX_…_LEN"), ("USUAL_", "DEFAULT_"), ("MOST_", "MAX_")];

/// First words that make the summary of a doc comment useless in an index.
const SUMMARY_STARTS: &[&str] = &["What ", "Who ", "Whom ", "Its ", "It ", "They ", "The same "];

/// Keywords before the name of a definition.
const DEFINITIONS: &[&str] = &["struct", "enum", "trait", "type", "fn", "const", "static", "mod", "union"];

/// Returns the violations of the language rules in a file.
pub fn check(name: &str, text: &str) -> Vec<String> {
    if EXEMPT.contains(&name) {
        return Vec::new();
    }
    let mut violations = banned(name, text);
    if name.ends_with(".rs") {
        violations.extend(packed_bindings(name, text));
    }
    violations
}

/// Banned words, names and summaries of a Rust or Markdown file.
fn banned(name: &str, text: &str) -> Vec<String> {
    let mut found: Vec<(usize, String)> = Vec::new();
    if name.ends_with(".md") {
        found.extend(prose(&markdown_words(text)));
    } else if name.ends_with(".rs") {
        let source = Source::split(text);
        // A string of one word is a name, such as a file type of zdb, and not prose.
        let strings = source.strings.iter().filter(|words| words.len() > 1);
        for words in source.comments.iter().chain(strings) {
            found.extend(prose(words));
        }
        found.extend(names(&source.code));
        found.extend(summaries(text));
    }
    found.sort();
    found.into_iter().map(|(line, message)| format!("{name}:{line}: {message}")).collect()
}

/// A word in lower case, with its line.
type Word = (usize, String);

/// Banned phrases in a paragraph.
fn prose(words: &[Word]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (phrase, instead, allowed) in PROSE {
        let parts: Vec<&str> = phrase.split(' ').collect();
        for at in 0..words.len() {
            if matches_at(words, at, &parts) && !allowed.iter().any(|context| is_within(words, at, &parts, context)) {
                found.push((words[at].0, format!("'{phrase}': use a standard term ({instead})")));
            }
        }
    }
    found
}

fn matches_at(words: &[Word], at: usize, parts: &[&str]) -> bool {
    let rest = words.get(at..).unwrap_or_default();
    rest.len() >= parts.len() && rest.iter().zip(parts).all(|((_, word), part)| word == part)
}

/// Whether the phrase at `at` is a part of a longer phrase.
fn is_within(words: &[Word], at: usize, parts: &[&str], context: &str) -> bool {
    let context: Vec<&str> = context.split(' ').collect();
    let offset = context.windows(parts.len()).position(|window| window == parts).unwrap_or_default();
    at.checked_sub(offset).is_some_and(|start| matches_at(words, start, &context))
}

/// Banned names where they are defined; names of functions are also read as prose.
fn names(code: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in code {
        let tokens: Vec<&str> = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        let mut tokens = tokens.into_iter().filter(|token| !token.is_empty()).peekable();
        while let Some(keyword) = tokens.next() {
            let Some(name) = tokens.peek().filter(|_| DEFINITIONS.contains(&keyword)) else { continue };
            let exact = NAMES.iter().find(|(banned, _)| banned == name);
            let prefix = PREFIXES.iter().find(|(banned, _)| name.starts_with(banned));
            if let Some((_, instead)) = exact.or(prefix) {
                found.push((*line, format!("name '{name}': use a standard term ({instead})")));
            }
            if keyword == "fn" {
                found.extend(prose(&split_words(*line, name)));
            }
        }
    }
    found
}

/// Doc comments whose first line does not name its subject.
fn summaries(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let doc = line.trim_start().strip_prefix("/// ");
        if let Some(start) =
            doc.filter(|_| !inside).and_then(|doc| SUMMARY_STARTS.iter().find(|s| doc.starts_with(**s)))
        {
            found.push((number + 1, format!("doc comment starts with '{}': name the subject", start.trim_end())));
        }
        inside = line.trim_start().starts_with("///");
    }
    found
}

/// The words of a piece of text on one line, without inline code.
fn split_words(line: usize, text: &str) -> Vec<Word> {
    let prose = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let words = prose.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| (line, word.to_lowercase())).collect()
}

/// The words of a Markdown file without fenced code.
fn markdown_words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            words.extend(split_words(number + 1, line));
        }
    }
    words
}

/// The `let` statements that bind a tuple of patterns to a tuple of independent expressions, or to defaults.
fn packed_bindings(name: &str, text: &str) -> Vec<String> {
    let source = Source::split(text);
    let code: Vec<&str> = source.code.iter().map(|(_, line)| line.as_str()).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("let (") {
        if is_packed(&code[at + "let ".len()..]) {
            let line = code[..at].matches('\n').count() + 1;
            found.push(format!("{name}:{line}: packed tuple binding: one `let` per line"));
        }
    }
    found
}

/// Whether the code after `let` is `(…) = (…);` with independent expressions, or `(…) = Default::default();`.
fn is_packed(code: &str) -> bool {
    let Some((pattern, rest)) = parenthesised(code) else { return false };
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix(':').map(str::trim_start) {
        Some(annotated) => match parenthesised(annotated) {
            Some((_, rest)) => rest.trim_start(),
            None => return false,
        },
        None => rest,
    };
    let Some(value) = rest.strip_prefix('=').map(str::trim_start) else { return false };
    if value.starts_with("Default::default()") {
        return true;
    }
    let Some((values, rest)) = parenthesised(value) else { return false };
    let is_swap = || {
        let used: Vec<&str> = identifiers(values).collect();
        identifiers(pattern).any(|name| name != "mut" && used.contains(&name))
    };
    rest.starts_with(';') && !is_swap()
}

fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|token| !token.is_empty())
}

/// The contents of the parentheses at the start of `code`, and the code behind them.
fn parenthesised(code: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            let inner = code.get(1..at)?;
            return code.starts_with('(').then(|| (inner, &code[at + 1..]));
        }
    }
    None
}

/// Rust source split into code, comments and strings.
#[derive(Default)]
struct Source {
    /// Lines of code with their numbers; comments and the contents of strings are removed.
    code: Vec<(usize, String)>,
    /// Paragraphs of comments.
    comments: Vec<Vec<Word>>,
    /// String literals.
    strings: Vec<Vec<Word>>,
}

impl Source {
    /// Splits formatted source. Block comments are not recognised; rustfmt's style does not use them here.
    fn split(text: &str) -> Source {
        let mut source = Source::default();
        let mut string: Option<Literal> = None;
        let mut paragraph = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            let (code, comment) = source.split_line(number, line, &mut string);
            match comment {
                Some(comment) if !comment.trim_matches(['/', '!', ' ']).is_empty() => {
                    paragraph.extend(split_words(number, comment));
                }
                _ => source.comments.push(std::mem::take(&mut paragraph)),
            }
            source.code.push((number, code));
        }
        source.comments.push(paragraph);
        source
    }

    /// Splits one line into its code and its comment; `string` is the literal that the line starts in or ends in.
    fn split_line<'a>(
        &mut self,
        number: usize,
        line: &'a str,
        string: &mut Option<Literal>,
    ) -> (String, Option<&'a str>) {
        let mut code = String::new();
        let mut at = 0;
        while let Some(rest) = line.get(at..).filter(|rest| !rest.is_empty()) {
            if let Some(literal) = string {
                match literal.end_in(rest) {
                    Some(end) => {
                        literal.words.extend(split_words(number, &rest[..end]));
                        at += end + literal.closing.len();
                        self.strings.push(string.take().map(|literal| literal.words).unwrap_or_default());
                        code.push('"');
                    }
                    None => {
                        literal.words.extend(split_words(number, rest));
                        return (code, None);
                    }
                }
            } else if rest.starts_with("//") {
                return (code, Some(rest));
            } else if let Some((opening, literal)) = Literal::start(rest) {
                code.push('"');
                at += opening;
                *string = Some(literal);
            } else {
                let skipped = character_literal(rest).unwrap_or(0);
                let next = rest.chars().next().unwrap_or(' ');
                at += skipped.max(next.len_utf8());
                code.push(if skipped > 0 { '_' } else { next });
            }
        }
        (code, None)
    }
}

/// A string literal that is being read.
struct Literal {
    closing: String,
    is_raw: bool,
    words: Vec<Word>,
}

impl Literal {
    /// The literal that starts here, with the length of its opening.
    fn start(rest: &str) -> Option<(usize, Literal)> {
        if rest.starts_with('"') {
            return Some((1, Literal { closing: "\"".to_owned(), is_raw: false, words: Vec::new() }));
        }
        let raw = rest.strip_prefix('r')?;
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        raw[hashes..].starts_with('"').then(|| {
            let closing = format!("\"{}", "#".repeat(hashes));
            (2 + hashes, Literal { closing, is_raw: true, words: Vec::new() })
        })
    }

    /// Offset of the closing quote in this line.
    fn end_in(&self, rest: &str) -> Option<usize> {
        if self.is_raw {
            return rest.find(&self.closing);
        }
        let mut is_escaped = false;
        rest.char_indices().find_map(|(at, character)| {
            let ends = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            ends.then_some(at)
        })
    }
}

/// Length of the character literal that starts here; lifetimes are not literals.
fn character_literal(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let first = inner.chars().next()?;
    let end = match first {
        '\\' => 2 + inner.get(2..)?.find('\'')?,
        _ => first.len_utf8(),
    };
    inner.get(end..)?.starts_with('\'').then_some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "crates/nfs/src/a.rs";

    #[test]
    fn banned_words_are_found_in_comments_strings_and_function_names() {
        let text = "/// A door.\nfn nobody_waits() {\n    say(\"so many bytes\"); // by\n    // and by\n}\n";
        let found = check(NAME, text);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains(":1: 'door'") && found[1].contains(":2: 'nobody'"), "{found:?}");
        assert!(found[2].contains(":3: 'by and by'") && found[3].contains(":3: 'so many'"), "{found:?}");
        let wrapped = "// Freed by\n// and by, later.\n";
        assert!(check(NAME, wrapped)[0].contains(":1: 'by and by'"));
        assert!(check(EXEMPT[0], "// A door.\n").is_empty());
        assert!(check(NAME, "let kind = \"Door\";\n").is_empty(), "a string of one word is a name");
        assert!(check("xtask/a.md", "A door.\n```\na door\n```\n")[0].contains("a.md:1:"));
    }

    #[test]
    fn allowed_contexts_inline_code_and_parts_of_words_are_not_violations() {
        for text in [
            "// The user nobody; Solaris doors; it stands for a byte; set aside.\n",
            "// `Door` of another crate; doorway, delegate, silent, toll.\n",
            "let told = nobody;\n",
            "let separator = '\"'; let told: &'static str = x;\n",
        ] {
            assert_eq!(check(NAME, text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn banned_names_are_found_where_they_are_defined() {
        assert!(check(NAME, "pub struct Door {\n}\n")[0].contains("name 'Door'"));
        assert!(check(NAME, "const USUAL_BYTES: u32 = 1;\n")[0].contains("DEFAULT_"));
        assert!(check(NAME, "use other::Door;\n").is_empty());
        assert!(check(NAME, "struct Doorway;\n").is_empty());
    }

    #[test]
    fn doc_comments_start_with_their_subject() {
        assert_eq!(check(NAME, "/// What it does.\nfn a() {}\n").len(), 1);
        assert_eq!(check(NAME, "/// The length.\n/// What follows is read later.\nfn a() {}\n"), Vec::<String>::new());
    }

    #[test]
    fn packed_tuple_bindings_are_found() {
        for packed in [
            "let (a, b) = (1, 2);",
            "let (mut a, b): (u8, _) = (f(1, 2), \"),\");",
            "let (a,\n    b) = (\n    x(),\n    y(),\n);",
            "let (a, b, c) = Default::default();",
        ] {
            assert_eq!(check(NAME, packed).len(), 1, "{packed}");
        }
        for fine in [
            "let (a, b) = pair();",
            "let (a, b) = (b, a);",
            "let (Some(a), Some(b)) = (x, y) else { return };",
            "let (a, b) = (x, y).into();",
            "// let (a, b) = (x, y);",
            "call(\"let (a, b) = (x, y);\");",
        ] {
            assert_eq!(check(NAME, fine), Vec::<String>::new(), "{fine}");
        }
    }
}
