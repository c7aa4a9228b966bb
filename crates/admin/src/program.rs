//! Programs that make many changes in one txg (`zfs program`), and their results, as messages.
//!
//! The process that has the pool open interprets them ([`crate::Host::run_program`]): this crate knows their form only.
//!
//! Scripts and the texts in results are bytes without an encoding. In JSON each byte is one character, U+0000 to U+00FF.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A program, to be run on a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LuaProgram {
    /// Source text of the script.
    pub script: Bytes,
    /// Arguments of the command line after the script.
    pub arguments: Vec<Bytes>,
    /// Maximum number of Lua instructions.
    pub instruction_limit: u64,
    /// Maximum memory of the interpreter in bytes.
    pub memory_limit_bytes: u64,
    /// Whether the program may change the pool (`zfs.sync`).
    pub changes: bool,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramEnd {
    /// The script came to its end, with or without a return value.
    Returned(Option<ProgramValue>),
    /// The script failed. Its changes up to there stay.
    Failed(ProgramFailure),
}

/// Why a program failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramFailure {
    /// Kind of the reason.
    pub kind: ProgramFailureKind,
    /// Message of the interpreter with its stack traceback; `None` if there is none.
    pub message: Option<Bytes>,
    /// Number of instructions that were executed, if their limit ended the program.
    pub instructions: Option<u64>,
}

/// Kind of a program's failure (the error numbers of `zcp_eval`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramFailureKind {
    /// A limit is out of its range, or the script cannot be compiled (EINVAL).
    Invalid,
    /// An error of the script, or a result that cannot be returned (ECHRNG).
    Script,
    /// The limit of instructions or of time (ETIME).
    TimedOut,
    /// The limit of memory (ENOSPC).
    Memory,
    /// The result is too large (ENOMEM).
    TooLarge,
    /// The caller canceled it or went away (EINTR).
    Canceled,
}

/// A value that a program returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramValue {
    /// `nil`.
    Nil,
    /// A boolean.
    Boolean(bool),
    /// A number.
    Number(i64),
    /// A string.
    Text(Bytes),
    /// A table: numeric keys in ascending order, then the others by their text.
    Table(Vec<(Bytes, ProgramValue)>),
}

impl ProgramValue {
    /// Size of the value in an nvlist, about, in bytes: what `-m` limits in OpenZFS.
    pub fn packed_bytes(&self) -> u64 {
        const PAIR_BYTES: u64 = 32;
        match self {
            ProgramValue::Nil | ProgramValue::Boolean(_) | ProgramValue::Number(_) => PAIR_BYTES,
            ProgramValue::Text(text) => PAIR_BYTES + text.0.len() as u64,
            ProgramValue::Table(pairs) => {
                let of_pair = |(key, value): &(Bytes, ProgramValue)| key.0.len() as u64 + value.packed_bytes();
                PAIR_BYTES + pairs.iter().map(of_pair).sum::<u64>()
            }
        }
    }
}

/// Bytes in no encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Bytes(text.as_bytes().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|byte| char::from(*byte)).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
        bytes.map(Bytes).map_err(|_| serde::de::Error::custom("a character above U+00FF stands for no byte"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_their_ends_convert_to_json_and_back() {
        let program = LuaProgram {
            script: Bytes(b"return '\xe9\0'".to_vec()),
            arguments: vec!["a".into()],
            instruction_limit: 10_000_000,
            memory_limit_bytes: 10 << 20,
            changes: true,
        };
        let json = serde_json::to_string(&program).unwrap();
        assert!(json.contains(r#""script":"return 'é\u0000'""#), "{json}");
        assert_eq!(serde_json::from_str::<LuaProgram>(&json).unwrap(), program);
        assert!(serde_json::from_str::<Bytes>("\"\u{100}\"").is_err());
        let table = ProgramValue::Table(vec![("1".into(), ProgramValue::Nil), ("a".into(), ProgramValue::Number(-1))]);
        let failure = ProgramFailure { kind: ProgramFailureKind::TimedOut, message: None, instructions: Some(1100) };
        for end in [ProgramEnd::Returned(None), ProgramEnd::Returned(Some(table)), ProgramEnd::Failed(failure)] {
            let json = serde_json::to_string(&end).unwrap();
            assert_eq!(serde_json::from_str::<ProgramEnd>(&json).unwrap(), end, "{json}");
        }
    }

    #[test]
    fn the_size_of_a_value_grows_with_its_contents() {
        let text = |len| ProgramValue::Text(Bytes(vec![b'a'; len]));
        assert_eq!(text(100).packed_bytes() - text(0).packed_bytes(), 100);
        let table = ProgramValue::Table(vec![("k".into(), text(10)), ("kk".into(), text(20))]);
        assert_eq!(table.packed_bytes(), 33 + 3 * 32);
    }
}
