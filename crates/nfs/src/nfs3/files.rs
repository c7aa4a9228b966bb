//! Reading one file: GETATTR, LOOKUP, ACCESS, READLINK, READ.

use super::{
    Context, Failed, READ_MAX_BYTES, ResolvedFile, Status, attributes, handle_argument, name_argument, post_op,
};
use crate::reply::Results;
use crate::wire::Decoder;
use bytes::Bytes;
use smallvec::SmallVec;
use weir_files::FileKind;
use weir_files::permission::{EXECUTE, READ, WRITE};
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

struct ReadResult {
    file: ResolvedFile,
    pieces: SmallVec<[Bytes; 4]>,
    count: u32,
    eof: bool,
}

/// Converts granted permissions to ACCESS bits. Modifying entries of a directory needs both write and execute.
fn access_bits(is_directory: bool, granted: u32) -> u32 {
    let has = |bits| granted & bits == bits;
    let bit = |has, bit| if has { bit } else { 0 };
    let changes =
        if is_directory { ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE } else { ACCESS_MODIFY | ACCESS_EXTEND };
    bit(has(READ), ACCESS_READ)
        | bit(has(EXECUTE), if is_directory { ACCESS_LOOKUP } else { ACCESS_EXECUTE })
        | bit(has(if is_directory { WRITE | EXECUTE } else { WRITE }), changes)
}

impl Context<'_> {
    pub(super) async fn getattr(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        match self.resolve(handle).await {
            Ok(found) => attributes(out.status(Status::Ok), &found),
            Err(status) => drop(out.status(status)),
        }
        Some(())
    }

    pub(super) async fn lookup(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        match self.find(handle, name).await {
            Ok((dir, found, handle)) => {
                let out = out.status(Status::Ok);
                out.opaque(&handle);
                post_op(out, Some(&found));
                post_op(out, Some(&dir));
            }
            Err((status, dir)) => post_op(out.status(status), dir.as_ref()),
        }
        Some(())
    }

    async fn find(
        &self,
        handle: &[u8],
        name: &[u8],
    ) -> Result<(ResolvedFile, ResolvedFile, [u8; crate::handle::HANDLE_BYTES]), Failed> {
        let dir = self.directory(handle, EXECUTE).await?;
        let failed = |status| (status, Some(dir.clone()));
        if name.is_empty() {
            return Err(failed(Status::NoEnt));
        }
        let node = self.tree.lookup(self.rq, dir.node, name).await.map_err(|e| failed(self.report(&e)))?;
        let found = self.at(node).await.map_err(failed)?;
        let handle = self.handle(node, found.attributes.generation).ok_or(failed(Status::Stale))?;
        Ok((dir, found, handle))
    }

    pub(super) async fn access(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let wanted = input.u32()?;
        let result = async {
            let found = self.resolve(handle).await.map_err(|status| (status, None))?;
            let granted = self.granted(&found).await.map_err(|status| (status, Some(found.clone())))?;
            // Write permission is not reported on a read-only file system or to a read-only client.
            let granted = if self.require_writable(&found).await.is_ok() { granted } else { granted & !WRITE };
            Ok::<_, Failed>((found, granted))
        };
        match result.await {
            Ok((found, granted)) => {
                let bits = access_bits(found.attributes.kind == FileKind::Directory, granted);
                let out = out.status(Status::Ok);
                post_op(out, Some(&found));
                out.u32(bits & wanted);
            }
            Err((status, found)) => post_op(out.status(status), found.as_ref()),
        }
        Some(())
    }

    pub(super) async fn readlink(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let result = async {
            let found = self.resolve(handle).await.map_err(|status| (status, None))?;
            if found.attributes.kind != FileKind::Symlink {
                return Err((Status::Inval, Some(found)));
            }
            match self.tree.read_link(self.rq, found.node).await {
                Ok(target) => Ok((found, target)),
                Err(error) => Err((self.report(&error), Some(found))),
            }
        };
        match result.await {
            Ok((found, target)) => {
                let out = out.status(Status::Ok);
                post_op(out, Some(&found));
                out.opaque(&target);
            }
            Err((status, found)) => post_op(out.status(status), found.as_ref()),
        }
        Some(())
    }

    pub(super) async fn read(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let offset = input.u64()?;
        let count = input.u32()?;
        match self.bytes(handle, offset, count).await {
            Ok(ReadResult { file, pieces, count, eof }) => {
                let out_head = out.status(Status::Ok);
                post_op(out_head, Some(&file));
                out_head.u32(count).bool(eof).u32(count);
                out.set_payload(pieces, count as usize);
            }
            Err((status, file)) => post_op(out.status(status), file.as_ref()),
        }
        Some(())
    }

    async fn bytes(&self, handle: &[u8], offset: u64, count: u32) -> Result<ReadResult, Failed> {
        let file = self.resolve(handle).await.map_err(|status| (status, None))?;
        match file.attributes.kind {
            FileKind::Regular | FileKind::Other => {}
            FileKind::Directory => return Err((Status::IsDir, Some(file))),
            _ => return Err((Status::Inval, Some(file))),
        }
        // Clients read pages of the programs they execute, so execute permission implies read. The owner may always
        // read: the client checked at `open`, and POSIX keeps an open file readable after its mode has changed.
        if self.caller.uid != file.attributes.uid {
            self.require(&file, READ | EXECUTE).await.map_err(|status| (status, Some(file.clone())))?;
        }
        let wanted = count.min(READ_MAX_BYTES);
        let left = file.attributes.size_bytes.saturating_sub(offset);
        if left == 0 || wanted == 0 {
            return Ok(ReadResult { file, pieces: SmallVec::new(), count: 0, eof: left == 0 });
        }
        match self.tree.read(self.rq, file.node, offset, wanted as usize).await {
            Ok(pieces) => {
                let count = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
                // The client may be slow to read the reply; copy short pieces so that they do not pin their cached
                // block.
                let block_bytes = file.attributes.block_bytes as usize;
                let pieces = pieces.into_iter().map(|piece| compact(piece, block_bytes)).collect();
                let eof = u64::from(count) >= left;
                Ok(ReadResult { file, pieces, count, eof })
            }
            Err(error) => Err((self.report(&error), Some(file))),
        }
    }
}
