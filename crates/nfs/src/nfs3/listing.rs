//! Directories: READDIR and READDIRPLUS.
//!
//! Sizes are honoured to the byte: `count` and `maxcount` bound the results as XDR, from the optional attributes to the
//! end-of-list words, and `dircount` bounds the names and cookies alone. A bound too small for one entry is
//! NFS3ERR_TOOSMALL, never an empty page that is not the end: clients would loop.
//!
//! Cookies are the tree's: places in the order of the names' hashes, which entries that come and go do not move. So a
//! cookie is good for ever, unless it comes from another pool: the verifier is the pool's GUID.

use super::{Context, FATTR_BYTES, Failed, Found, LIST_MAX_BYTES, Status, attributes, handle_argument, post_op};
use crate::handle::HANDLE_BYTES;
use crate::reply::Results;
use crate::wire::{Decoder, Encoder, opaque_bytes};
use futures_util::future::join_all;
use weir_files::FileError;
use weir_files::permission::READ;
use weir_files::tree::TreeEntry;

/// Entries fetched at once.
const PAGE_ENTRIES: usize = 64;
/// Status, attributes, verifier, "no more entries" and "end": what a page takes without an entry.
const FRAME_BYTES: usize = 4 + 4 + FATTR_BYTES + 8 + 4 + 4;
/// `entry follows`, file number and cookie.
const ENTRY_BYTES: usize = 4 + 8 + 8;

/// What is left of the client's bounds.
struct Room {
    names: usize,
    total: usize,
}

impl Room {
    /// Takes an entry if it fits.
    fn take(&mut self, names: usize, total: usize) -> bool {
        match (self.names.checked_sub(names), self.total.checked_sub(total)) {
            (Some(names), Some(total)) => {
                *self = Room { names, total };
                true
            }
            _ => false,
        }
    }
}

/// The entries of a page, encoded.
struct Page {
    entries: Encoder,
    count: usize,
    eof: bool,
}

impl Context<'_> {
    pub(super) async fn readdir(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let (cookie, verifier) = (input.u64()?, input.u64()?);
        let count = input.u32()?.min(LIST_MAX_BYTES) as usize;
        self.list(handle, cookie, verifier, Room { names: count, total: count }, false, out).await;
        Some(())
    }

    pub(super) async fn readdirplus(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let (cookie, verifier) = (input.u64()?, input.u64()?);
        let names = input.u32()?.min(LIST_MAX_BYTES) as usize;
        let total = input.u32()?.min(LIST_MAX_BYTES) as usize;
        self.list(handle, cookie, verifier, Room { names, total }, true, out).await;
        Some(())
    }

    async fn list(&self, handle: &[u8], cookie: u64, verifier: u64, room: Room, plus: bool, out: &mut Results) {
        match self.pages(handle, cookie, verifier, room, plus).await {
            Ok((dir, page)) => {
                let out = out.status(Status::Ok);
                post_op(out, Some(&dir));
                out.u64(self.handles.pool());
                out.bytes.extend_from_slice(&page.entries.bytes);
                out.bool(false).bool(page.eof);
            }
            Err((status, dir)) => post_op(out.status(status), dir.as_ref()),
        }
    }

    async fn pages(
        &self,
        handle: &[u8],
        mut cookie: u64,
        verifier: u64,
        mut room: Room,
        plus: bool,
    ) -> Result<(Found, Page), Failed> {
        let dir = self.directory(handle, READ).await?;
        if cookie != 0 && verifier != self.handles.pool() {
            return Err((Status::BadCookie, Some(dir)));
        }
        if !room.take(0, FRAME_BYTES) {
            return Err((Status::TooSmall, Some(dir)));
        }
        let mut page = Page { entries: Encoder::default(), count: 0, eof: false };
        loop {
            let entries = self.tree.read_dir(self.rq, dir.node, cookie, PAGE_ENTRIES).await;
            let entries = entries.map_err(|e: FileError| (self.report(&e), Some(dir.clone())))?;
            let known = self.known(&dir, &entries, plus).await;
            for (entry, known) in entries.iter().zip(known) {
                if !self.put(&dir, entry, known.as_ref(), plus, &mut room, &mut page) {
                    let too_small = page.count == 0;
                    return if too_small { Err((Status::TooSmall, Some(dir))) } else { Ok((dir, page)) };
                }
                cookie = entry.cookie;
            }
            if entries.len() < PAGE_ENTRIES {
                page.eof = true;
                return Ok((dir, page));
            }
        }
    }

    /// The files of entries, where they are wanted and lie in the same file system. An entry that leads into another one
    /// (or whose file can't be read) goes without attributes and handle, as the protocol allows: the client looks it up
    /// if it cares, and a listing of ten thousand snapshots opens none.
    async fn known(&self, dir: &Found, entries: &[TreeEntry], plus: bool) -> Vec<Option<Found>> {
        join_all(entries.iter().map(|entry| async {
            let here = plus && entry.node.branch == dir.node.branch;
            if here { self.at(entry.node).await.ok() } else { None }
        }))
        .await
    }

    /// Encodes an entry if there is room for it.
    fn put(
        &self,
        dir: &Found,
        entry: &TreeEntry,
        known: Option<&Found>,
        plus: bool,
        room: &mut Room,
        page: &mut Page,
    ) -> bool {
        let name_bytes = 8 + opaque_bytes(entry.name.len()) + 8;
        let mut total = ENTRY_BYTES + opaque_bytes(entry.name.len());
        if plus {
            total += 4 + 4;
            if known.is_some() {
                total += FATTR_BYTES + opaque_bytes(HANDLE_BYTES);
            }
        }
        if !room.take(name_bytes, total) {
            return false;
        }
        page.count += 1;
        let out = &mut page.entries;
        out.bool(true).u64(self.file_number(dir, entry, known)).opaque(&entry.name).u64(entry.cookie);
        if plus {
            let handle = known.and_then(|found| self.handle(found.node, found.attributes.generation));
            out.bool(known.is_some());
            if let Some(found) = known {
                attributes(out, found);
            }
            out.bool(handle.is_some());
            if let Some(handle) = handle {
                out.opaque(&handle);
            }
        }
        true
    }

    /// The number that an entry shows: the object's; for another file system, one beyond all objects.
    fn file_number(&self, dir: &Found, entry: &TreeEntry, known: Option<&Found>) -> u64 {
        if let Some(found) = known {
            return found.attributes.object.0;
        }
        if entry.node == dir.node {
            return dir.attributes.object.0;
        }
        if entry.node.branch == dir.node.branch && entry.node.object != weir_files::tree::Node::ROOT {
            return entry.node.object;
        }
        (1 << 48) | self.tree.member(entry.node).map(|member| member.id).unwrap_or(0)
    }
}
