//! Ranges of objects: `FIRST:LAST[:FLAGS]`, numbers in decimal or after `0x` in hexadecimal, LAST -1 without an end.
//!
//! Flags choose types of objects: `A` all, `d` directories, `f` files, `m` space maps, `z` ZAPs; `-` before a flag leaves its
//! type out.
//!
//! Source: OpenZFS `cmd/zdb/zdb.c` (`parse_object_range`, `match_object_type`).

use weir_format::{ObjectId, ObjectType};

/// A range of objects of some types.
#[derive(Debug, PartialEq, Eq)]
pub struct Range {
    first: u64,
    last: u64,
    types: Types,
}

/// Types of objects that are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Types {
    directories: bool,
    files: bool,
    space_maps: bool,
    zaps: bool,
    others: bool,
}

impl Types {
    fn set(&mut self, flag: char, to: bool) -> Result<(), String> {
        match flag {
            'd' => self.directories = to,
            'f' => self.files = to,
            'm' => self.space_maps = to,
            'z' => self.zaps = to,
            'A' => *self = Types { directories: to, files: to, space_maps: to, zaps: to, others: to },
            other => return Err(format!("Invalid flag '{other}': A, d, f, m and z choose types")),
        }
        Ok(())
    }
}

/// Parses a number: decimal, or hexadecimal after `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Range {
    /// Parses a range.
    ///
    /// # Errors
    /// The reason why it is malformed.
    pub fn parse(word: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("invalid object range '{word}': {why}"));
        let fields: Vec<&str> = word.split(':').collect();
        let (first, last, flags) = match fields.as_slice() {
            [first, last] => (number(first), *last, None),
            [first, last, flags] if !flags.is_empty() => (number(first), *last, Some(*flags)),
            _ => return wrong("FIRST:LAST[:FLAGS] is needed"),
        };
        let last = if last == "-1" { Some(u64::MAX) } else { number(last) };
        let (Some(first), Some(last)) = (first, last) else { return wrong("Invalid characters in object ID") };
        if first > last {
            return wrong("Start object ID may not exceed end object ID");
        }
        let mut types = Types::default();
        if flags.is_none() {
            types.set('A', true)?;
        }
        let mut at = flags.unwrap_or_default().chars();
        while let Some(flag) = at.next() {
            match flag {
                '-' => match at.next() {
                    Some(flag) => {
                        types.set(flag, false).map_err(|why| format!("invalid object range '{word}': {why}"))?
                    }
                    None => return wrong("Invalid trailing negation operator"),
                },
                flag => types.set(flag, true).map_err(|why| format!("invalid object range '{word}': {why}"))?,
            }
        }
        Ok(Range { first, last, types })
    }

    /// Whether an object of this type is in the range.
    pub fn contains(&self, id: ObjectId, kind: ObjectType) -> bool {
        let is_chosen = match kind {
            ObjectType::DIRECTORY_CONTENTS => self.types.directories,
            ObjectType::PLAIN_FILE_CONTENTS => self.types.files,
            ObjectType::SPACE_MAP => self.types.space_maps,
            // By name: the ZAPs of old types, as that of properties, have names of their own and count as others.
            kind if kind.name() == "zap" => self.types.zaps,
            _ => self.types.others,
        };
        is_chosen && (self.first..=self.last).contains(&id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_choose_objects_by_number_and_type() {
        let has = |range: &str, id, kind| Range::parse(range).unwrap().contains(ObjectId(id), kind);
        assert!(has("0:-1", 9, ObjectType::DIRECTORY_CONTENTS) && has("0x5:0xa:d", 10, ObjectType::DIRECTORY_CONTENTS));
        assert!(!has("5:9:f", 7, ObjectType::DIRECTORY_CONTENTS) && !has("5:9", 10, ObjectType::DIRECTORY_CONTENTS));
        assert!(has("0:9:A-f", 7, ObjectType::SPACE_MAP) && !has("0:9:A-m", 7, ObjectType::SPACE_MAP));
        let zap = ObjectType(0xc4);
        assert!(has("0:9:z", 7, zap) && !has("0:9:A-z", 7, zap));
        assert!(!has("0:9:z", 7, ObjectType::DSL_PROPS) && has("0:9:A-z", 7, ObjectType::DSL_PROPS));
        for wrong in [
            ":", "::", ":::", ":0", "0:", "0:1:", "0:1::", "0::f", "a:1", "0:1a", "1:0", "0:1:A-", "0:1:f:f", "0:1:x",
            "0:1:A-x",
        ] {
            assert!(Range::parse(wrong).is_err(), "{wrong}");
        }
    }
}
