//! Properties of a file system: FSSTAT, FSINFO, PATHCONF.

use super::{Context, Failed, LIST_MAX_BYTES, READ_MAX_BYTES, Status, WRITE_MAX_BYTES, handle_argument, post_op};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_front::files::{Attributes, FileSystemInfo};

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

pub(super) async fn fsstat(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let found = async {
        let id = context.id(handle)?;
        context.files.usage(context.rq, &context.caller, id).await.map_err(|failure| context.failed(failure))
    };
    match found.await {
        Ok((usage, file)) => {
            let out = out.status(Status::Ok);
            post_op(out, Some(&file));
            out.u64(usage.total_bytes).u64(usage.available_bytes).u64(usage.available_bytes);
            out.u64(usage.total_files).u64(usage.available_files).u64(usage.available_files);
            // `invarsec`: the values may change at any time.
            out.u32(0);
        }
        Err((status, file)) => post_op(out.status(status), file.as_ref()),
    }
    Some(())
}

pub(super) async fn fsinfo(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    match file_system(context, handle).await {
        Ok((info, file)) => {
            let setting = if info.is_writable { CAN_SET_TIME } else { 0 };
            let out = out.status(Status::Ok);
            post_op(out, Some(&file));
            out.u32(READ_MAX_BYTES).u32(READ_MAX_BYTES).u32(TRANSFER_MULTIPLE_BYTES);
            out.u32(WRITE_MAX_BYTES).u32(WRITE_MAX_BYTES).u32(TRANSFER_MULTIPLE_BYTES);
            out.u32(PREFERRED_LIST_BYTES);
            out.u64(i64::MAX as u64);
            // `time_delta`: one nanosecond.
            out.u32(0).u32(1);
            out.u32(PROPERTIES | setting);
        }
        Err((status, file)) => post_op(out.status(status), file.as_ref()),
    }
    Some(())
}

pub(super) async fn pathconf(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    match file_system(context, handle).await {
        Ok((info, file)) => {
            let out = out.status(Status::Ok);
            post_op(out, Some(&file));
            out.u32(LINK_MAX).u32(u32::try_from(info.name_max).unwrap_or(u32::MAX));
            // `no_trunc`, `chown_restricted`, `case_insensitive`, `case_preserving`.
            out.bool(true).bool(true).bool(info.is_case_insensitive).bool(true);
        }
        Err((status, file)) => post_op(out.status(status), file.as_ref()),
    }
    Some(())
}

async fn file_system(context: &Context<'_>, handle: &[u8]) -> Result<(FileSystemInfo, Attributes), Failed> {
    let id = context.id(handle)?;
    context.files.file_system(context.rq, &context.caller, id).await.map_err(|failure| context.failed(failure))
}
