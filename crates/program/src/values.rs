//! Values that a script returns, as OpenZFS stores them in an nvlist.
//!
//! Numbers and booleans as keys become texts; two keys with one text, a value that is no data, and more than [`MAX_DEPTH`] tables
//! in each other are errors. The pairs of a table come in an order of their own, because Lua's differs from run to run.
//!
//! Source: OpenZFS `module/zfs/zcp.c` (`zcp_table_to_nvlist`).

use crate::run::type_name;
use mlua::{Table, Value};
use std::collections::BTreeMap;
use weir_admin::{Bytes, ProgramValue};

/// Maximum nesting of tables (`ZCP_NVLIST_MAX_DEPTH`).
const MAX_DEPTH: usize = 20;

/// Place of a key in its table: numbers first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Number(i64),
    Name,
}

/// Converts the value of the key `key`.
///
/// # Errors
/// The message for a value that cannot be converted.
pub fn convert(value: &Value, key: &str, depth: usize) -> Result<ProgramValue, String> {
    match value {
        Value::Nil => Ok(ProgramValue::Nil),
        Value::Boolean(is) => Ok(ProgramValue::Boolean(*is)),
        Value::Integer(number) => Ok(ProgramValue::Number(*number)),
        Value::Number(number) => Ok(ProgramValue::Number(*number as i64)),
        Value::String(text) => Ok(ProgramValue::Text(until_nul(&text.as_bytes()))),
        Value::Table(table) => convert_table(table, depth).map(ProgramValue::Table),
        other => Err(format!("Invalid value type '{}' for key '{key}'", type_name(other))),
    }
}

fn convert_table(table: &Table, depth: usize) -> Result<Vec<(Bytes, ProgramValue)>, String> {
    let mut pairs: BTreeMap<(Place, Bytes), ProgramValue> = BTreeMap::new();
    let mut names = std::collections::BTreeSet::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|error| error.to_string())?;
        let (place, name) = match &key {
            Value::String(text) => (Place::Name, until_nul(&text.as_bytes())),
            Value::Boolean(is) => (Place::Name, if *is { "true".into() } else { "false".into() }),
            Value::Integer(number) => (Place::Number(*number), number.to_string().as_str().into()),
            Value::Number(number) => (Place::Number(*number as i64), (*number as i64).to_string().as_str().into()),
            other => return Err(format!("Invalid key type '{}' in table", type_name(other))),
        };
        let text = String::from_utf8_lossy(&name.0).into_owned();
        if !names.insert(name.clone()) {
            return Err(format!("Collision of key '{text}' in table"));
        }
        if depth >= MAX_DEPTH {
            return Err(format!("Maximum table depth ({MAX_DEPTH}) exceeded for table"));
        }
        pairs.insert((place, name), convert(&value, &text, depth + 1)?);
    }
    debug_assert_eq!(names.len(), pairs.len(), "each key is there once");
    Ok(pairs.into_iter().map(|((_, name), value)| (name, value)).collect())
}

/// The bytes before the first NUL, where texts of nvlists end.
fn until_nul(text: &[u8]) -> Bytes {
    Bytes(text.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}
