//! The interpreter: Lua 5.4 with the libraries and the arithmetic of OpenZFS's Lua.
//!
//! ```text
//!   kept           assert error getmetatable ipairs next pairs rawequal rawget rawlen rawset select tostring type
//!   own            collectgarbage setmetatable tonumber, coroutine.resume and wrap, parts of string and table
//!   removed        dofile load loadfile pcall print xpcall, and what Lua 5.4 has more than 5.2
//! ```
//!
//! *Errors.* A function of this crate raises an object that mlua makes. The script sees an error as a text where it can catch one,
//! in `coroutine.resume`, so these are made texts there.
//!
//! *No finalizers.* Lua calls `__gc` with the hook switched off, so a loop in one would never end: `setmetatable` refuses it.
//!
//! *Arithmetic.* [`super::source`] rewrites `/`, `%` and `^` to operations on tables whose metamethods are here: they divide as C
//! does, toward zero. Texts as operands are integers as in [`parse_integer`]. The frames of metamethods, from the chunk [`CHUNK`], are
//! left out of tracebacks.
//!
//! Source: OpenZFS `module/lua/lbaselib.c`, `lvm.c` (`luaV_arith`), `lcompat.c`.

use crate::run::{Run, bad_argument, fail, message_of, type_name};
use crate::source::parse_integer;
use crate::{strings, tables};
use mlua::{Error, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use std::rc::Rc;

/// Name of the chunk of the functions below, as Lua shows it.
pub const CHUNK: &str = "[zfs]";

const GLOBALS: [&str; 21] = [
    "_G",
    "assert",
    "collectgarbage",
    "coroutine",
    "error",
    "getmetatable",
    "ipairs",
    "next",
    "pairs",
    "rawequal",
    "rawget",
    "rawlen",
    "rawset",
    "select",
    "setmetatable",
    "string",
    "table",
    "tonumber",
    "tostring",
    "type",
    "_VERSION",
];
const COROUTINE: [&str; 6] = ["create", "resume", "running", "status", "wrap", "yield"];
const STRING: [&str; 13] =
    ["byte", "char", "find", "format", "gmatch", "gsub", "len", "lower", "match", "rep", "reverse", "sub", "upper"];
const TABLE: [&str; 6] = ["concat", "insert", "pack", "remove", "sort", "unpack"];

/// Functions that are easier in Lua: metamethods, and calls that pass on any number of values.
const BOOTSTRAP: &str = r#"
local string, create, resume, as_text, metafield, integer = ...
local error, setmetatable, type = error, setmetatable, type
local of_texts = getmetatable("")

local function operate(a, b, event, compute)
  local x, y = integer(a), integer(b)
  if x and y then return compute(x, y) end
  local handler = metafield(a, event) or metafield(b, event)
  if handler then return (handler(a, b)) end
  if x then a = b end
  error("attempt to perform arithmetic on a " .. type(a) .. " value", 3)
end

local function divide(x, y)
  if y == 0 then error("attempt to divide by zero", 3) end
  local quotient = x // y
  if quotient < 0 and quotient * y ~= x then quotient = quotient + 1 end
  return quotient
end

local function remainder(x, y)
  if y == 0 then error("attempt to divide by zero", 3) end
  local rest = x % y
  if rest ~= 0 and (rest < 0) ~= (x < 0) then rest = rest - y end
  return rest
end

local function power(x, y)
  if y < 0 then return 0 end
  local result = 1
  while y > 0 do
    if y & 1 == 1 then result = result * x end
    y = y >> 1
    x = x * x
  end
  return result
end

local function with_left(event, metamethod, compute)
  local pending = {[metamethod] = function(left, b) return (operate(left[1], b, event, compute)) end}
  return function(a) return setmetatable({a}, pending) end
end

local divided = with_left("__div", "__idiv", divide)
local reduced = with_left("__mod", "__idiv", remainder)
local operators = {
  setmetatable({}, {__idiv = function(a) return divided(a) end}),
  setmetatable({}, {__idiv = function(a) return reduced(a) end}),
  with_left("__pow", "__pow", power),
}

local function with_texts(event, compute)
  of_texts[event] = function(a, b) return (operate(a, b, event, compute)) end
end

with_texts("__add", function(x, y) return x + y end)
with_texts("__sub", function(x, y) return x - y end)
with_texts("__mul", function(x, y) return x * y end)
with_texts("__unm", function(x) return -x end)

function string.__arithmetic()
  string.__arithmetic = nil
  return operators[1], operators[2], operators[3]
end

local function unwrap(ok, ...)
  if ok then return ... end
  error((...), 0)
end

return function(co, ...) return as_text(resume(co, ...)) end,
  function(f)
    local co = create(f)
    return function(...) return unwrap(as_text(resume(co, ...))) end
  end,
  function(a, b) return a < b end
"#;

/// An interpreter with its libraries, without `zfs`; and `xpcall`, which scripts do not have.
///
/// # Errors
/// Errors of allocating memory.
pub fn interpreter(run: &Rc<Run>) -> Result<(Lua, Function), Error> {
    let libraries = StdLib::COROUTINE | StdLib::STRING | StdLib::TABLE;
    let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
    let globals = lua.globals();
    let xpcall: Function = globals.raw_get("xpcall")?;
    keep(&globals, &GLOBALS)?;
    let coroutine: Table = globals.raw_get("coroutine")?;
    let string: Table = globals.raw_get("string")?;
    let table: Table = globals.raw_get("table")?;
    keep(&coroutine, &COROUTINE)?;
    keep(&string, &STRING)?;
    keep(&table, &TABLE)?;
    let less = bootstrap(&lua, &string, &coroutine)?;
    strings::install(&lua, run, &string)?;
    tables::install(&lua, run, &table, less)?;
    globals.raw_set("_VERSION", "Lua 5.2")?;
    globals.raw_set("tonumber", lua.create_function(|lua, arguments: MultiValue| to_number(lua, &arguments))?)?;
    let set = lua.create_function(|lua, arguments: MultiValue| set_metatable(lua, &arguments))?;
    globals.raw_set("setmetatable", set)?;
    let collect = lua.create_function(|lua, arguments: MultiValue| collect_garbage(lua, &arguments))?;
    globals.raw_set("collectgarbage", collect)?;
    Ok((lua, xpcall))
}

/// Removes all fields of a table but these.
fn keep(table: &Table, kept: &[&str]) -> Result<(), Error> {
    let fields = table.pairs::<Value, Value>().map(|pair| pair.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()?;
    for key in fields {
        let is_kept = key.as_string().is_some_and(|name| kept.iter().any(|kept| name.as_bytes() == kept.as_bytes()));
        if !is_kept {
            table.raw_set(key, Value::Nil)?;
        }
    }
    Ok(())
}

/// Sets the functions of [`BOOTSTRAP`]; returns the one that compares two values.
fn bootstrap(lua: &Lua, string: &Table, coroutine: &Table) -> Result<Function, Error> {
    let as_text = lua.create_function(|lua, mut values: MultiValue| {
        if let Some(value @ Value::Error(_)) = values.get_mut(1) {
            let message = value.as_error().and_then(message_of).unwrap_or_else(|| "not enough memory".into());
            *value = Value::String(lua.create_string(message)?);
        }
        Ok(values)
    })?;
    let metafield = lua.create_function(|_, (value, name): (Value, String)| {
        let metatable = value.as_table().and_then(Table::metatable);
        metatable.map_or(Ok(Value::Nil), |metatable| metatable.raw_get::<Value>(name))
    })?;
    let integer = lua.create_function(|lua, value: Value| match value {
        Value::Integer(_) | Value::Number(_) => Ok(value),
        Value::String(text) => Ok(whole_integer(&text.as_bytes()).map_or(Value::Nil, Value::Integer)),
        _ => lua.pack(Value::Nil),
    })?;
    let create: Function = coroutine.raw_get("create")?;
    let resume: Function = coroutine.raw_get("resume")?;
    let chunk = lua.load(BOOTSTRAP).set_name(format!("={CHUNK}"));
    let (resume, wrap, less): (Function, Function, Function) =
        chunk.call((string, create, resume, as_text, metafield, integer))?;
    coroutine.raw_set("resume", resume)?;
    coroutine.raw_set("wrap", wrap)?;
    Ok(less)
}

/// Parses a text as an integer; white space around it does not count (`luaO_str2d`).
fn whole_integer(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii();
    let (value, used) = parse_integer(text);
    (used > 0 && used == text.len()).then_some(value)
}

/// `tonumber`.
fn to_number(lua: &Lua, arguments: &MultiValue) -> Result<Value, Error> {
    let base = strings::integer(lua, arguments, 2, "tonumber")?;
    let Some(base) = base else {
        return match arguments.front() {
            None => Err(bad_argument(lua, 1, "tonumber", "value expected")),
            Some(number @ (Value::Integer(_) | Value::Number(_))) => Ok(number.clone()),
            Some(Value::String(text)) => Ok(whole_integer(&text.as_bytes()).map_or(Value::Nil, Value::Integer)),
            Some(_) => Ok(Value::Nil),
        };
    };
    let text = strings::text(lua, arguments, 1, "tonumber")?;
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return Err(bad_argument(lua, 2, "tonumber", "base out of range"));
    };
    let text = text.as_bytes();
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let mut value = 0i64;
    for byte in digits {
        let Some(digit) = char::from(*byte).to_digit(base) else { return Ok(Value::Nil) };
        value = value.wrapping_mul(base.into()).wrapping_add(digit.into());
    }
    Ok(match (digits.is_empty(), text.starts_with(b"-")) {
        (true, _) => Value::Nil,
        (false, true) => Value::Integer(value.wrapping_neg()),
        (false, false) => Value::Integer(value),
    })
}

/// `setmetatable`, without finalizers.
fn set_metatable(lua: &Lua, arguments: &MultiValue) -> Result<Table, Error> {
    let Some(Value::Table(table)) = arguments.front() else {
        let found = arguments.front().map_or("no value", type_name);
        return Err(bad_argument(lua, 1, "setmetatable", format!("table expected, got {found}")));
    };
    let metatable = match arguments.get(1) {
        Some(Value::Nil) => None,
        Some(Value::Table(metatable)) => Some(metatable.clone()),
        _ => return Err(bad_argument(lua, 2, "setmetatable", "nil or table expected")),
    };
    let has = |of: &Table, field: &str| of.raw_get::<Value>(field).map(|value| !value.is_nil());
    if table.metatable().is_some_and(|present| has(&present, "__metatable").unwrap_or(true)) {
        return Err(fail(lua, "cannot change a protected metatable"));
    }
    if metatable.as_ref().is_some_and(|metatable| has(metatable, "__gc").unwrap_or(true)) {
        return Err(fail(lua, "finalizers ('__gc') are not supported"));
    }
    table.set_metatable(metatable)?;
    Ok(table.clone())
}

/// `collectgarbage`: `collect`, `step` and `count`; the collector cannot be stopped or tuned.
fn collect_garbage(lua: &Lua, arguments: &MultiValue) -> Result<Value, Error> {
    let option = match arguments.front() {
        None | Some(Value::Nil) => "collect".to_owned(),
        Some(_) => strings::text(lua, arguments, 1, "collectgarbage")?.to_string_lossy(),
    };
    match option.as_str() {
        "collect" | "step" => {
            lua.gc_collect()?;
            Ok(Value::Integer(0))
        }
        "count" => Ok(Value::Integer((lua.used_memory() >> 10) as i64)),
        "stop" | "restart" | "setpause" | "setstepmul" | "setmajorinc" | "generational" | "incremental" => {
            Ok(Value::Integer(0))
        }
        "isrunning" => Ok(Value::Boolean(true)),
        other => Err(bad_argument(lua, 1, "collectgarbage", format!("invalid option '{other}'"))),
    }
}
