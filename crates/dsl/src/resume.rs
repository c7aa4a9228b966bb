//! The state of an interrupted receive, and the token from which a sender continues the stream (OpenZFS
//! `module/zfs/dsl_dataset.c`, `get_receive_resume_token_impl`).
//!
//! ```text
//!   1-CHECKSUM-LENGTH-HEX    a packed list, compressed by zlib, in hexadecimal; CHECKSUM is the first word of the
//!                            Fletcher-4 of the compressed bytes, LENGTH that of the packed list, both in hexadecimal
//! ```
//!
//! The state is in fields of the dataset that is received into: the new one, or the clone `%recv` below an existing one.

use super::{Dataset, Dir, Dsl};
use crate::sync_tasks::receive::CLONE;
use std::collections::BTreeMap;
use std::fmt::Write;
use weir_codec::checksum::fletcher::fletcher4;
use weir_codec::compress::{ZstdLevel, compress};
use weir_codec::decompress;
use weir_dmu::error::ObjectError;
use weir_dmu::zap::{Value, Zap};
use weir_format::dsl::dataset_field as field;
use weir_format::features::Feature;
use weir_format::{CompressionKind, Endian, NvList, NvValue, ObjectId};
use weir_machine::Request;

/// Version of tokens (`ZFS_SEND_RESUME_TOKEN_VERSION`).
const VERSION: &str = "1";
/// Level of the compression of tokens.
const GZIP: CompressionKind = CompressionKind::Gzip(6);
/// Maximum size of a token's list in bytes.
const MAX_LIST_BYTES: usize = 64 << 10;

/// Names of the lists of snapshots in a token.
const REDACT_SNAPS: &str = "redact_snaps";
const BOOK_REDACT_SNAPS: &str = "book_redact_snaps";

/// The state of an interrupted receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeState {
    /// GUID of the snapshot that the stream is relative to; `None` for a full stream.
    pub from_guid: Option<u64>,
    /// Object of the last block that was written.
    pub object: ObjectId,
    /// Offset of the last block that was written.
    pub offset: u64,
    /// Bytes of the stream that were received.
    pub bytes: u64,
    /// GUID of the snapshot that is sent.
    pub to_guid: u64,
    /// Name of the snapshot that is sent.
    pub to_name: String,
    /// Forms of blocks that the stream has.
    pub forms: StreamForms,
    /// GUIDs of the snapshots that the stream is redacted for; `None` if it is not redacted.
    pub redact_snaps: Option<Vec<u64>>,
    /// GUIDs of the snapshots of the redaction list that the stream is relative to; `None` if its origin is not redacted.
    pub book_redact_snaps: Option<Vec<u64>>,
}

/// Forms of blocks in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamForms {
    /// Larger than 128 KiB (`-L`).
    pub large_blocks: bool,
    /// Embedded in pointers (`-e`).
    pub embedded: bool,
    /// Compressed (`-c`).
    pub compressed: bool,
    /// Encrypted (`-w`).
    pub raw: bool,
}

impl StreamForms {
    /// Names of the forms in a token and in a dataset.
    pub(crate) fn named(&mut self) -> [(&'static str, &'static str, &mut bool); 4] {
        [
            ("largeblockok", field::RESUME_LARGEBLOCK, &mut self.large_blocks),
            ("embedok", field::RESUME_EMBEDOK, &mut self.embedded),
            ("compressok", field::RESUME_COMPRESSOK, &mut self.compressed),
            ("rawok", field::RESUME_RAWOK, &mut self.raw),
        ]
    }
}

impl ResumeState {
    /// From the fields of a dataset; `None` if it has none of an interrupted receive.
    pub fn from_fields(fields: &BTreeMap<String, Value>) -> Option<Self> {
        let word = |name: &str| fields.get(name).and_then(Value::first);
        let mut forms = StreamForms::default();
        for (_, name, is_set) in forms.named() {
            *is_set = fields.contains_key(name);
        }
        Some(ResumeState {
            to_guid: word(field::RESUME_TOGUID)?,
            from_guid: word(field::RESUME_FROMGUID),
            object: ObjectId(word(field::RESUME_OBJECT).unwrap_or(0)),
            offset: word(field::RESUME_OFFSET).unwrap_or(0),
            bytes: word(field::RESUME_BYTES).unwrap_or(0),
            to_name: fields.get(field::RESUME_TONAME).and_then(Value::text).unwrap_or_default(),
            forms,
            redact_snaps: fields.get(Feature::REDACTED_DATASETS.guid).map(|value| value.words.clone()),
            book_redact_snaps: fields.get(field::RESUME_REDACT_BOOKMARK_SNAPS).map(|value| value.words.clone()),
        })
    }

    /// The token.
    pub fn to_token(&self) -> String {
        let mut list = NvList::new();
        if let Some(from) = self.from_guid {
            list.set("fromguid", from);
        }
        list.set("object", self.object.0);
        list.set("offset", self.offset);
        list.set("bytes", self.bytes);
        list.set("toguid", self.to_guid);
        list.set("toname", self.to_name.as_str());
        let mut forms = self.forms;
        for (name, _, is_set) in forms.named() {
            if *is_set {
                list.set(name, NvValue::Boolean);
            }
        }
        for (name, guids) in [(REDACT_SNAPS, &self.redact_snaps), (BOOK_REDACT_SNAPS, &self.book_redact_snaps)] {
            if let Some(guids) = guids {
                list.set(name, NvValue::Uint64Array(guids.clone()));
            }
        }
        let packed = list.encode_native(Endian::Little);
        let mut compressed = vec![0; packed.len()];
        let stored = match compress(GZIP, ZstdLevel::DEFAULT, &packed, &mut compressed) {
            Ok(Some(bytes)) => compressed.get(..bytes).unwrap_or_default(),
            _ => packed.as_slice(),
        };
        let [checksum, ..] = fletcher4(Endian::Little, whole_words(stored));
        let mut token = format!("{VERSION}-{checksum:x}-{:x}-", packed.len());
        for byte in stored {
            // Writing to a string does not fail.
            let _ = write!(token, "{byte:02x}");
        }
        token
    }

    /// Decodes a token.
    ///
    /// # Errors
    /// The reason why the text is no token, in OpenZFS's words.
    pub fn from_token(token: &str) -> Result<Self, String> {
        let corrupt = |why: &str| format!("resume token is corrupt ({why})");
        let mut parts = token.splitn(4, '-');
        let mut next = || parts.next().ok_or_else(|| corrupt("invalid format"));
        let version = next()?;
        let checksum = u64::from_str_radix(next()?, 16).map_err(|_| corrupt("invalid format"))?;
        let length = usize::from_str_radix(next()?, 16).map_err(|_| corrupt("invalid format"))?;
        if version != VERSION {
            return Err(corrupt(&format!("invalid version {version}")));
        }
        let stored = bytes_of_hex(next()?).ok_or_else(|| corrupt("payload is not hex-encoded"))?;
        let [sum, ..] = fletcher4(Endian::Little, whole_words(&stored));
        if sum != checksum {
            return Err(corrupt("incorrect checksum"));
        }
        let packed = match length {
            0..=MAX_LIST_BYTES => decompress(GZIP, &stored, length).ok(),
            _ => None,
        };
        let packed = packed.ok_or_else(|| corrupt("decompression failed"))?;
        let list = NvList::decode(&packed).map_err(|_| corrupt("nvlist_unpack failed"))?;
        let state = Self::from_list(&list);
        state.ok_or_else(|| "resume token is corrupt".to_owned())
    }

    fn from_list(list: &NvList) -> Option<Self> {
        let mut forms = StreamForms::default();
        for (name, _, is_set) in forms.named() {
            *is_set = list.contains(name);
        }
        let guids = |name: &str| list.get_u64_array(name).map(<[u64]>::to_vec);
        Some(ResumeState {
            from_guid: list.get_u64("fromguid").filter(|guid| *guid != 0),
            object: ObjectId(list.get_u64("object")?),
            offset: list.get_u64("offset")?,
            bytes: list.get_u64("bytes")?,
            to_guid: list.get_u64("toguid")?,
            to_name: list.get_str("toname")?.to_owned(),
            forms,
            redact_snaps: guids(REDACT_SNAPS),
            book_redact_snaps: guids(BOOK_REDACT_SNAPS),
        })
    }
}

/// The bytes that are summed: whole words (`fletcher_4_native_varsize`).
fn whole_words(bytes: &[u8]) -> &[u8] {
    bytes.get(..bytes.len() / 4 * 4).unwrap_or_default()
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || text.len() > 2 * MAX_LIST_BYTES {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

/// The state of an interrupted receive into a dataset, and the dataset that has it: the dataset itdsl, or its
/// clone `%recv`.
///
/// # Errors
/// Errors of reading the fields.
pub async fn resume_state(
    dsl: &Dsl,
    rq: &Request,
    dir: &Dir,
    head: &Dataset,
) -> Result<Option<(ResumeState, Dataset)>, ObjectError> {
    if let Some(state) = ResumeState::from_fields(&dsl.dataset_fields(rq, head).await?) {
        // Without blocks there is nothing to continue.
        return Ok((!head.phys.pointer.is_hole()).then(|| (state, head.clone())));
    }
    if dir.phys.children.0 == 0 {
        return Ok(None);
    }
    let children = Zap::open(rq, dsl.mos(), dir.phys.children).await?;
    let found = children.lookup(rq, CLONE.as_bytes(), weir_dmu::zap::Match::Exact).await?;
    let Some(id) = found.and_then(|value| value.first()).map(ObjectId) else { return Ok(None) };
    let object = dsl.mos().object(rq, id).await?;
    let place = dsl.mos().place(id, 0, 0);
    let clone = weir_format::DslDir::decode(object.dnode.bonus(), object.dnode.endian);
    let clone = clone.map_err(|error| ObjectError::decode(place, error))?;
    let clone = dsl.dataset(rq, clone.head_dataset, format!("{}/{CLONE}", dir.name)).await?;
    let state = ResumeState::from_fields(&dsl.dataset_fields(rq, &clone).await?);
    Ok(state.map(|state| (state, clone)))
}

/// Fuzz target: tokens are decoded in memory bounded by their length, and encoded again to the same state.
pub fn token_target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(state) = ResumeState::from_token(text) {
        assert_eq!(ResumeState::from_token(&state.to_token()), Ok(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_hold_the_state() {
        let state = ResumeState {
            from_guid: Some(7),
            object: ObjectId(12),
            offset: 1 << 40,
            bytes: 99,
            to_guid: u64::MAX,
            to_name: "tank/a@s".into(),
            forms: StreamForms { large_blocks: true, compressed: true, ..StreamForms::default() },
            redact_snaps: Some(vec![5, u64::MAX]),
            book_redact_snaps: Some(vec![8]),
        };
        let token = state.to_token();
        assert!(token.starts_with("1-"));
        assert_eq!(ResumeState::from_token(&token), Ok(state.clone()));
        let forms = StreamForms::default();
        let full = ResumeState { from_guid: None, forms, redact_snaps: None, book_redact_snaps: None, ..state };
        assert_eq!(ResumeState::from_token(&full.to_token()), Ok(full));
        let mut wrong = token.clone();
        wrong.replace_range(token.len() - 2.., "zz");
        for (text, why) in [
            ("", "invalid format"),
            ("2-0-0-", "invalid version 2"),
            ("1-5-10-00", "incorrect checksum"),
            ("1-0-ffffffffffff-", "decompression failed"),
            (wrong.as_str(), "payload is not hex-encoded"),
        ] {
            let refused = ResumeState::from_token(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
