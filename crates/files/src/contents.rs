//! Reading the contents of files and the targets of symbolic links.

use crate::attributes::FileKind;
use crate::error::FileError;
use crate::file_system::Seek;
use crate::handles::Contents;
use crate::metadata::{Metadata, MetadataScope};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use weir_dmu::Object;
use weir_format::ObjectId;
use weir_machine::Request;

/// Maximum length of a symbolic link's target in bytes.
const LINK_MAX: u64 = 1 << 16;

impl Contents<'_> {
    /// Reads up to `len` bytes of a file at `offset`, limited by the file's end.
    pub async fn read(self, rq: &Request, object: ObjectId, offset: u64, len: usize) -> Result<Bytes, FileError> {
        let (object, metadata) = self.file(rq, object).await?;
        self.files.atimes().note(object.id, &metadata);
        let bytes = self.files.objects().reader().read(rq, &object, offset, len, metadata.size_bytes).await;
        self.require_open_snapshot(object.id)?;
        bytes.map_err(|e| FileError::of(e, &object))
    }

    /// Fails if this is a destroyed snapshot, whose blocks may have been reused.
    fn require_open_snapshot(self, object: ObjectId) -> Result<(), FileError> {
        if self.files.is_snapshot() && self.files.is_closed() { Err(FileError::Stale { object }) } else { Ok(()) }
    }

    /// Like [`Contents::read`](crate::Contents::read), as slices of cached blocks without a copy.
    pub async fn read_segments(
        self,
        rq: &Request,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> Result<SmallVec<[Bytes; 4]>, FileError> {
        let (object, metadata) = self.file(rq, object).await?;
        self.files.atimes().note(object.id, &metadata);
        let segments = self.files.objects().reader().read_segments(rq, &object, offset, len, metadata.size_bytes).await;
        self.require_open_snapshot(object.id)?;
        segments.map_err(|e| FileError::of(e, &object))
    }

    /// Loads an object with contents and its metadata.
    async fn file(self, rq: &Request, id: ObjectId) -> Result<(Arc<Object>, Metadata), FileError> {
        let (object, metadata) = self.files.load(rq, id, MetadataScope::Basics).await?;
        match metadata.kind() {
            FileKind::Directory => Err(FileError::IsDirectory { object: id }),
            _ => Ok((object, metadata)),
        }
    }

    /// Reads a whole file of at most `max_bytes` bytes.
    pub(crate) async fn read_whole(self, rq: &Request, id: ObjectId, max_bytes: u64) -> Result<Bytes, FileError> {
        let (object, metadata) = self.file(rq, id).await?;
        let size_bytes = metadata.size_bytes;
        if size_bytes > max_bytes {
            let why = format!("{size_bytes} bytes exceed the limit of {max_bytes}");
            return Err(FileError::Corrupt { object: id, offset: 0, why });
        }
        let bytes = self.files.objects().reader().read(rq, &object, 0, size_bytes as usize, size_bytes).await;
        bytes.map_err(|e| FileError::of(e, &object))
    }

    /// Next data or hole at or after `offset`; `None` (for `ENXIO`) if there is none or `offset` is at or beyond the
    /// end. Granularity is a block.
    pub async fn seek(self, rq: &Request, object: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, FileError> {
        let (object, metadata) = self.file(rq, object).await?;
        let size_bytes = metadata.size_bytes;
        if offset >= size_bytes {
            return Ok(None);
        }
        let in_blocks = match what {
            Seek::Data => weir_dmu::Seek::Data,
            Seek::Hole => weir_dmu::Seek::Hole,
        };
        let found = self.files.objects().reader().seek(rq, &object, offset, size_bytes, in_blocks).await;
        let found = found.map_err(|e| FileError::of(e, &object))?;
        // The end of a file counts as a hole.
        Ok(found.or((what == Seek::Hole).then_some(size_bytes)))
    }

    /// The target of a symbolic link.
    pub async fn read_link(self, rq: &Request, object: ObjectId) -> Result<Bytes, FileError> {
        let (_, metadata) = self.files.load(rq, object, MetadataScope::All).await?;
        if metadata.kind() != FileKind::Symlink {
            return Err(FileError::NotSymlink { object });
        }
        self.files.atimes().note(object, &metadata);
        match metadata.symlink {
            Some(target) => Ok(target.slice(..(metadata.size_bytes as usize).min(target.len()))),
            None => self.read_whole(rq, object, LINK_MAX).await,
        }
    }
}
