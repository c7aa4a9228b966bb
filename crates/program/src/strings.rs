//! The functions of Lua's string library whose time or memory a script could make unbounded: with patterns, and `rep`.
//!
//! Source: Lua 5.2 reference manual, §6.4.

use crate::pattern::{Captured, Matcher, find_plain, is_plain};
use crate::run::{Run, bad_argument, fail, type_name};
use mlua::{Error, Function, Lua, LuaString, MultiValue, Table, Value};
use std::cell::Cell;
use std::rc::Rc;

/// Replaces the functions in the table of the library.
///
/// # Errors
/// Errors of allocating memory.
pub fn install(lua: &Lua, run: &Rc<Run>, library: &Table) -> Result<(), Error> {
    let with = |function: fn(&Lua, &Rc<Run>, MultiValue) -> Result<MultiValue, Error>| {
        let run = run.clone();
        lua.create_function(move |lua, arguments: MultiValue| function(lua, &run, arguments))
    };
    library.raw_set("find", with(|lua, run, arguments| find(lua, run, arguments, true))?)?;
    library.raw_set("match", with(|lua, run, arguments| find(lua, run, arguments, false))?)?;
    library.raw_set("gmatch", with(gmatch)?)?;
    library.raw_set("gsub", with(gsub)?)?;
    library.raw_set("rep", with(rep)?)
}

/// A text argument, from 1; numbers are texts, too.
///
/// # Errors
/// An argument of another type.
pub fn text(lua: &Lua, arguments: &MultiValue, index: usize, function: &str) -> Result<LuaString, Error> {
    let given = arguments.get(index - 1);
    match given {
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(number @ (Value::Integer(_) | Value::Number(_))) => {
            if let Some(text) = lua.coerce_string(number.clone())? {
                return Ok(text);
            }
        }
        _ => {}
    }
    let found = given.map_or("no value", type_name);
    Err(bad_argument(lua, index, function, format!("string expected, got {found}")))
}

/// An integer argument, from 1; `None` if it is missing.
///
/// # Errors
/// An argument of another type.
pub fn integer(lua: &Lua, arguments: &MultiValue, index: usize, function: &str) -> Result<Option<i64>, Error> {
    let given = match arguments.get(index - 1) {
        None | Some(Value::Nil) => return Ok(None),
        Some(given) => given,
    };
    match lua.coerce_integer(given.clone())? {
        Some(number) => Ok(Some(number)),
        None => Err(bad_argument(lua, index, function, format!("number expected, got {}", type_name(given)))),
    }
}

/// The values of captures.
fn values(lua: &Lua, subject: &[u8], captures: Vec<Captured>) -> Result<Vec<Value>, Error> {
    let value = |captured| match captured {
        Captured::Position(at) => Ok(Value::Integer(at as i64)),
        Captured::Bytes(start, end) => {
            lua.create_string(subject.get(start..end).unwrap_or_default()).map(Value::String)
        }
    };
    captures.into_iter().map(value).collect()
}

/// A position of the caller as one from 0; at most one after the end.
fn start_of(init: i64, len: usize) -> usize {
    let from_end = |back: u64| len.saturating_sub(usize::try_from(back).unwrap_or(usize::MAX));
    match init {
        i64::MIN..0 => from_end(init.unsigned_abs()),
        0 => 0,
        _ => usize::try_from(init - 1).unwrap_or(usize::MAX),
    }
}

/// `string.find` and `string.match`.
fn find(lua: &Lua, run: &Rc<Run>, arguments: MultiValue, finds: bool) -> Result<MultiValue, Error> {
    let function = if finds { "find" } else { "match" };
    let subject = text(lua, &arguments, 1, function)?;
    let pattern = text(lua, &arguments, 2, function)?;
    let init = integer(lua, &arguments, 3, function)?.unwrap_or(1);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let start = start_of(init, subject.len());
    let nothing = || Ok(MultiValue::from_vec(vec![Value::Nil]));
    if start > subject.len() {
        return nothing();
    }
    let failed = |error| run.pattern_error(lua, error);
    let place = |start: usize, end: usize| [start as i64 + 1, end as i64].map(Value::Integer);
    let asks_plain = !matches!(arguments.get(3), None | Some(Value::Nil | Value::Boolean(false)));
    if finds && (asks_plain || is_plain(&pattern)) {
        return match find_plain(&subject, &pattern, start, &run.steps).map_err(failed)? {
            Some(at) => Ok(MultiValue::from_iter(place(at, at + pattern.len()))),
            None => nothing(),
        };
    }
    let (is_anchored, pattern) = pattern.strip_prefix(b"^").map_or((false, &*pattern), |rest| (true, rest));
    let mut matcher = Matcher::new(&subject, pattern, &run.steps);
    for at in start..=subject.len() {
        if let Some(end) = matcher.at(at).map_err(failed)? {
            let captures = matcher.captures((!finds).then_some((at, end))).map_err(failed)?;
            let captures = values(lua, &subject, captures)?;
            let places = finds.then(|| place(at, end)).into_iter().flatten();
            return Ok(places.chain(captures).collect());
        }
        if is_anchored {
            break;
        }
    }
    nothing()
}

/// `string.gmatch`.
fn gmatch(lua: &Lua, run: &Rc<Run>, arguments: MultiValue) -> Result<MultiValue, Error> {
    let subject = text(lua, &arguments, 1, "gmatch")?;
    let pattern = text(lua, &arguments, 2, "gmatch")?;
    let (run, next) = (run.clone(), Cell::new(0));
    let iterate = lua.create_function(move |lua, _: MultiValue| {
        let failed = |error| run.pattern_error(lua, error);
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        let mut matcher = Matcher::new(&subject, &pattern, &run.steps);
        for at in next.get()..=subject.len() {
            if let Some(end) = matcher.at(at).map_err(failed)? {
                next.set(if end == at { end + 1 } else { end });
                let captures = matcher.captures(Some((at, end))).map_err(failed)?;
                return values(lua, &subject, captures).map(MultiValue::from_vec);
            }
        }
        next.set(subject.len() + 1);
        Ok(MultiValue::from_vec(vec![Value::Nil]))
    })?;
    Ok(MultiValue::from_vec(vec![Value::Function(iterate)]))
}

/// Source of the text that `string.gsub` puts in the place of a match.
enum Replacement {
    Text(LuaString),
    Table(Table),
    Function(Function),
}

/// `string.gsub`.
fn gsub(lua: &Lua, run: &Rc<Run>, arguments: MultiValue) -> Result<MultiValue, Error> {
    let subject = text(lua, &arguments, 1, "gsub")?;
    let pattern = text(lua, &arguments, 2, "gsub")?;
    let replacement = match arguments.get(2) {
        Some(Value::Table(table)) => Replacement::Table(table.clone()),
        Some(Value::Function(function)) => Replacement::Function(function.clone()),
        Some(Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
            Replacement::Text(text(lua, &arguments, 3, "gsub")?)
        }
        _ => return Err(bad_argument(lua, 3, "gsub", "string/function/table expected")),
    };
    let limit = integer(lua, &arguments, 4, "gsub")?;
    let failed = |error| run.pattern_error(lua, error);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let (is_anchored, pattern) = pattern.strip_prefix(b"^").map_or((false, &*pattern), |rest| (true, rest));
    let mut matcher = Matcher::new(&subject, pattern, &run.steps);
    let mut out = Vec::new();
    let mut at = 0;
    let mut count = 0;
    while limit.is_none_or(|limit| count < limit) {
        let end = matcher.at(at).map_err(failed)?;
        if let Some(end) = end {
            count += 1;
            replace(lua, run, &matcher, &subject, (at, end), &replacement, &mut out)?;
        }
        match (end, subject.get(at)) {
            (Some(end), _) if end > at => at = end,
            (_, Some(byte)) => {
                out.push(*byte);
                at += 1;
            }
            (_, None) => break,
        }
        run.check_bytes(out.len())?;
        if is_anchored {
            break;
        }
    }
    out.extend_from_slice(subject.get(at..).unwrap_or_default());
    Ok(MultiValue::from_vec(vec![Value::String(lua.create_string(out)?), Value::Integer(count)]))
}

/// Appends what replaces the match `whole`.
fn replace(
    lua: &Lua,
    run: &Rc<Run>,
    matcher: &Matcher<'_>,
    subject: &[u8],
    whole: (usize, usize),
    replacement: &Replacement,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let failed = |error| run.pattern_error(lua, error);
    let first = || -> Result<Value, Error> {
        let captured = matcher.capture(0, whole).map_err(failed)?;
        Ok(values(lua, subject, vec![captured])?.pop().unwrap_or(Value::Nil))
    };
    let value: Value = match replacement {
        Replacement::Text(text) => return replace_by_text(lua, run, matcher, subject, whole, &text.as_bytes(), out),
        Replacement::Table(table) => {
            let key = first()?;
            run.call_back(|| table.get(key))?
        }
        Replacement::Function(function) => {
            let captures = matcher.captures(Some(whole)).map_err(failed)?;
            let captures = MultiValue::from_vec(values(lua, subject, captures)?);
            run.call_back(|| function.call(captures))?
        }
    };
    match value {
        Value::Nil | Value::Boolean(false) => {
            out.extend_from_slice(subject.get(whole.0..whole.1).unwrap_or_default());
            Ok(())
        }
        Value::String(text) => {
            out.extend_from_slice(&text.as_bytes());
            Ok(())
        }
        number @ (Value::Integer(_) | Value::Number(_)) => {
            out.extend(lua.coerce_string(number)?.iter().flat_map(|text| text.as_bytes().to_vec()));
            Ok(())
        }
        other => Err(fail(lua, format!("invalid replacement value (a {})", type_name(&other)))),
    }
}

/// Appends a text with the captures that `%0` to `%9` name in it.
fn replace_by_text(
    lua: &Lua,
    run: &Rc<Run>,
    matcher: &Matcher<'_>,
    subject: &[u8],
    whole: (usize, usize),
    text: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let captured = match bytes.next() {
            Some(b'%') => {
                out.push(b'%');
                continue;
            }
            Some(b'0') => Captured::Bytes(whole.0, whole.1),
            Some(digit @ b'1'..=b'9') => {
                matcher.capture(usize::from(digit - b'1'), whole).map_err(|error| run.pattern_error(lua, error))?
            }
            _ => return Err(fail(lua, "invalid use of '%' in replacement string")),
        };
        match captured {
            Captured::Bytes(start, end) => out.extend_from_slice(subject.get(start..end).unwrap_or_default()),
            Captured::Position(at) => out.extend_from_slice(at.to_string().as_bytes()),
        }
        run.check_bytes(out.len())?;
    }
    Ok(())
}

/// `string.rep`.
fn rep(lua: &Lua, run: &Rc<Run>, arguments: MultiValue) -> Result<MultiValue, Error> {
    let repeated = text(lua, &arguments, 1, "rep")?;
    let Some(count) = integer(lua, &arguments, 2, "rep")? else {
        return Err(bad_argument(lua, 2, "rep", "number expected, got no value"));
    };
    let separator = match arguments.get(2) {
        None | Some(Value::Nil) => Vec::new(),
        Some(_) => text(lua, &arguments, 3, "rep")?.as_bytes().to_vec(),
    };
    let (repeated, count) = (repeated.as_bytes(), usize::try_from(count).unwrap_or(0));
    let separators = count.saturating_sub(1).saturating_mul(separator.len());
    let size = repeated.len().saturating_mul(count).saturating_add(separators);
    run.check_bytes(size)?;
    let mut out = Vec::with_capacity(size);
    if size > 0 {
        for index in 0..count {
            if index > 0 {
                out.extend_from_slice(&separator);
            }
            out.extend_from_slice(&repeated);
        }
    }
    debug_assert_eq!(out.len(), size, "the repeated text has the computed size");
    Ok(MultiValue::from_vec(vec![Value::String(lua.create_string(out)?)]))
}
