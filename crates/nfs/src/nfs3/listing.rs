//! Directories: READDIR and READDIRPLUS.
//!
//! Size limits are exact: `count` and `maxcount` bound the XDR results, from the optional attributes to the
//! end-of-list words, and `dircount` bounds names and cookies only. A limit too small for one entry returns
//! NFS3ERR_TOOSMALL, never an empty page without end-of-list, on which clients would loop.
//!
//! Cookies are those of the files served: positions in the order of the names' hashes, which do not move when entries are
//! added or removed. So a cookie stays valid indefinitely, but only for the same pool: the verifier is the pool's
//! GUID.

use super::{Context, FATTR3_BYTES, Failed, LIST_MAX_BYTES, Status, handle_argument, post_op};
use crate::handle::{HANDLE_BYTES, Handles};
use crate::reply::Results;
use crate::wire::{Decoder, Encoder, opaque_bytes};
use weir_front::files::{Attributes, Entry, Listing};

/// Number of entries read from the directory per step.
const PAGE_ENTRIES: usize = 64;
/// XDR size in bytes of a page without entries: status, attributes, verifier, "no more entries" and "end".
const FRAME_BYTES: usize = 4 + 4 + FATTR3_BYTES + 8 + 4 + 4;
/// XDR size in bytes of `entry follows`, file number and cookie.
const ENTRY_BYTES: usize = 4 + 8 + 8;

/// Bytes left within the client's limits.
struct ByteLimits {
    names: usize,
    total: usize,
}

impl ByteLimits {
    /// Reserves space for an entry; false if it does not fit.
    fn take(&mut self, names: usize, total: usize) -> bool {
        match (self.names.checked_sub(names), self.total.checked_sub(total)) {
            (Some(names), Some(total)) => {
                *self = ByteLimits { names, total };
                true
            }
            _ => false,
        }
    }
}

/// Where a call continues a listing.
struct Continuation<'a> {
    handle: &'a [u8],
    cookie: u64,
    verifier: u64,
}

impl<'a> Continuation<'a> {
    fn decode(input: &mut Decoder<'a>) -> Option<Self> {
        Some(Continuation { handle: handle_argument(input)?, cookie: input.u64()?, verifier: input.u64()? })
    }
}

/// The encoded entries of a reply, within the client's limits.
struct Page<'a> {
    handles: &'a Handles,
    /// Whether entries have attributes and handles.
    plus: bool,
    limits: ByteLimits,
    entries: Encoder,
    count: usize,
    eof: bool,
}

impl<'a> Page<'a> {
    fn new(handles: &'a Handles, limits: ByteLimits, plus: bool) -> Self {
        Page { handles, plus, limits, entries: Encoder::default(), count: 0, eof: false }
    }

    /// Encodes an entry; false if it does not fit. An entry without its file is sent without attributes and handle, as the
    /// protocol allows; the client looks it up when needed.
    fn put(&mut self, entry: &Entry) -> bool {
        let name_bytes = 8 + opaque_bytes(entry.name.len()) + 8;
        let mut total = ENTRY_BYTES + opaque_bytes(entry.name.len());
        if self.plus {
            total += 4 + 4;
            if entry.file.is_some() {
                total += FATTR3_BYTES + opaque_bytes(HANDLE_BYTES);
            }
        }
        if !self.limits.take(name_bytes, total) {
            return false;
        }
        self.count += 1;
        let out = &mut self.entries;
        out.bool(true).u64(entry.file_number).opaque(&entry.name).u64(entry.cookie);
        if self.plus {
            post_op(out, entry.file.map(|file| file.attributes).as_ref());
            out.bool(entry.file.is_some());
            if let Some(file) = &entry.file {
                out.opaque(&self.handles.make(file.id));
            }
        }
        true
    }
}

pub(super) async fn readdir(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let from = Continuation::decode(&mut input)?;
    let count = input.u32()?.min(LIST_MAX_BYTES) as usize;
    let page = Page::new(context.handles, ByteLimits { names: count, total: count }, false);
    list(context, from, page, out).await;
    Some(())
}

pub(super) async fn readdirplus(context: &Context<'_>, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
    let from = Continuation::decode(&mut input)?;
    let names = input.u32()?.min(LIST_MAX_BYTES) as usize;
    let total = input.u32()?.min(LIST_MAX_BYTES) as usize;
    list(context, from, Page::new(context.handles, ByteLimits { names, total }, true), out).await;
    Some(())
}

async fn list(context: &Context<'_>, from: Continuation<'_>, mut page: Page<'_>, out: &mut Results) {
    match fill(context, &from, &mut page).await {
        Ok(dir) => {
            let out = out.status(Status::Ok);
            post_op(out, Some(&dir));
            out.u64(Handles::pool_of(from.handle).unwrap_or(0));
            out.bytes.extend_from_slice(&page.entries.bytes);
            out.bool(false).bool(page.eof);
        }
        Err((status, dir)) => post_op(out.status(status), dir.as_ref()),
    }
}

/// Fills the page with entries of the directory, whose attributes it returns.
async fn fill(context: &Context<'_>, from: &Continuation<'_>, page: &mut Page<'_>) -> Result<Attributes, Failed> {
    let id = context.id(from.handle)?;
    let mut cookie = from.cookie;
    let mut first = true;
    loop {
        let listing = context.files.read_dir(context.rq, &context.caller, id, cookie, PAGE_ENTRIES, page.plus).await;
        let Listing { dir, entries, at_end } = listing.map_err(|failure| context.failed(failure))?;
        if first && cookie != 0 && from.verifier != id.pool {
            return Err((Status::BadCookie, Some(dir)));
        }
        if first && !page.limits.take(0, FRAME_BYTES) {
            return Err((Status::TooSmall, Some(dir)));
        }
        first = false;
        for entry in entries {
            if !page.put(&entry) {
                return if page.count == 0 { Err((Status::TooSmall, Some(dir))) } else { Ok(dir) };
            }
            cookie = entry.cookie;
        }
        if at_end {
            page.eof = true;
            return Ok(dir);
        }
    }
}
