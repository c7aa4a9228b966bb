//! The meta object set: the pool's own objects, found by name in its directory (object 1).

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::{ErrorLocation, Object, ObjectError, ObjectSet, zap};
use weir_format::dsl::pool as names;
use weir_format::{Cursor, NvList, ObjectId};
use weir_machine::Request;

/// Maximum size of an object that is read as a whole: lists of space maps, configurations, space maps.
const MAX_WHOLE_BYTES: u64 = 1 << 30;
/// Maximum number of entries of a small ZAP.
pub const MAX_ENTRIES: usize = 1 << 22;

/// The meta object set.
#[derive(Clone)]
pub struct Mos {
    /// The object set.
    pub set: Arc<ObjectSet>,
}

impl Mos {
    /// Returns the object with this name in the directory.
    pub async fn named(&self, rq: &Request, name: &str) -> Result<Option<ObjectId>, ObjectError> {
        let found = zap::lookup_word(rq, &self.set, ObjectId(names::DIRECTORY_OBJECT), name).await?;
        Ok(found.filter(|n| *n != 0).map(ObjectId))
    }

    /// Returns the value of `name` in the directory as bytes.
    pub async fn named_bytes(&self, rq: &Request, name: &str) -> Result<Option<Vec<u8>>, ObjectError> {
        Ok(zap::lookup(rq, &self.set, ObjectId(names::DIRECTORY_OBJECT), name).await?.and_then(|v| v.bytes()))
    }

    /// Returns the 64-bit words of `name` in the directory.
    pub async fn named_words(&self, rq: &Request, name: &str) -> Result<Option<Vec<u64>>, ObjectError> {
        Ok(zap::lookup(rq, &self.set, ObjectId(names::DIRECTORY_OBJECT), name).await?.map(|v| v.words))
    }

    /// Returns a ZAP's names with their first integers.
    pub async fn numbers(&self, rq: &Request, id: ObjectId) -> Result<BTreeMap<String, u64>, ObjectError> {
        let all = zap::Zap::open(rq, &self.set, id).await?.all(rq, MAX_ENTRIES).await?;
        Ok(all.into_iter().map(|e| (e.key.text(), e.value.first().unwrap_or(0))).collect())
    }

    /// Returns the object's first `len` bytes.
    pub async fn bytes(&self, rq: &Request, object: &Arc<Object>, len: u64) -> Result<Bytes, ObjectError> {
        let place = ErrorLocation { objset: self.set.id(), object: object.id, level: 0, block: 0 };
        if len > MAX_WHOLE_BYTES {
            return Err(ObjectError::Corrupt { place, why: "longer than an object of its kind can be" });
        }
        let mut out = Vec::new();
        while (out.len() as u64) < len {
            let at = out.len() as u64;
            let part = self.set.reader().read(rq, object, at, (len - at).min(1 << 20) as usize, len).await?;
            if part.is_empty() {
                break;
            }
            if out.is_empty() && part.len() as u64 == len {
                return Ok(part);
            }
            out.extend_from_slice(&part);
        }
        Ok(out.into())
    }

    /// Returns an array of 64-bit integers. Each block has its own byte order in a pool that has been on machines of
    /// both.
    pub async fn words(&self, rq: &Request, id: ObjectId, count: u64) -> Result<Vec<u64>, ObjectError> {
        let object = self.set.object(rq, id).await?;
        let count = count.min(object.span_bytes() / 8).min(MAX_WHOLE_BYTES / 8) as usize;
        let mut out = Vec::new();
        for block in 0.. {
            if out.len() >= count {
                break;
            }
            let start = out.len();
            if let Some(pointer) = self.set.pointers().at(rq, &object, 0, block).await?
                && let Some(bytes) = self.set.reader().read_block(rq, &object, block).await?
            {
                let mut c = Cursor::new(&bytes, pointer.endian(), "array");
                out.extend(std::iter::from_fn(|| c.u64().ok()));
            }
            // A hole is a block of zeros.
            out.resize(start + (object.block_bytes() / 8).max(1) as usize, 0);
        }
        out.truncate(count);
        Ok(out)
    }

    /// Reads a packed nvlist; the bonus buffer has its length.
    pub async fn list(&self, rq: &Request, id: ObjectId) -> Result<NvList, ObjectError> {
        let object = self.set.object(rq, id).await?;
        let place = ErrorLocation { objset: self.set.id(), object: id, level: 0, block: 0 };
        let decode = |error| ObjectError::Decode { place, error };
        let len = Cursor::new(object.dnode.bonus(), object.dnode.endian, "packed nvlist").u64().map_err(decode)?;
        let bytes = self.bytes(rq, &object, len).await?;
        NvList::decode(&bytes).map_err(decode)
    }
}
