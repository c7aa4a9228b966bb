//! The JSON that OpenZFS 2.3's `-j` prints: `output_version`, then the objects by name.

use crate::call::{Call, outln};
use serde_json::{Map, Value, json};

/// How numbers appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// As text (`-j`).
    Text,
    /// As integers (`-j --json-int`).
    Integers,
}

/// The frame of an answer to `command` (`zpool list`).
pub fn frame(command: &str) -> Map<String, Value> {
    let version = json!({ "command": command, "vers_major": 0, "vers_minor": 1 });
    Map::from_iter([("output_version".to_owned(), version)])
}

/// A number in either form.
pub fn number(n: u64, numbers: Numbers) -> Value {
    match numbers {
        Numbers::Text => Value::String(n.to_string()),
        Numbers::Integers => n.into(),
    }
}

/// A property: `{ value, source { type, data } }`.
pub fn property(value: &str, source: &str, numbers: Numbers) -> Value {
    let value = match value.parse::<u64>() {
        Ok(n) if numbers == Numbers::Integers => n.into(),
        _ => Value::String(value.to_owned()),
    };
    let (kind, data) = match source {
        "-" => ("NONE", "-"),
        "default" => ("DEFAULT", "-"),
        "local" => ("LOCAL", "-"),
        "temporary" => ("TEMPORARY", "-"),
        "received" => ("RECEIVED", "-"),
        other => match other.strip_prefix("inherited from ") {
            Some(from) => ("INHERITED", from),
            None => ("NONE", other),
        },
    };
    json!({ "value": value, "source": { "type": kind, "data": data } })
}

/// Prints a finished answer.
pub fn print(call: &Call, answer: Map<String, Value>) {
    outln!(call, "{}", Value::Object(answer));
}

/// Prints the version of Weir, as JSON if that is wanted, and returns the exit code. OpenZFS's fields are those of its tools and
/// its kernel module, which are one program here.
pub fn version(call: &Call, command: &str, is_json: bool) -> u8 {
    let version = format!("weir {}", env!("CARGO_PKG_VERSION"));
    if is_json {
        let mut answer = frame(command);
        answer.insert("zfs_version".into(), json!({ "userland": version, "kernel": version }));
        print(call, answer);
    } else {
        outln!(call, "{version}");
    }
    0
}
