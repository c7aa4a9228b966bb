//! Reading one file: GETATTR, LOOKUP, ACCESS, READLINK, READ.

use super::{Context, Failed, READ_MAX_BYTES, Status, attributes, handle_argument, name_argument, post_op};
use crate::reply::Results;
use crate::wire::Decoder;
use bytes::Bytes;
use weir_front::files::{Attributes, File, FileKind, Permissions, ReadData};
use weir_machine::compact;

/// ACCESS: read a file, list a directory.
const ACCESS_READ: u32 = 0x01;
/// ACCESS: look names up in a directory.
const ACCESS_LOOKUP: u32 = 0x02;
/// ACCESS: rewrite data, or rename and remove entries.
const ACCESS_MODIFY: u32 = 0x04;
/// ACCESS: add data or entries.
const ACCESS_EXTEND: u32 = 0x08;
/// ACCESS: remove entries of a directory.
const ACCESS_DELETE: u32 = 0x10;
/// ACCESS: run a file.
const ACCESS_EXECUTE: u32 = 0x20;

/// Converts permissions to ACCESS bits. Modifying entries of a directory needs both write and execute.
fn access_bits(is_directory: bool, permissions: Permissions) -> u32 {
    let Permissions { read, write, execute } = permissions;
    let bit = |has, bit| if has { bit } else { 0 };
    let changes =
        if is_directory { ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE } else { ACCESS_MODIFY | ACCESS_EXTEND };
    bit(read, ACCESS_READ)
        | bit(execute, if is_directory { ACCESS_LOOKUP } else { ACCESS_EXECUTE })
        | bit(write && (execute || !is_directory), changes)
}

pub(super) async fn getattr(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    match file_attributes(context, handle).await {
        Ok(file) => attributes(out.status(Status::Ok), &file),
        Err((status, _)) => drop(out.status(status)),
    }
    Some(())
}

/// Attributes of a handle's file.
pub(super) async fn file_attributes(context: &Context<'_>, handle: &[u8]) -> Result<Attributes, Failed> {
    let id = context.id(handle)?;
    context.files.attributes(context.rq, &context.caller, id).await.map_err(|failure| context.failed(failure))
}

pub(super) async fn lookup(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let name = name_argument(&mut input)?;
    match find(context, handle, name).await {
        Ok((file, dir)) => {
            let out = out.status(Status::Ok);
            out.opaque(&context.handles.make(file.id));
            post_op(out, Some(&file.attributes));
            post_op(out, Some(&dir));
        }
        Err((status, dir)) => post_op(out.status(status), dir.as_ref()),
    }
    Some(())
}

async fn find(context: &Context<'_>, handle: &[u8], name: &[u8]) -> Result<(File, Attributes), Failed> {
    let id = context.id(handle)?;
    context.files.lookup(context.rq, &context.caller, id, name).await.map_err(|failure| context.failed(failure))
}

pub(super) async fn access(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let wanted = input.u32()?;
    let found = async {
        let id = context.id(handle)?;
        context.files.access(context.rq, &context.caller, id).await.map_err(|failure| context.failed(failure))
    };
    match found.await {
        Ok((file, permissions)) => {
            let bits = access_bits(file.kind == FileKind::Directory, permissions);
            let out = out.status(Status::Ok);
            post_op(out, Some(&file));
            out.u32(bits & wanted);
        }
        Err((status, file)) => post_op(out.status(status), file.as_ref()),
    }
    Some(())
}

pub(super) async fn readlink(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let found = async {
        let id = context.id(handle)?;
        context.files.read_link(context.rq, &context.caller, id).await.map_err(|failure| context.failed(failure))
    };
    match found.await {
        Ok((target, file)) => {
            let out = out.status(Status::Ok);
            post_op(out, Some(&file));
            out.opaque(&target);
        }
        Err((status, file)) => post_op(out.status(status), file.as_ref()),
    }
    Some(())
}

pub(super) async fn read(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let handle = handle_argument(&mut input)?;
    let offset = input.u64()?;
    let len = input.u32()?.min(READ_MAX_BYTES) as usize;
    let found = match context.id(handle) {
        Ok(id) => context.files.read(context.rq, &context.caller, id, offset, len).await.map_err(|f| context.failed(f)),
        Err(status) => Err(status.into()),
    };
    match found {
        Ok(ReadData { file, pieces, at_end }) => {
            let count: usize = pieces.iter().map(Bytes::len).sum();
            let head = out.status(Status::Ok);
            post_op(head, Some(&file));
            head.u32(count as u32).bool(at_end).u32(count as u32);
            // The client may be slow to read the reply; copy short pieces so that they do not pin their cached
            // block.
            let block_bytes = file.block_bytes as usize;
            out.set_payload(pieces.into_iter().map(|piece| compact(piece, block_bytes)).collect(), count);
        }
        Err((status, file)) => post_op(out.status(status), file.as_ref()),
    }
    Some(())
}
