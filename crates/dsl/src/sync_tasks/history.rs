//! Pool history (OpenZFS `module/zfs/spa_history.c`): a ring of packed nvlists in an object of the MOS, to which each
//! operation appends a record.
//!
//! ```text
//!   0 ─ the pool's creation, permanent ┬─ ring ─────────────────────────────┐
//!                                      └ begin … end: logical offsets, which only grow
//! ```

use super::{DslError, DslSyncContext};
use weir_dmu::error::ObjectError;
use weir_dmu::live::NewObject;
use weir_format::dsl::pool;
use weir_format::records::HistoryHeader;
use weir_format::{Encoder, Endian, NvList, ObjectId, ObjectType};

/// Bytes of a block of the history object.
const BLOCK_BYTES: u32 = 128 << 10;
/// Bytes of a record's length field.
const LENGTH_BYTES: u64 = 8;

fn encode(header: &HistoryHeader) -> Vec<u8> {
    let mut e = Encoder::new(Endian::Little);
    e.words(&[header.create_len, header.size_bytes, header.begin, header.end, header.lost]);
    e.finish()
}

/// Creates the history object; part of the creation of a pool. The ring has a thousandth of the pool's size.
pub async fn create_history(cx: &mut DslSyncContext<'_>, pool_bytes: u64) -> Result<ObjectId, DslError> {
    let size_bytes = (pool_bytes / 1000).clamp(128 << 10, 1 << 30);
    let bonus = encode(&HistoryHeader { size_bytes, ..HistoryHeader::default() });
    let new = NewObject::new(ObjectType::SPA_HISTORY, BLOCK_BYTES).bonus(ObjectType::SPA_HISTORY_OFFSETS, bonus);
    let id = cx.mos.changes().create(cx.rq, cx.tx, &new).await?;
    cx.insert_word(super::DIRECTORY, pool::HISTORY, id.0).await?;
    Ok(id)
}

/// Appends a record with the host's name; it overwrites the oldest records if necessary. Does nothing in a pool
/// without history. If the history is corrupt, the record is lost and a warning is logged, because the operation is
/// complete (`spa_history_log_sync`).
///
/// # Errors
/// Errors other than of the history's own contents.
pub async fn append_history(cx: &mut DslSyncContext<'_>, record: NvList) -> Result<(), DslError> {
    match enter_history(cx, record).await {
        Err(DslError::Object(error)) => {
            tracing::warn!(pool = cx.pool.name.as_str(), %error, "cannot append to the pool's history");
            Ok(())
        }
        other => other,
    }
}

async fn enter_history(cx: &mut DslSyncContext<'_>, mut record: NvList) -> Result<(), DslError> {
    let Some(id) = cx.pool_object(pool::HISTORY).await? else { return Ok(()) };
    record.set("history hostname", cx.pool.host.as_str());
    let object = cx.mos.object(cx.rq, id).await?;
    let header = HistoryHeader::decode(object.dnode.bonus(), object.dnode.endian);
    let mut header = header.map_err(|e| ObjectError::decode(cx.mos.place(id, 0, 0), e))?;
    let packed = record.encode_native(Endian::Little);
    let mut bytes = (packed.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&packed);
    let room = header.size_bytes.saturating_sub(header.create_len);
    if bytes.len() as u64 >= room {
        return Ok(());
    }
    if header.end.saturating_sub(header.begin) > room {
        let place = cx.mos.place(id, 0, 0);
        return Err(ObjectError::Corrupt { place, why: "the history is longer than its ring" }.into());
    }
    while room.saturating_sub(header.end.saturating_sub(header.begin)) <= bytes.len() as u64 {
        let length = history_length(cx, id, &header).await?;
        header.begin = header.begin.saturating_add(length + LENGTH_BYTES);
        header.lost = header.lost.saturating_add(1);
    }
    write_history(cx, id, &header, &bytes).await?;
    header.end = header.end.saturating_add(bytes.len() as u64);
    if header.create_len == 0 && record.contains("history command") {
        (header.create_len, header.begin) = (header.end, header.end);
    }
    let bonus = encode(&header);
    cx.mos.changes().set_bonus(cx.rq, cx.tx, id, ObjectType::SPA_HISTORY_OFFSETS, &bonus).await?;
    cx.records.push(record);
    Ok(())
}

/// The length of the oldest record.
async fn history_length(cx: &DslSyncContext<'_>, id: ObjectId, header: &HistoryHeader) -> Result<u64, DslError> {
    let object = cx.mos.object(cx.rq, id).await?;
    let wrong = ObjectError::Corrupt { place: cx.mos.place(id, 0, 0), why: "the history's ring is broken" };
    let mut length = [0u8; LENGTH_BYTES as usize];
    for (at, byte) in (header.begin..).zip(length.iter_mut()) {
        let physical = header.physical(at).ok_or_else(|| wrong.clone())?;
        let read = cx.mos.reader().read(cx.rq, &object, physical, 1, header.size_bytes).await?;
        *byte = read.first().copied().unwrap_or(0);
    }
    let length = u64::from_le_bytes(length);
    if length == 0 || length > header.end.saturating_sub(header.begin).min(header.size_bytes) {
        return Err(wrong.into());
    }
    Ok(length)
}

async fn write_history(
    cx: &DslSyncContext<'_>,
    id: ObjectId,
    header: &HistoryHeader,
    bytes: &[u8],
) -> Result<(), DslError> {
    let wrong = ObjectError::Corrupt { place: cx.mos.place(id, 0, 0), why: "the history has no space" };
    let at = header.physical(header.end).ok_or(wrong)?;
    let until_wrap = usize::try_from(header.size_bytes - at).unwrap_or(usize::MAX).min(bytes.len());
    let (first, rest) = bytes.split_at(until_wrap);
    cx.mos.writes().write(cx.rq, cx.tx, id, at, first).await?;
    if !rest.is_empty() {
        cx.mos.writes().write(cx.rq, cx.tx, id, header.create_len, rest).await?;
    }
    Ok(())
}

/// Records an operation on a dataset. `text` has OpenZFS's form; an empty one is stored as a space.
pub(super) async fn log(
    cx: &mut DslSyncContext<'_>,
    dataset: &str,
    id: ObjectId,
    operation: &str,
    text: &str,
) -> Result<(), DslError> {
    let mut record = NvList::new();
    record.set("dsname", dataset);
    record.set("dsid", id.0);
    record.set("history internal str", if text.is_empty() { " " } else { text });
    record.set("internal_name", operation);
    record.set("history txg", cx.txg().0);
    record.set("history time", cx.now_s);
    append_history(cx, record).await
}

/// Records an operation on the pool itself. `text` has OpenZFS's form.
///
/// # Errors
/// As [`append_history`].
pub async fn log_pool(cx: &mut DslSyncContext<'_>, operation: &str, text: &str) -> Result<(), DslError> {
    let mut record = NvList::new();
    record.set("history internal str", text);
    record.set("internal_name", operation);
    record.set("history txg", cx.txg().0);
    record.set("history time", cx.now_s);
    append_history(cx, record).await
}

/// Name that OpenZFS records on Linux as the zone of a command (`spa_history_log_nvl`).
pub const ZONE: &str = "linux";

/// Records a user's command, for `zpool history`.
pub async fn log_command(cx: &mut DslSyncContext<'_>, command: &str, uid: u32) -> Result<(), DslError> {
    let mut record = NvList::new();
    record.set("history command", command);
    record.set("history who", u64::from(uid));
    record.set("history zone", ZONE);
    record.set("history time", cx.now_s);
    append_history(cx, record).await
}
