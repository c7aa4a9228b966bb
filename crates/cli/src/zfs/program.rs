//! `zfs program`: a script in Lua that reads datasets and changes them, all in one txg.
//!
//! Output, messages and exit codes: OpenZFS `cmd/zfs/zfs_main.c` (`zfs_do_channel_program`), `lib/libnvpair` (`dump_nvlist`,
//! `nvlist_print_json`).

use super::target;
use crate::args::CommandLine;
use crate::call::{Call, Input};
use crate::failure::Failure;
use crate::options::Places;
use crate::writable::refused;
use clap::Parser;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use weir_admin::{Action, Bytes, LuaProgram, Outcome, ProgramEnd, ProgramFailure, ProgramFailureKind, ProgramValue};
use weir_program::{DEFAULT_INSTRUCTIONS, DEFAULT_MEMORY_BYTES};

/// Maximum size of a script in bytes.
const MAX_SCRIPT_BYTES: usize = 256 << 10;
/// Beginning of the message of a program that failed.
const FAILED: &str = "Channel program execution failed";
/// The key of the return value.
const RETURN: &str = "return";
/// Columns by which a table is indented in the one that contains it.
const INDENT: usize = 4;

/// Run a Lua program that reads and changes datasets in one txg.
#[derive(Debug, Parser)]
#[command(
    name = "zfs program",
    override_usage = "zfs program [-jn] [-t INSTRUCTIONS] [-m BYTES] [--dir DIR]… POOL SCRIPT [ARGUMENT]…",
    after_help = "The script is Lua 5.2 with 64-bit integers as its only numbers; its library 'zfs' is that of zfs-program(8): \
                  zfs.exists, zfs.get_prop, zfs.list.*, zfs.check.*, zfs.sync.*. The arguments are in args[\"argv\"], after \
                  'args = ...'. While it runs, no other change of datasets takes place, and writes to the pool may wait."
)]
pub struct ProgramArgs {
    /// Print the result as JSON
    #[arg(short = 'j', long)]
    json: bool,
    /// Run a program that changes nothing: its calls of zfs.sync fail
    #[arg(short = 'n')]
    read_only: bool,
    /// Maximum number of Lua instructions, at most 100 million [default: 10 million]
    #[arg(short = 't', value_name = "INSTRUCTIONS")]
    instructions: Option<String>,
    /// Maximum memory of the program in bytes, at most 100 MiB [default: 10 MiB]
    #[arg(short = 'm', value_name = "BYTES")]
    memory: Option<String>,
    #[command(flatten)]
    places: Places,
    /// Pool, file with the script ('-': standard input), and arguments of the script
    #[arg(value_name = "POOL SCRIPT ARGUMENT")]
    words: Vec<OsString>,
}

/// Runs `zfs program`.
pub fn run(call: &Call, args: &ProgramArgs) -> Result<u8, Failure> {
    let [pool, script, arguments @ ..] = args.words.as_slice() else {
        return Err(ProgramArgs::misused("invalid number of arguments"));
    };
    let pool = pool.to_string_lossy().into_owned();
    let limit = |given: &Option<String>, default| given.as_deref().map_or(Ok(default), number);
    let program = LuaProgram {
        instruction_limit: limit(&args.instructions, DEFAULT_INSTRUCTIONS)?,
        memory_limit_bytes: limit(&args.memory, DEFAULT_MEMORY_BYTES)?,
        changes: !args.read_only,
        script: Bytes(read(call, script)?),
        arguments: arguments.iter().map(|word| Bytes(word.as_bytes().to_vec())).collect(),
    };
    if pool.contains(['/', '@', '#']) {
        return Err(Failure::failed(format!("cannot open pool '{pool}'")));
    }
    let outcome = target::with(call, &args.places, &pool, |target| {
        target.attempt(Action::Program(program))?.map_err(|refusal| refused(FAILED, refusal))
    })?;
    match outcome {
        Outcome::Program(end) => show(call, *end, args.json),
        other => Err(Failure::failed(format!("{FAILED}: unexpected answer {other:?}"))),
    }
}

/// A number in decimal, octal or hexadecimal form (`strtoull` with base 0).
fn number(text: &str) -> Result<u64, Failure> {
    let parsed = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    parsed.map_err(|_| ProgramArgs::misused(&format!("invalid argument '{text}': expected integer")))
}

/// Reads the script.
fn read(call: &Call, script: &OsString) -> Result<Vec<u8>, Failure> {
    let name = script.to_string_lossy();
    let name = if name == "-" { "standard input".into() } else { name };
    let failed = |error: std::io::Error| Failure::failed(format!("cannot open '{name}': {error}"));
    let mut text = Vec::new();
    let most = MAX_SCRIPT_BYTES as u64 + 1;
    match (script == "-", call.process()) {
        (true, Some(_)) => text = call.ask(Input::Bytes(most as u32)).unwrap_or_default(),
        (true, None) => drop(std::io::stdin().take(most).read_to_end(&mut text).map_err(failed)?),
        (false, _) => {
            let file = std::fs::File::open(call.path(script)).map_err(failed)?;
            file.take(most).read_to_end(&mut text).map_err(failed)?;
        }
    }
    match text.len() > MAX_SCRIPT_BYTES {
        true => Err(Failure::failed(format!("cannot read '{name}': it is longer than {MAX_SCRIPT_BYTES} bytes"))),
        false => Ok(text),
    }
}

/// Prints how a program ended.
fn show(call: &Call, end: ProgramEnd, is_json: bool) -> Result<u8, Failure> {
    match end {
        ProgramEnd::Failed(failure) => return Err(Failure::failed(message(&failure))),
        ProgramEnd::Returned(value) if is_json => {
            let pairs = value.into_iter().map(|value| (RETURN.to_owned(), json(&value)));
            call.write(format!("{}\n", ascii(&Value::Object(pairs.collect()).to_string())).into_bytes());
        }
        ProgramEnd::Returned(None) => {
            call.write(b"Channel program fully executed and did not produce output.\n".to_vec());
        }
        ProgramEnd::Returned(Some(value)) => {
            let mut text = b"Channel program fully executed and produced output:\n".to_vec();
            dump(&RETURN.into(), &value, INDENT, &mut text);
            call.write(text);
        }
    }
    Ok(0)
}

fn message(failure: &ProgramFailure) -> String {
    let why = match (&failure.message, failure.kind) {
        (Some(message), _) => String::from_utf8_lossy(&message.0).into_owned(),
        (None, ProgramFailureKind::Invalid) => "Invalid instruction or memory limit.".into(),
        (None, ProgramFailureKind::TooLarge) => "Return value too large.".into(),
        (None, ProgramFailureKind::Memory) => "Memory limit exhausted.".into(),
        (None, ProgramFailureKind::TimedOut) => "Timed out.".into(),
        (None, ProgramFailureKind::Canceled) => "Channel program was canceled.".into(),
        (None, ProgramFailureKind::Script) => "the script failed without a message".into(),
    };
    let count = failure.instructions.map(|count| format!("\n{count} Lua instructions")).unwrap_or_default();
    format!("{FAILED}:\n{why}{count}")
}

/// Appends a pair as text.
fn dump(key: &Bytes, value: &ProgramValue, indent: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + indent, b' ');
    out.extend_from_slice(&key.0);
    match value {
        ProgramValue::Nil => {}
        ProgramValue::Boolean(is) => out.extend_from_slice(format!(": {is}").as_bytes()),
        ProgramValue::Number(number) => out.extend_from_slice(format!(": {number}").as_bytes()),
        ProgramValue::Text(text) => {
            out.extend_from_slice(b": '");
            out.extend_from_slice(&text.0);
            out.push(b'\'');
        }
        ProgramValue::Table(_) => out.push(b':'),
    }
    out.push(b'\n');
    if let ProgramValue::Table(pairs) = value {
        pairs.iter().for_each(|(key, value)| dump(key, value, indent + INDENT, out));
    }
}

/// A value as JSON; `nil` is `true`, as the presence of a key.
fn json(value: &ProgramValue) -> Value {
    let text = |bytes: &Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
    match value {
        ProgramValue::Nil => Value::Bool(true),
        ProgramValue::Boolean(is) => Value::Bool(*is),
        ProgramValue::Number(number) => (*number).into(),
        ProgramValue::Text(bytes) => Value::String(text(bytes)),
        ProgramValue::Table(pairs) => {
            let pairs: Map<String, Value> = pairs.iter().map(|(key, value)| (text(key), json(value))).collect();
            Value::Object(pairs)
        }
    }
}

/// JSON with other characters than those of ASCII escaped; they are in texts alone.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c.is_ascii() {
            true => out.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ProgramValue {
        ProgramValue::Table(vec![
            ("1".into(), ProgramValue::Number(-1)),
            ("a".into(), ProgramValue::Text("é😀".into())),
            ("b".into(), ProgramValue::Table(vec![("c".into(), ProgramValue::Boolean(true))])),
            ("d".into(), ProgramValue::Nil),
        ])
    }

    #[test]
    fn values_are_printed_as_nvlists() {
        let mut out = Vec::new();
        dump(&RETURN.into(), &sample(), INDENT, &mut out);
        let expected =
            concat!("    return:\n        1: -1\n        a: 'é😀'\n", "        b:\n            c: true\n        d\n",);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!(ascii(&json(&sample()).to_string()), r#"{"1":-1,"a":"\u00e9\ud83d\ude00","b":{"c":true},"d":true}"#);
    }

    #[test]
    fn failures_have_the_messages_of_openzfs() {
        let of = |kind, text: Option<&str>, instructions| {
            message(&ProgramFailure { kind, message: text.map(Bytes::from), instructions })
        };
        let limits = of(ProgramFailureKind::Invalid, None, None);
        assert_eq!(limits, "Channel program execution failed:\nInvalid instruction or memory limit.");
        let timed_out = of(ProgramFailureKind::TimedOut, Some("Channel program timed out."), Some(1100));
        let expected = "Channel program execution failed:\nChannel program timed out.\n1100 Lua instructions";
        assert_eq!(timed_out, expected);
    }

    #[test]
    fn limits_are_numbers_as_in_c() {
        for (text, value) in [("10", 10), ("0x10", 16), ("010", 8), ("0", 0), ("9223372036854775808", 1 << 63)] {
            assert_eq!(number(text).unwrap(), value);
        }
        assert!(number("1k").is_err() && number("").is_err() && number("-1").is_err());
    }
}
