//! DeleteVolume.
//!
//! A clone depends on a snapshot of its source. Callers destroy the source first if they want: a clone is promoted then, so that the
//! snapshot is its own. A snapshot that callers still have keeps its volume: its handle contains the name of the volume.

use super::Datasets;
use crate::names;
use crate::storage::status_of;
use crate::wire::controller::{DeleteVolumeRequest, DeleteVolumeResponse};
use tonic::Status;
use weir_admin::{Change, Destruction, RefusalKind};

/// Maximum number of clones that are promoted for one call; the next call goes on.
const MAX_PROMOTIONS: u32 = 64;

impl Datasets<'_> {
    /// Destroys a volume with the snapshots of it that are not the plugin's.
    pub async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        let handle = &request.volume_id;
        if handle.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        if !names::is_volume(handle) || !self.0.volumes.is_allowed(handle) {
            return Ok(DeleteVolumeResponse {});
        }
        let _call = self.0.pending.begin(handle)?;
        let Some(found) = self.0.volumes.dataset(handle).await? else { return Ok(DeleteVolumeResponse {}) };
        let refused = |why: &str| Err(Status::failed_precondition(format!("{handle} {why}")));
        if found.mark.is_none() {
            return refused("was not created by this plugin: it is not destroyed");
        }
        let snapshots = self.0.volumes.snapshots_of(handle).await?;
        if snapshots.iter().any(|snapshot| snapshot.mark.is_some() && !snapshot.is_deferred) {
            return refused("has snapshots: delete them first");
        }
        self.promote_clones(handle).await?;
        // The snapshots first, and then the dataset alone: datasets below it are not the plugin's and prevent it.
        for snapshot in self.0.volumes.snapshots_of(handle).await? {
            self.destroy_snapshot(&snapshot.name, false).await?;
        }
        let what = Destruction::Dataset { name: handle.clone(), recursive: false, dependents: false, defer: false };
        match self.0.volumes.try_change(handle, "destroy", Change::Destroy { what }).await? {
            Ok(()) => Ok(DeleteVolumeResponse {}),
            Err(refusal) if refusal.kind == RefusalKind::Missing => Ok(DeleteVolumeResponse {}),
            Err(refusal) => Err(status_of(handle, &refusal)),
        }
    }

    /// Promotes clones until no snapshot of the dataset has one.
    async fn promote_clones(&self, dataset: &str) -> Result<(), Status> {
        for _ in 0..MAX_PROMOTIONS {
            let snapshots = self.0.volumes.snapshots_of(dataset).await?;
            let Some(clone) = snapshots.into_iter().flat_map(|snapshot| snapshot.clones).next() else { return Ok(()) };
            self.0.volumes.change(&clone, "promote", Change::Promote { name: clone.clone() }).await?;
        }
        Err(Status::aborted(format!("{dataset} had more than {MAX_PROMOTIONS} clones; try again")))
    }

    /// Destroys a snapshot, or with `defer` when its last clone goes. One that does not exist is no error.
    pub(super) async fn destroy_snapshot(&self, name: &str, defer: bool) -> Result<(), Status> {
        let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
        debug_assert!(!snapshot.is_empty(), "the name of a snapshot");
        let what = Destruction::Snapshots {
            name: of.to_owned(),
            snapshots: snapshot.to_owned(),
            recursive: false,
            dependents: false,
            defer,
        };
        let line = if defer { "destroy -d" } else { "destroy" };
        match self.0.volumes.try_change(name, line, Change::Destroy { what }).await? {
            Ok(()) => Ok(()),
            Err(refusal) if matches!(refusal.kind, RefusalKind::Missing | RefusalKind::NoSnapshots) => Ok(()),
            Err(refusal) => Err(status_of(name, &refusal)),
        }
    }
}
