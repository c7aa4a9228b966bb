//! Space usage of a file system.

use crate::attributes::Attributes;
use crate::error::FileError;
use crate::file_system::Usage;
use crate::handles::Quotas;
use weir_dmu::live::SpaceUsage;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::ObjectId;
use weir_format::znode::{FileFlags, master};
use weir_machine::Request;

/// Object numbers have 48 bits.
const OBJECTS_MAX: u64 = 1 << 48;
/// Space that must be available for a reservation, in percent of its length.
const RESERVE_PERCENT: u128 = 110;

impl Quotas<'_> {
    /// Space usage for `statvfs` of a file or directory: that of the file system; below a directory with an inherited
    /// project, the limits of that project, if any (`zfs_statfs_project`).
    ///
    /// # Errors
    /// If the object or the project's limits cannot be read.
    pub async fn usage(self, rq: &Request, object: ObjectId) -> Result<Usage, FileError> {
        let mut usage = self.whole_usage();
        let Attributes { flags, project, .. } = self.files.attrs().get(rq, object).await?;
        let heir = project.filter(|project| *project != 0 && flags.has(FileFlags::PROJINHERIT));
        let Some(project) = heir.filter(|_| self.files.objects().accounting().counts_projects()) else {
            return Ok(usage);
        };
        for what in QuotaKind::ALL {
            let failed = |e| FileError::at(e, ObjectId(master::OBJECT), 0);
            let limit = self
                .files
                .objects()
                .accounting()
                .limit_of(rq, QuotaPrincipal::Project, what, project)
                .await
                .map_err(failed)?;
            let Some(limit) = limit else { continue };
            let used = self
                .files
                .objects()
                .accounting()
                .used_by(rq, QuotaPrincipal::Project, what, project)
                .await
                .map_err(failed)?;
            let left = limit.saturating_sub(used);
            match what {
                QuotaKind::Bytes => (usage.referenced_bytes, usage.available_bytes) = (limit - left, left),
                QuotaKind::Objects => (usage.objects_used, usage.objects_available) = (limit - left, left),
            }
        }
        Ok(usage)
    }

    /// Checks that later writes of this many bytes fit into the space that is available, with a tenth more for the metadata
    /// (`zpl_fallocate_common`, `zfs_fallocate_reserve_percent`).
    ///
    /// # Errors
    /// [`FileError::NoSpace`]; errors of [`usage`](Self::usage).
    pub(crate) async fn check_reserve(self, rq: &Request, object: ObjectId, bytes: u64) -> Result<(), FileError> {
        let available_bytes = self.usage(rq, object).await?.available_bytes;
        let fits = u128::from(bytes) * RESERVE_PERCENT <= u128::from(available_bytes) * 100;
        if fits { Ok(()) } else { Err(FileError::NoSpace) }
    }

    fn whole_usage(self) -> Usage {
        let identity = self.files.identity();
        let at_opening =
            SpaceUsage { referenced_bytes: identity.referenced_bytes, available_bytes: identity.available_bytes };
        let SpaceUsage { referenced_bytes, available_bytes } = self.files.objects().usage().unwrap_or(at_opening);
        let objects_used = self.files.objects().pointer().fill();
        Usage {
            referenced_bytes,
            available_bytes,
            objects_used,
            // A dnode occupies at least 512 bytes.
            objects_available: OBJECTS_MAX.saturating_sub(objects_used).min(available_bytes >> 9),
        }
    }
}
