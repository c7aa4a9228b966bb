//! CreateSnapshot and DeleteSnapshot.

use super::{Datasets, signed};
use crate::names::{self, MARK, MAX_LEN, Mark};
use crate::storage::status_of;
use crate::volumes::Found;
use crate::wire::Timestamp;
use crate::wire::common::Snapshot;
use crate::wire::controller::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
};
use tonic::Status;
use weir_admin::{Change, RefusalKind};
use weir_dsl::props::{DatasetKind, Value};

/// The message of a snapshot.
pub(super) fn message(found: &Found, mark: &Mark) -> Snapshot {
    let volume = found.name.split('@').next().unwrap_or_default();
    Snapshot {
        size_bytes: signed(mark.bytes),
        snapshot_id: found.name.clone(),
        source_volume_id: volume.to_owned(),
        creation_time: Some(Timestamp { seconds: signed(found.creation_s), nanos: 0 }),
        ready_to_use: true,
    }
}

impl Datasets<'_> {
    /// Takes a snapshot of a volume, or finds that it was taken by the same request before.
    pub async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Status> {
        if request.name.is_empty() || request.name.len() > MAX_LEN {
            let len = request.name.len();
            return Err(Status::invalid_argument(format!("name has {len} bytes; it takes 1 to {MAX_LEN}")));
        }
        if request.source_volume_id.is_empty() {
            return Err(Status::invalid_argument("source_volume_id is missing"));
        }
        if let Some(parameter) = request.parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
            return Err(Status::invalid_argument(format!("unknown parameter '{parameter}': snapshots have none")));
        }
        // Names of snapshots are unique among all volumes.
        let _call = self.0.pending.begin(&format!("@{}", request.name))?;
        let (volume, of) = self.0.volumes.existing(&request.source_volume_id).await?;
        let name = format!("{}@{}", volume.name, names::component(&request.name, MAX_LEN));
        let all = self.0.volumes.all(&[DatasetKind::Snapshot]).await?;
        let same = all.iter().filter(|(_, mark)| mark.name == request.name);
        if let Some((other, _)) = same.clone().find(|(found, _)| found.name != name) {
            return Err(Status::already_exists(format!("the snapshot {} has this name already", other.name)));
        }
        if let Some((found, mark)) = same.clone().find(|(found, _)| !found.is_deferred) {
            return Ok(CreateSnapshotResponse { snapshot: Some(message(found, mark)) });
        }
        let mark = Mark { name: request.name, bytes: volume.bytes, source: None, ..of };
        let properties = vec![(MARK.to_owned(), Value::Text(mark.encode()))];
        let change = Change::Snapshot { snapshots: vec![name.clone()], properties, recursive: false };
        match self.0.volumes.try_change(&name, "snapshot", change).await? {
            Ok(()) => {}
            Err(refusal) if refusal.kind == RefusalKind::Exists => {
                let why = "exists and was not taken by this plugin, or is destroyed with its last clone";
                return Err(Status::already_exists(format!("{name} {why}")));
            }
            Err(refusal) => return Err(status_of(&name, &refusal)),
        }
        let found = self.0.volumes.snapshot(&name).await?;
        let found = found.ok_or_else(|| Status::aborted(format!("{name} was destroyed meanwhile; try again")))?;
        Ok(CreateSnapshotResponse { snapshot: Some(message(&found, &mark)) })
    }

    /// Destroys a snapshot; one with clones when the last of them goes.
    pub async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<DeleteSnapshotResponse, Status> {
        let handle = &request.snapshot_id;
        if handle.is_empty() {
            return Err(Status::invalid_argument("snapshot_id is missing"));
        }
        let Some((volume, _)) = names::split_snapshot(handle).filter(|(volume, _)| self.0.volumes.is_allowed(volume))
        else {
            return Ok(DeleteSnapshotResponse {});
        };
        let _call = self.0.pending.begin(volume)?;
        match self.0.volumes.snapshot(handle).await? {
            None => {}
            Some(found) if found.mark.is_none() => {
                let why = "was not taken by this plugin: it is not destroyed";
                return Err(Status::failed_precondition(format!("{handle} {why}")));
            }
            Some(found) if found.is_deferred => {}
            Some(_) => self.destroy_snapshot(handle, true).await?,
        }
        Ok(DeleteSnapshotResponse {})
    }
}
