//! Name-value lists in zdb's text format: one line per scalar, indented by four more blanks per level.

use super::{NvList, NvValue};
use std::fmt;

impl fmt::Display for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_indented(f, 0)
    }
}

impl NvList {
    /// Writes the list, each line after `indent` blanks.
    pub fn write_indented(&self, f: &mut impl fmt::Write, indent: usize) -> fmt::Result {
        for pair in self.pairs() {
            write_pair(f, indent, &pair.name_lossy(), &pair.value)?;
        }
        Ok(())
    }

    /// The list as text, each line after `indent` blanks.
    pub fn to_text(&self, indent: usize) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_indented(&mut out, indent);
        out
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn each<T: fmt::Display>(
    f: &mut impl fmt::Write,
    indent: usize,
    name: &str,
    items: impl IntoIterator<Item = T>,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        writeln!(f, "{:indent$}{name}[{i}]: {item}", "")?;
    }
    Ok(())
}

fn write_pair(f: &mut impl fmt::Write, indent: usize, name: &str, value: &NvValue) -> fmt::Result {
    use NvValue::*;
    let mut one = |v: &dyn fmt::Display| writeln!(f, "{:indent$}{name}: {v}", "");
    match value {
        Boolean => writeln!(f, "{:indent$}{name}", ""),
        BooleanValue(v) => one(v),
        Byte(v) | Uint8(v) => one(v),
        Int8(v) => one(v),
        Int16(v) => one(v),
        Uint16(v) => one(v),
        Int32(v) => one(v),
        Uint32(v) => one(v),
        Int64(v) | HrTime(v) => one(v),
        Uint64(v) => one(v),
        Double(v) => one(&f64::from_bits(*v)),
        String(v) => one(&format_args!("'{}'", text(v))),
        ByteArray(v) | Uint8Array(v) => each(f, indent, name, v),
        BooleanArray(v) => each(f, indent, name, v),
        Int8Array(v) => each(f, indent, name, v),
        Int16Array(v) => each(f, indent, name, v),
        Uint16Array(v) => each(f, indent, name, v),
        Int32Array(v) => each(f, indent, name, v),
        Uint32Array(v) => each(f, indent, name, v),
        Int64Array(v) => each(f, indent, name, v),
        Uint64Array(v) => each(f, indent, name, v),
        StringArray(v) => each(f, indent, name, v.iter().map(|s| format!("'{}'", text(s)))),
        List(v) => {
            writeln!(f, "{:indent$}{name}:", "")?;
            v.write_indented(f, indent + 4)
        }
        ListArray(v) => {
            for (i, list) in v.iter().enumerate() {
                writeln!(f, "{:indent$}{name}[{i}]:", "")?;
                list.write_indented(f, indent + 4)?;
            }
            Ok(())
        }
    }
}
