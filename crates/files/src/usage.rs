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
