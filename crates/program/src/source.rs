//! Source text in OpenZFS's dialect of Lua, made into text for Lua 5.4. Pure.
//!
//! OpenZFS runs Lua 5.2 with 64-bit integers as its only numbers; Lua 5.4 has integers beside floating-point numbers. What differs
//! by syntax is rewritten here, token by token, without changing the number of any line:
//!
//! ```text
//!   010, 18446744073709551615     8, 0xffffffffffffffff        octal; decimal numbers wrap around
//!   1.5, 1e3, 08                  an error                     "malformed number near …"
//!   a / b                         a //__zcp_div// b            `//` has the precedence of `/` and `%`; the operand in the
//!   a % b                         a //__zcp_mod// b            middle keeps the left one for the right one
//!   a ^ b                         __zcp_pow(a) ^ b             a suffixed expression ends before `^`
//!   & | ~ << >>                   an error                     not in Lua 5.2
//! ```
//!
//! The names are local variables that a prefix of the first line defines, so that a script which replaces its globals does not
//! change its arithmetic ([`super::base`]). Errors of syntax that are not found here are left to Lua.
//!
//! Rejected: a parser of the whole language. Only the left operand of `^` needs structure, and reading back to its beginning
//! gives that.
//!
//! Source: OpenZFS `module/lua/llex.c` (`read_numeral`), `lcompat.c` (`lcompat_strtoll`), `include/sys/lua/luaconf.h`.

/// Definition of the names that the rewritten text uses.
const PREFIX: &[u8] = b"local __zcp_div,__zcp_mod,__zcp_pow=(\"\"):__arithmetic() ";
const DIVIDE: &[u8] = b"//__zcp_div//";
const MODULO: &[u8] = b"//__zcp_mod//";
const POWER: &[u8] = b"__zcp_pow(";

/// Names that end no operand.
const KEYWORDS: [&str; 18] = [
    "and", "break", "do", "else", "elseif", "for", "function", "goto", "if", "in", "local", "not", "or", "repeat",
    "return", "then", "until", "while",
];

/// An error of syntax, with the line that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// Message with the place in the text.
    pub message: String,
}

/// Kind of a token, as far as it matters for operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Name,
    Number,
    Text,
    Keyword,
    /// One byte.
    Symbol(u8),
    /// `...`
    Rest,
    /// `..`, `==`, `~=`, `<=`, `>=`, `::`
    Operator,
}

/// A token: its kind and its bytes in the source.
#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

/// A replacement of bytes of the source.
struct Edit {
    start: usize,
    end: usize,
    text: Vec<u8>,
}

/// Rewrites a script.
///
/// # Errors
/// A number or an operator that OpenZFS's Lua does not have.
pub fn rewrite(source: &[u8]) -> Result<Vec<u8>, SyntaxError> {
    let mut edits = Vec::new();
    let mut needs_prefix = false;
    let mut tokens: Vec<Token> = Vec::new();
    let mut lexer = Lexer { source, at: 0, line: 1 };
    while let Some(token) = lexer.next_token()? {
        let replace = |text: &[u8]| Edit { start: token.start, end: token.end, text: text.to_vec() };
        match token.kind {
            Kind::Number => edits.extend(lexer.number(token)?.map(|text| replace(text.as_bytes()))),
            Kind::Symbol(b'/') => {
                edits.push(replace(DIVIDE));
                needs_prefix = true;
            }
            Kind::Symbol(b'%') => {
                edits.push(replace(MODULO));
                needs_prefix = true;
            }
            Kind::Symbol(b'^') => {
                if let (Some(start), Some(last)) = (operand_start(&tokens), tokens.last()) {
                    edits.push(Edit { start, end: start, text: POWER.to_vec() });
                    edits.push(Edit { start: last.end, end: last.end, text: b")".to_vec() });
                    needs_prefix = true;
                }
            }
            Kind::Symbol(symbol @ (b'&' | b'|' | b'~')) => {
                return Err(lexer.error("unexpected symbol", &[symbol]));
            }
            _ => {}
        }
        tokens.push(token);
    }
    Ok(apply(source, edits, needs_prefix))
}

/// Makes the edits. Those that insert at the same place keep their order.
fn apply(source: &[u8], mut edits: Vec<Edit>, needs_prefix: bool) -> Vec<u8> {
    edits.sort_by_key(|edit| (edit.start, edit.end));
    let mut out = Vec::with_capacity(source.len() + PREFIX.len() + 16 * edits.len());
    if needs_prefix {
        out.extend_from_slice(PREFIX);
    }
    let mut at = 0;
    for edit in edits {
        out.extend_from_slice(source.get(at..edit.start).unwrap_or_default());
        out.extend_from_slice(&edit.text);
        at = edit.end;
    }
    out.extend_from_slice(source.get(at..).unwrap_or_default());
    debug_assert_eq!(lines(&out), lines(source), "each line keeps its number");
    out
}

fn lines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

/// Where the suffixed expression begins that the tokens end with: a name, a number, a string, a table or something in
/// parentheses, with indices, fields and calls. `None` if they end with none.
fn operand_start(tokens: &[Token]) -> Option<usize> {
    let kind = |at: usize| tokens.get(at).map(|token| token.kind);
    let ends_prefix = |at: Option<usize>| {
        let before = at.and_then(kind);
        matches!(before, Some(Kind::Name | Kind::Text | Kind::Symbol(b')' | b']' | b'}')))
    };
    let mut at = tokens.len().checked_sub(1)?;
    loop {
        let before = at.checked_sub(1);
        match kind(at)? {
            Kind::Number | Kind::Rest => return Some(tokens.get(at)?.start),
            Kind::Name => match before.and_then(kind) {
                Some(Kind::Symbol(b'.' | b':')) => at = at.checked_sub(2)?,
                _ => return Some(tokens.get(at)?.start),
            },
            Kind::Text if ends_prefix(before) => at = before?,
            Kind::Text => return Some(tokens.get(at)?.start),
            Kind::Symbol(close @ (b')' | b']' | b'}')) => {
                let open = opening(tokens, at, close)?;
                let before = open.checked_sub(1);
                match close {
                    b']' => at = before?,
                    _ if ends_prefix(before) => at = before?,
                    _ => return Some(tokens.get(open)?.start),
                }
            }
            _ => return None,
        }
    }
}

/// The token that opens what the token `at` closes.
fn opening(tokens: &[Token], at: usize, close: u8) -> Option<usize> {
    let open = match close {
        b')' => b'(',
        b']' => b'[',
        _ => b'{',
    };
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().take(at + 1).rev() {
        match token.kind {
            Kind::Symbol(symbol) if symbol == close => depth += 1,
            Kind::Symbol(symbol) if symbol == open => depth = depth.checked_sub(1)?,
            _ => continue,
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

/// Splits the source into tokens.
struct Lexer<'a> {
    source: &'a [u8],
    at: usize,
    line: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.source.get(self.at + ahead).copied()
    }

    fn error(&self, what: &str, near: &[u8]) -> SyntaxError {
        SyntaxError { line: self.line, message: format!("{what} near '{}'", String::from_utf8_lossy(near)) }
    }

    /// The next token, after white space and comments; `None` at the end.
    fn next_token(&mut self) -> Result<Option<Token>, SyntaxError> {
        self.skip_blanks();
        let start = self.at;
        let Some(first) = self.peek(0) else { return Ok(None) };
        let kind = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                self.skip_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                let word = self.source.get(start..self.at).unwrap_or_default();
                match KEYWORDS.iter().any(|keyword| keyword.as_bytes() == word) {
                    true => Kind::Keyword,
                    false => Kind::Name,
                }
            }
            b'0'..=b'9' => self.numeral(),
            b'.' if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) => self.numeral(),
            b'"' | b'\'' => self.quoted(first),
            b'[' if self.long_level().is_some() => {
                self.skip_long();
                Kind::Text
            }
            b'.' if self.source.get(start..).is_some_and(|rest| rest.starts_with(b"...")) => self.take(3, Kind::Rest),
            b'.' if self.peek(1) == Some(b'.') => self.take(2, Kind::Operator),
            b'=' | b'~' | b'<' | b'>' if self.peek(1) == Some(b'=') => self.take(2, Kind::Operator),
            b':' if self.peek(1) == Some(b':') => self.take(2, Kind::Operator),
            b'<' | b'>' if self.peek(1) == Some(first) => {
                return Err(self.error("unexpected symbol", &[first]));
            }
            symbol => self.take(1, Kind::Symbol(symbol)),
        };
        debug_assert!(self.at > start, "each token has a byte");
        Ok(Some(Token { kind, start, end: self.at }))
    }

    fn take(&mut self, bytes: usize, kind: Kind) -> Kind {
        self.at += bytes;
        kind
    }

    fn skip_while(&mut self, wanted: impl Fn(u8) -> bool) {
        while let Some(byte) = self.peek(0).filter(|byte| wanted(*byte)) {
            self.line += usize::from(byte == b'\n');
            self.at += 1;
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            self.skip_while(|byte| byte.is_ascii_whitespace() || byte == 0x0b);
            if (self.peek(0), self.peek(1)) != (Some(b'-'), Some(b'-')) {
                return;
            }
            self.at += 2;
            match self.long_level() {
                Some(_) => self.skip_long(),
                None => self.skip_while(|byte| byte != b'\n'),
            }
        }
    }

    /// The number of `=` of a long bracket that opens here.
    fn long_level(&self) -> Option<usize> {
        let rest = self.source.get(self.at..)?.strip_prefix(b"[")?;
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    /// Skips a long string or comment; an unfinished one is the rest of the source.
    fn skip_long(&mut self) {
        let level = self.long_level().unwrap_or(0);
        self.at += level + 2;
        let mut close = vec![b']'];
        close.resize(level + 1, b'=');
        close.push(b']');
        while let Some(rest) = self.source.get(self.at..).filter(|rest| !rest.is_empty()) {
            if rest.starts_with(&close) {
                self.at += close.len();
                return;
            }
            self.line += usize::from(rest.first() == Some(&b'\n'));
            self.at += 1;
        }
    }

    /// Skips a quoted string; an unfinished one ends at the end of its line.
    fn quoted(&mut self, quote: u8) -> Kind {
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' if self.peek(1) == Some(b'z') => {
                    self.at += 2;
                    self.skip_while(|byte| byte.is_ascii_whitespace() || byte == 0x0b);
                }
                b'\\' => {
                    self.line += usize::from(self.peek(1) == Some(b'\n'));
                    self.at = (self.at + 2).min(self.source.len());
                }
                b'\n' => return Kind::Text,
                _ => {
                    self.at += 1;
                    if byte == quote {
                        return Kind::Text;
                    }
                }
            }
        }
        Kind::Text
    }

    /// Takes the bytes of a number as Lua's lexer does: also letters and dots, and a sign after the mark of an exponent.
    fn numeral(&mut self) -> Kind {
        let is_hex = self.peek(0) == Some(b'0') && matches!(self.peek(1), Some(b'x' | b'X'));
        let exponent = if is_hex { *b"Pp" } else { *b"Ee" };
        self.at += if is_hex { 2 } else { 0 };
        loop {
            if self.peek(0).is_some_and(|byte| exponent.contains(&byte)) {
                self.at += 1;
                self.at += usize::from(matches!(self.peek(0), Some(b'+' | b'-')));
            }
            if !self.peek(0).is_some_and(|byte| byte.is_ascii_hexdigit() || byte == b'.') {
                break;
            }
            self.at += 1;
        }
        self.skip_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        Kind::Number
    }

    /// The text for a number; `None` if it can stay.
    fn number(&self, token: Token) -> Result<Option<String>, SyntaxError> {
        let text = self.source.get(token.start..token.end).unwrap_or_default();
        let (value, used) = parse_integer(text);
        if used != text.len() {
            return Err(self.error("malformed number", text));
        }
        let stays = !text.starts_with(b"0") && value >= 0 && value.to_string().as_bytes() == text;
        Ok((!stays).then(|| format!("{value:#x}")))
    }
}

/// The integer that a text begins with, wrapped around, and the number of its bytes: decimal, octal after `0`, or
/// hexadecimal after `0x` (`lcompat_strtoll`). 0 bytes if there is no digit.
pub fn parse_integer(text: &[u8]) -> (i64, usize) {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n')).count();
    let rest = text.get(blanks..).unwrap_or_default();
    let sign = usize::from(matches!(rest.first(), Some(b'-' | b'+')));
    let unsigned = rest.get(sign..).unwrap_or_default();
    let (base, mark) = match unsigned {
        [b'0', b'x' | b'X', ..] => (16, 2),
        [b'0', ..] => (8, 0),
        _ => (10, 0),
    };
    let mut value = 0i64;
    let mut digits = 0;
    for byte in unsigned.get(mark..).unwrap_or_default() {
        let Some(digit) = char::from(*byte).to_digit(base) else { break };
        value = value.wrapping_mul(base.into()).wrapping_add(digit.into());
        digits += 1;
    }
    let value = if rest.first() == Some(&b'-') { value.wrapping_neg() } else { value };
    (value, if digits == 0 { 0 } else { blanks + sign + mark + digits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(source: &str) -> String {
        let out = String::from_utf8(rewrite(source.as_bytes()).unwrap()).unwrap();
        out.strip_prefix(std::str::from_utf8(PREFIX).unwrap()).map_or(out.clone(), str::to_owned)
    }

    #[test]
    fn division_and_remainder_keep_their_precedence() {
        assert_eq!(of("x=a/b*c%d"), "x=a//__zcp_div//b*c//__zcp_mod//d");
        assert_eq!(of("x = 'a/b' .. [[c%d]] -- e/f\ny=1"), "x = 'a/b' .. [[c%d]] -- e/f\ny=1");
        assert_eq!(of("--[==[ a/b\n]] ]==] x = 1/2"), "--[==[ a/b\n]] ]==] x = 1//__zcp_div//2");
        assert_eq!(of("x = 'it\\'s/' / 2"), "x = 'it\\'s/' //__zcp_div// 2");
    }

    #[test]
    fn the_left_operand_of_a_power_is_a_suffixed_expression() {
        for (source, out) in [
            ("return -2^2", "return -__zcp_pow(2)^2"),
            ("return a.b[c]:d(e)^2^x", "return __zcp_pow(a.b[c]:d(e))^__zcp_pow(2)^x"),
            ("return (a)^2", "return __zcp_pow((a))^2"),
            ("return f{1}'x'^2", "return __zcp_pow(f{1}'x')^2"),
            ("return 1+t[2^3]^4", "return 1+__zcp_pow(t[__zcp_pow(2)^3])^4"),
            ("return ...^2", "return __zcp_pow(...)^2"),
            ("return a and (b)^2", "return a and __zcp_pow((b))^2"),
            ("x = ^2", "x = ^2"),
        ] {
            assert_eq!(of(source), out, "{source}");
        }
    }

    #[test]
    fn numbers_are_integers_that_wrap_around() {
        assert_eq!(of("x = 10 + 010 + 0x1F"), "x = 10 + 0x8 + 0x1f");
        assert_eq!(of("x = 18446744073709551615 .. 0"), "x = 0xffffffffffffffff .. 0x0");
        assert_eq!(of("x = 9223372036854775808"), "x = 0x8000000000000000");
        for bad in ["1.0", "1.5", "1e3", "0x1p4", "08", "3x", "0x", ".5"] {
            let error = rewrite(format!("\nreturn {bad}").as_bytes()).unwrap_err();
            assert_eq!((error.line, error.message), (2, format!("malformed number near '{bad}'")));
        }
    }

    #[test]
    fn operators_of_later_versions_are_errors() {
        for (bad, near) in [("a & b", "&"), ("a | b", "|"), ("~a", "~"), ("a << b", "<"), ("a >> b", ">")] {
            let error = rewrite(format!("return {bad}").as_bytes()).unwrap_err();
            assert_eq!(error.message, format!("unexpected symbol near '{near}'"));
        }
        assert_eq!(of("::a:: x = a ~= b, a <= b, a >= b, a == b"), "::a:: x = a ~= b, a <= b, a >= b, a == b");
    }

    #[test]
    fn integers_are_parsed_as_by_openzfs() {
        for (text, value, used) in [
            ("12 ", 12, 2),
            (" -012", -10, 5),
            ("0xfffffffffffffffff", -1, 19),
            ("+7", 7, 2),
            ("-", 0, 0),
            ("", 0, 0),
            ("0x", 0, 0),
            ("09", 0, 1),
        ] {
            assert_eq!(parse_integer(text.as_bytes()), (value, used), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_source_keeps_its_lines(source in proptest::collection::vec(prop_oneof![
            Just(b'\n'), Just(b'/'), Just(b'^'), Just(b'('), Just(b')'), Just(b'['), Just(b'='), Just(b']'),
            Just(b'"'), Just(b'\\'), Just(b'a'), Just(b'0'), Just(b'.'), Just(b'-'), any::<u8>(),
        ], 0..200)) {
            if let Ok(out) = rewrite(&source) {
                prop_assert_eq!(lines(&out), lines(&source));
            }
        }
    }
}
