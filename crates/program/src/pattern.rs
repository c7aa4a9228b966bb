//! Lua's patterns, with a bound on the work of a match. Pure.
//!
//! The C library matches by backtracking without a bound, which takes time exponential in the length of a pattern, and no hook
//! interrupts it. Here each step is counted, and the caller ends the match ([`Steps`]).
//!
//! ```text
//!   pattern item   class  class*  class+  class-  class?  %1 … %9  %bxy  %f[set]     ( ) captures, () position
//!   class          . %a %c %d %g %l %p %s %u %w %x (upper case: complement) [set] [^set] %x x
//! ```
//!
//! Source: Lua 5.2 reference manual, §6.4.1.

use std::cell::Cell;

/// Maximum number of captures of a pattern (`LUA_MAXCAPTURES`).
const MAX_CAPTURES: usize = 32;
/// Maximum nesting of items that are tried one in the other (`MAXCCALLS` of the string library).
const MAX_DEPTH: u32 = 200;

/// Why a match failed other than by not matching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// The pattern is malformed, or too complex; the message is Lua's.
    Pattern(String),
    /// The steps are used up.
    Steps,
}

fn malformed(why: &str) -> PatternError {
    PatternError::Pattern(format!("malformed pattern ({why})"))
}

/// Steps that matches may take, all together.
#[derive(Debug)]
pub struct Steps {
    left: Cell<u64>,
}

impl Steps {
    /// This number of steps.
    pub fn new(steps: u64) -> Self {
        Steps { left: Cell::new(steps) }
    }

    /// Takes steps.
    ///
    /// # Errors
    /// [`PatternError::Steps`] if fewer are left; then none is.
    pub fn take(&self, steps: u64) -> Result<(), PatternError> {
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(PatternError::Steps)
            }
        }
    }
}

/// A capture of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Captured {
    /// Bytes of the subject.
    Bytes(usize, usize),
    /// A position, from 1.
    Position(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Open,
    Position,
    Of(usize),
}

/// A pattern, applied to a subject.
pub struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    steps: &'a Steps,
    captures: Vec<(usize, Length)>,
    depth: u32,
}

type Found = Result<Option<usize>, PatternError>;

impl<'a> Matcher<'a> {
    /// A matcher of `pattern`, without its anchor, on `subject`.
    pub fn new(subject: &'a [u8], pattern: &'a [u8], steps: &'a Steps) -> Self {
        Matcher { subject, pattern, steps, captures: Vec::new(), depth: 0 }
    }

    /// Matches at a position of the subject, from 0; returns the end of the match.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn at(&mut self, start: usize) -> Found {
        debug_assert!(start <= self.subject.len(), "a match begins in the subject or at its end");
        self.captures.clear();
        self.depth = 0;
        self.matches(start, 0)
    }

    /// The captures of the last match; the whole match if the pattern has none and `whole` is its bytes.
    ///
    /// # Errors
    /// A capture without an end.
    pub fn captures(&self, whole: Option<(usize, usize)>) -> Result<Vec<Captured>, PatternError> {
        if let (true, Some((start, end))) = (self.captures.is_empty(), whole) {
            return Ok(vec![Captured::Bytes(start, end)]);
        }
        (0..self.captures.len()).map(|index| self.capture(index, (0, 0))).collect()
    }

    /// A capture of the last match, from 0; the whole match as the first one if the pattern has none.
    ///
    /// # Errors
    /// If there is no such capture.
    pub fn capture(&self, index: usize, (start, end): (usize, usize)) -> Result<Captured, PatternError> {
        match self.captures.get(index) {
            Some((at, Length::Of(length))) => Ok(Captured::Bytes(*at, at + length)),
            Some((at, Length::Position)) => Ok(Captured::Position(at + 1)),
            Some((_, Length::Open)) => Err(PatternError::Pattern("unfinished capture".into())),
            None if index == 0 => Ok(Captured::Bytes(start, end)),
            None => Err(PatternError::Pattern("invalid capture index".into())),
        }
    }

    fn pattern_at(&self, at: usize) -> Option<u8> {
        self.pattern.get(at).copied()
    }

    /// The end of the class that begins at `at`.
    fn class_end(&self, at: usize) -> Result<usize, PatternError> {
        match self.pattern_at(at) {
            Some(b'%') if at + 1 >= self.pattern.len() => Err(malformed("ends with '%'")),
            Some(b'%') => Ok(at + 2),
            Some(b'[') => {
                let mut at = at + 1 + usize::from(self.pattern_at(at + 1) == Some(b'^'));
                // The first byte of a set is in it, also a bracket.
                loop {
                    let first = self.pattern_at(at).ok_or_else(|| malformed("missing ']'"))?;
                    at += 1;
                    if first == b'%' && at < self.pattern.len() {
                        at += 1;
                    }
                    if self.pattern_at(at) == Some(b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(at + 1),
        }
    }

    /// Whether a byte is in the set between `[` at `at` and `]` at `close`.
    fn in_set(&self, byte: u8, at: usize, close: usize) -> bool {
        let is_complement = self.pattern_at(at + 1) == Some(b'^');
        let mut at = at + 1 + usize::from(is_complement);
        while at < close {
            let first = self.pattern_at(at).unwrap_or(0);
            let second = self.pattern_at(at + 1).unwrap_or(0);
            if first == b'%' {
                if in_class(byte, second) {
                    return !is_complement;
                }
                at += 2;
            } else if second == b'-' && at + 2 < close {
                if (first..=self.pattern_at(at + 2).unwrap_or(0)).contains(&byte) {
                    return !is_complement;
                }
                at += 3;
            } else {
                if first == byte {
                    return !is_complement;
                }
                at += 1;
            }
        }
        is_complement
    }

    /// Whether the byte of the subject at `at` is in the class from `class` to `end`.
    fn is_single(&self, at: usize, class: usize, end: usize) -> bool {
        let Some(byte) = self.subject.get(at).copied() else { return false };
        match self.pattern_at(class) {
            Some(b'.') => true,
            Some(b'%') => in_class(byte, self.pattern_at(class + 1).unwrap_or(0)),
            Some(b'[') => self.in_set(byte, class, end - 1),
            other => other == Some(byte),
        }
    }

    /// Matches the pattern from `item` on, one level deeper.
    fn deeper(&mut self, at: usize, item: usize) -> Found {
        if self.depth >= MAX_DEPTH {
            return Err(PatternError::Pattern("pattern too complex".into()));
        }
        self.depth += 1;
        let found = self.matches(at, item);
        self.depth -= 1;
        found
    }

    fn matches(&mut self, mut at: usize, mut item: usize) -> Found {
        loop {
            self.steps.take(1)?;
            let Some(first) = self.pattern_at(item) else { return Ok(Some(at)) };
            match (first, self.pattern_at(item + 1)) {
                (b'(', Some(b')')) => return self.open(at, item + 2, Length::Position),
                (b'(', _) => return self.open(at, item + 1, Length::Open),
                (b')', _) => return self.close(at, item + 1),
                (b'$', None) => return Ok((at == self.subject.len()).then_some(at)),
                (b'%', Some(b'b')) => {
                    let Some(end) = self.balance(at, item + 2)? else { return Ok(None) };
                    (at, item) = (end, item + 4);
                    continue;
                }
                (b'%', Some(b'f')) => {
                    let Some(after) = self.frontier(at, item + 2)? else { return Ok(None) };
                    item = after;
                    continue;
                }
                (b'%', Some(digit @ b'0'..=b'9')) => {
                    let Some(end) = self.again(at, digit)? else { return Ok(None) };
                    (at, item) = (end, item + 2);
                    continue;
                }
                _ => {}
            }
            let end = self.class_end(item)?;
            let is_there = self.is_single(at, item, end);
            match (self.pattern_at(end), is_there) {
                (Some(b'?'), true) => {
                    if let Some(found) = self.deeper(at + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    item = end + 1;
                }
                (Some(b'?'), false) => item = end + 1,
                (Some(b'+'), true) => return self.longest(at + 1, item, end),
                (Some(b'*'), _) => return self.longest(at, item, end),
                (Some(b'-'), _) => return self.shortest(at, item, end),
                (_, false) => return Ok(None),
                (_, true) => (at, item) = (at + 1, end),
            }
        }
    }

    fn longest(&mut self, at: usize, item: usize, end: usize) -> Found {
        let mut count = 0;
        while self.is_single(at + count, item, end) {
            self.steps.take(1)?;
            count += 1;
        }
        loop {
            if let Some(found) = self.deeper(at + count, end + 1)? {
                return Ok(Some(found));
            }
            let Some(less) = count.checked_sub(1) else { return Ok(None) };
            count = less;
        }
    }

    fn shortest(&mut self, mut at: usize, item: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.deeper(at, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_single(at, item, end) {
                return Ok(None);
            }
            at += 1;
        }
    }

    fn open(&mut self, at: usize, item: usize, length: Length) -> Found {
        if self.captures.len() >= MAX_CAPTURES {
            return Err(PatternError::Pattern("too many captures".into()));
        }
        let count = self.captures.len();
        self.captures.push((at, length));
        let found = self.deeper(at, item)?;
        if found.is_none() {
            self.captures.truncate(count);
        }
        Ok(found)
    }

    fn close(&mut self, at: usize, item: usize) -> Found {
        let open = self.captures.iter().rposition(|(_, length)| *length == Length::Open);
        let open = open.ok_or_else(|| PatternError::Pattern("invalid pattern capture".into()))?;
        self.set_length(open, |start| Length::Of(at - start));
        let found = self.deeper(at, item)?;
        if found.is_none() {
            self.set_length(open, |_| Length::Open);
        }
        Ok(found)
    }

    fn set_length(&mut self, index: usize, length: impl FnOnce(usize) -> Length) {
        if let Some(capture) = self.captures.get_mut(index) {
            capture.1 = length(capture.0);
        }
    }

    /// `%bxy`: the end of the balanced text that begins at `at`; the two bytes are at `item`.
    fn balance(&self, at: usize, item: usize) -> Found {
        let (Some(open), Some(close)) = (self.pattern_at(item), self.pattern_at(item + 1)) else {
            return Err(malformed("missing arguments to '%b'"));
        };
        if self.subject.get(at) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for (index, byte) in self.subject.iter().enumerate().skip(at + 1) {
            self.steps.take(1)?;
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(index + 1));
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%f[set]`: the item after it if the subject enters the set at `at`.
    fn frontier(&self, at: usize, item: usize) -> Found {
        if self.pattern_at(item) != Some(b'[') {
            return Err(PatternError::Pattern("missing '[' after '%f' in pattern".into()));
        }
        let end = self.class_end(item)?;
        let byte = |at: Option<usize>| at.and_then(|at| self.subject.get(at)).copied().unwrap_or(0);
        let enters = !self.in_set(byte(at.checked_sub(1)), item, end - 1) && self.in_set(byte(Some(at)), item, end - 1);
        Ok(enters.then_some(end))
    }

    /// `%1`: the end of a repetition of a capture at `at`.
    fn again(&self, at: usize, digit: u8) -> Found {
        let captured = usize::from(digit).checked_sub(usize::from(b'1')).and_then(|index| self.captures.get(index));
        let Some((start, Length::Of(length))) = captured else {
            let why = format!("invalid capture index %{}", char::from(digit));
            return Err(PatternError::Pattern(why));
        };
        self.steps.take(*length as u64)?;
        let again = self.subject.get(*start..start + length).unwrap_or_default();
        let is_there = self.subject.get(at..).is_some_and(|rest| rest.starts_with(again));
        Ok(is_there.then_some(at + length))
    }
}

/// Whether a byte is in the class of a letter after `%`.
fn in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is_in != class.is_ascii_uppercase()
}

/// Whether a text is no pattern but a plain text.
pub fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// The position of a plain text in a subject, from `start`.
///
/// # Errors
/// [`PatternError::Steps`].
pub fn find_plain(subject: &[u8], wanted: &[u8], start: usize, steps: &Steps) -> Found {
    let Some(last) = subject.len().checked_sub(wanted.len()) else { return Ok(None) };
    for at in start..=last {
        let rest = subject.get(at..).unwrap_or_default();
        let same = rest.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        steps.take(1 + same as u64)?;
        if same == wanted.len() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole match and the captures of the first match.
    fn first(subject: &str, pattern: &str) -> Result<Option<(String, Vec<String>)>, PatternError> {
        let steps = Steps::new(1_000_000);
        let (anchored, pattern) = pattern.strip_prefix('^').map_or((false, pattern), |rest| (true, rest));
        let mut matcher = Matcher::new(subject.as_bytes(), pattern.as_bytes(), &steps);
        for start in 0..=subject.len() {
            if let Some(end) = matcher.at(start)? {
                let text = |captured: Captured| match captured {
                    Captured::Bytes(start, end) => subject[start..end].to_owned(),
                    Captured::Position(at) => at.to_string(),
                };
                let captures = matcher.captures(None)?.into_iter().map(text).collect();
                return Ok(Some((subject[start..end].to_owned(), captures)));
            }
            if anchored {
                break;
            }
        }
        Ok(None)
    }

    #[test]
    fn patterns_match_as_in_lua() {
        for (subject, pattern, whole, captures) in [
            ("hello world", "o w", "o w", vec![]),
            ("key = value", "(%w+)%s*=%s*(%w+)", "key = value", vec!["key", "value"]),
            ("aaa", "a-b?$", "aaa", vec![]),
            ("f(a(b)c)d", "%b()", "(a(b)c)", vec![]),
            ("THE (quick) fox", "%f[%a]%a+%f[%A]", "THE", vec![]),
            ("abab", "(ab)%1", "abab", vec!["ab"]),
            ("x]y", "[]]", "]", vec![]),
            ("a-z", "[a%-]+", "a-", vec![]),
            ("  x", "^%s*()", "  ", vec!["3"]),
            ("2026-11-30", "(%d+)-(%d+)-(%d+)", "2026-11-30", vec!["2026", "11", "30"]),
            ("abc", "[^a-b]", "c", vec![]),
            ("", "", "", vec![]),
            ("a%b", "%%", "%", vec![]),
        ] {
            let captures = captures.into_iter().map(str::to_owned).collect();
            assert_eq!(first(subject, pattern), Ok(Some((whole.to_owned(), captures))), "{pattern}");
        }
        for (subject, pattern) in [("abc", "^b"), ("abc", "%d"), ("(", "%b()"), ("abc", "a$")] {
            assert_eq!(first(subject, pattern), Ok(None), "{pattern}");
        }
    }

    #[test]
    fn malformed_patterns_are_errors() {
        for (pattern, why) in [
            ("%", "malformed pattern (ends with '%')"),
            ("[a", "malformed pattern (missing ']')"),
            ("%b(", "malformed pattern (missing arguments to '%b')"),
            ("(a", "unfinished capture"),
            ("a)", "invalid pattern capture"),
            ("%1", "invalid capture index %1"),
            ("%fa", "missing '[' after '%f' in pattern"),
        ] {
            assert_eq!(first("aaa", pattern), Err(PatternError::Pattern(why.into())), "{pattern}");
        }
        let many = "()".repeat(33);
        assert_eq!(first("a", &many), Err(PatternError::Pattern("too many captures".into())));
    }

    #[test]
    fn exponential_patterns_end() {
        let subject = "a".repeat(28);
        let pattern = format!("{}{}b", "a?".repeat(28), "a".repeat(28));
        assert_eq!(first(&subject, &pattern), Err(PatternError::Steps));
        let deep = "a?".repeat(300);
        let too_complex = Err(PatternError::Pattern("pattern too complex".into()));
        assert_eq!(first(&"a".repeat(300), &deep), too_complex);
        let steps = Steps::new(1000);
        let haystack = vec![b'a'; 1000];
        assert_eq!(find_plain(&haystack, &[b'a'; 999], 2, &steps), Ok(None));
        assert_eq!(find_plain(&haystack, b"aaaaaaaab", 0, &steps), Err(PatternError::Steps));
        assert_eq!((steps.left.get(), find_plain(b"abcabc", b"ca", 0, &Steps::new(100))), (0, Ok(Some(2))));
    }
}
