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

/// Encoded entries of a page.
struct Page {
    entries: Encoder,
    count: usize,
    eof: bool,
}

impl Context<'_> {
    pub(super) async fn readdir(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let cookie = input.u64()?;
        let verifier = input.u64()?;
        let count = input.u32()?.min(LIST_MAX_BYTES) as usize;
        self.list(handle, cookie, verifier, ByteLimits { names: count, total: count }, false, out).await;
        Some(())
    }

    pub(super) async fn readdirplus(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let cookie = input.u64()?;
        let verifier = input.u64()?;
        let names = input.u32()?.min(LIST_MAX_BYTES) as usize;
        let total = input.u32()?.min(LIST_MAX_BYTES) as usize;
        self.list(handle, cookie, verifier, ByteLimits { names, total }, true, out).await;
        Some(())
    }

    async fn list(&self, handle: &[u8], cookie: u64, verifier: u64, limits: ByteLimits, plus: bool, out: &mut Results) {
        match self.pages(handle, cookie, verifier, limits, plus).await {
            Ok((dir, page)) => {
                let out = out.status(Status::Ok);
                post_op(out, Some(&dir));
                out.u64(Handles::pool_of(handle).unwrap_or(0));
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
        mut limits: ByteLimits,
        plus: bool,
    ) -> Result<(Attributes, Page), Failed> {
        let id = self.id(handle)?;
        let mut page = Page { entries: Encoder::default(), count: 0, eof: false };
        let mut first = true;
        loop {
            let listing = self.files.read_dir(self.rq, &self.caller, id, cookie, PAGE_ENTRIES, plus).await;
            let Listing { dir, entries, at_end } = listing.map_err(|failure| self.failed(failure))?;
            if first && cookie != 0 && verifier != id.pool {
                return Err((Status::BadCookie, Some(dir)));
            }
            if first && !limits.take(0, FRAME_BYTES) {
                return Err((Status::TooSmall, Some(dir)));
            }
            first = false;
            for entry in entries {
                if !self.put(&entry, plus, &mut limits, &mut page) {
                    let too_small = page.count == 0;
                    return if too_small { Err((Status::TooSmall, Some(dir))) } else { Ok((dir, page)) };
                }
                cookie = entry.cookie;
            }
            if at_end {
                page.eof = true;
                return Ok((dir, page));
            }
        }
    }

    /// Encodes an entry; false if it does not fit. An entry without its file is sent without attributes and handle, as the
    /// protocol allows; the client looks it up when needed.
    fn put(&self, entry: &Entry, plus: bool, limits: &mut ByteLimits, page: &mut Page) -> bool {
        let name_bytes = 8 + opaque_bytes(entry.name.len()) + 8;
        let mut total = ENTRY_BYTES + opaque_bytes(entry.name.len());
        if plus {
            total += 4 + 4;
            if entry.file.is_some() {
                total += FATTR3_BYTES + opaque_bytes(HANDLE_BYTES);
            }
        }
        if !limits.take(name_bytes, total) {
            return false;
        }
        page.count += 1;
        let out = &mut page.entries;
        out.bool(true).u64(entry.file_number).opaque(&entry.name).u64(entry.cookie);
        if plus {
            post_op(out, entry.file.map(|file| file.attributes).as_ref());
            out.bool(entry.file.is_some());
            if let Some(file) = &entry.file {
                out.opaque(&self.handles.make(file.id));
            }
        }
        true
    }
}
