//! Properties of a file system: FSSTAT, FSINFO, PATHCONF.

use super::{Context, Failed, LIST_MAX_BYTES, READ_MAX_BYTES, Status, WRITE_MAX_BYTES, handle_argument, post_op};
use crate::reply::Results;
use crate::wire::Decoder;

/// Recommended alignment of transfers in bytes.
const TRANSFER_MULTIPLE_BYTES: u32 = 4096;
/// Preferred size of a directory listing in bytes.
const PREFERRED_LIST_BYTES: u32 = 64 << 10;
/// FSINFO property bits: hard links, symbolic links, and the same PATHCONF for all files.
const PROPERTIES: u32 = 0x1 | 0x2 | 0x8;
/// FSINFO property bit: times can be set.
const CAN_SET_TIME: u32 = 0x10;
/// Maximum number of hard links of a file.
const LINK_MAX: u32 = u32::MAX;

const _: () = assert!(
    READ_MAX_BYTES.is_multiple_of(TRANSFER_MULTIPLE_BYTES) && WRITE_MAX_BYTES.is_multiple_of(TRANSFER_MULTIPLE_BYTES)
);
const _: () = assert!(PREFERRED_LIST_BYTES <= LIST_MAX_BYTES);

impl Context<'_> {
    pub(super) async fn fsstat(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let result = async {
            let found = self.resolve(handle).await.map_err(|status| (status, None))?;
            match self.tree.usage(self.rq, found.node).await {
                Ok(usage) => Ok((found, usage)),
                Err(error) => Err((self.report(&error), Some(found))),
            }
        };
        match result.await {
            Ok((found, usage)) => {
                let out = out.status(Status::Ok);
                post_op(out, Some(&found));
                let total = usage.referenced_bytes.saturating_add(usage.available_bytes);
                out.u64(total).u64(usage.available_bytes).u64(usage.available_bytes);
                let files = usage.objects_used.saturating_add(usage.objects_available);
                out.u64(files).u64(usage.objects_available).u64(usage.objects_available);
                // `invarsec`: the values may change at any time.
                out.u32(0);
            }
            Err((status, found)) => post_op(out.status(status), found.as_ref()),
        }
        Some(())
    }

    pub(super) async fn fsinfo(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        match self.resolve(handle).await {
            Ok(found) => {
                let setting = if self.require_writable(&found).await.is_ok() { CAN_SET_TIME } else { 0 };
                let out = out.status(Status::Ok);
                post_op(out, Some(&found));
                out.u32(READ_MAX_BYTES).u32(READ_MAX_BYTES).u32(TRANSFER_MULTIPLE_BYTES);
                out.u32(WRITE_MAX_BYTES).u32(WRITE_MAX_BYTES).u32(TRANSFER_MULTIPLE_BYTES);
                out.u32(PREFERRED_LIST_BYTES);
                out.u64(i64::MAX as u64);
                // `time_delta`: one nanosecond.
                out.u32(0).u32(1);
                out.u32(PROPERTIES | setting);
            }
            Err(status) => post_op(out.status(status), None),
        }
        Some(())
    }

    pub(super) async fn pathconf(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let result = async {
            let found = self.resolve(handle).await.map_err(|status| (status, None))?;
            match self.tree.name_max(self.rq, found.node).await {
                Ok(name_max) => Ok((found, name_max)),
                Err(error) => Err::<_, Failed>((self.report(&error), Some(found))),
            }
        };
        match result.await {
            Ok((found, name_max)) => {
                let out = out.status(Status::Ok);
                post_op(out, Some(&found));
                out.u32(LINK_MAX).u32(u32::try_from(name_max).unwrap_or(u32::MAX));
                // `no_trunc`, `chown_restricted`, `case_insensitive`, `case_preserving`.
                let insensitive = self.tree.is_case_insensitive(self.rq, found.node).await.unwrap_or(false);
                out.bool(true).bool(true).bool(insensitive).bool(true);
            }
            Err((status, found)) => post_op(out.status(status), found.as_ref()),
        }
        Some(())
    }
}
