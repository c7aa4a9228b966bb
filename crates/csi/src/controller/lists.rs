//! ListVolumes and ListSnapshots.
//!
//! A token is the handle of the last entry, so a list goes on at the right place whatever is created or destroyed meanwhile.

use super::{Controller, signed, snapshots};
use crate::names::{self, Mark};
use crate::volumes::Found;
use crate::wire::common::{ContentSource, SnapshotSource, Volume, VolumeContentSource, VolumeSource};
use crate::wire::controller::{
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, SnapshotEntry, VolumeEntry,
    VolumeStatus,
};
use std::collections::BTreeMap;
use tonic::Status;
use weir_dsl::props::DatasetKind;

/// Maximum number of entries of an answer: some hundred bytes each, below gRPC's 4 MiB.
const MAX_ENTRIES: usize = 4096;

/// Returns the entries of a sorted list after a token, at most the wanted number, and the token of the next page.
fn page(all: Vec<(Found, Mark)>, max_entries: i32, token: &str) -> Result<(Vec<(Found, Mark)>, String), Status> {
    let count = match usize::try_from(max_entries) {
        Ok(0) => MAX_ENTRIES,
        Ok(count) => count.min(MAX_ENTRIES),
        Err(_) => return Err(Status::invalid_argument(format!("max_entries is negative: {max_entries}"))),
    };
    let begin = match token {
        "" => 0,
        token => {
            let last = names::after(token);
            let last =
                last.ok_or_else(|| Status::aborted(format!("'{token}' is no token of this plugin; begin again")))?;
            all.partition_point(|(found, _)| found.name.as_str() <= last)
        }
    };
    let has_more = all.len() - begin > count;
    let entries: Vec<_> = all.into_iter().skip(begin).take(count).collect();
    let token = entries.last().filter(|_| has_more).map(|(found, _)| names::token_after(&found.name));
    Ok((entries, token.unwrap_or_default()))
}

/// The source in a mark.
fn content_source(mark: &Mark) -> Option<VolumeContentSource> {
    let source = mark.source.clone()?;
    let of = match names::split_snapshot(&source) {
        Some(_) => ContentSource::Snapshot(SnapshotSource { snapshot_id: source }),
        None => ContentSource::Volume(VolumeSource { volume_id: source }),
    };
    Some(VolumeContentSource { r#type: Some(of) })
}

impl Controller {
    /// Lists volumes with the nodes that they are published to.
    pub async fn list_volumes(&self, request: ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let all = self.volumes.all(&[DatasetKind::Filesystem, DatasetKind::Volume]).await?;
        let all = all.into_iter().filter(|(found, _)| names::is_volume(&found.name)).collect();
        let (page, next_token) = page(all, request.max_entries, &request.starting_token)?;
        let entry = |(found, mark): (Found, Mark)| VolumeEntry {
            volume: Some(Volume {
                capacity_bytes: signed(found.bytes),
                volume_id: found.name,
                volume_context: BTreeMap::new(),
                content_source: content_source(&mark),
                accessible_topology: self.topology(),
            }),
            status: Some(VolumeStatus {
                published_node_ids: found.nodes.into_iter().map(|published| published.node).collect(),
            }),
        };
        Ok(ListVolumesResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }

    /// Lists snapshots: all, those of a volume, or one.
    pub async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Status> {
        let with_mark = |found: Found| found.mark.clone().map(|mark| (found, mark));
        let all = if !request.snapshot_id.is_empty() {
            match names::split_snapshot(&request.snapshot_id) {
                Some((volume, _)) if self.volumes.volume(volume).await?.is_some() => {
                    self.volumes.snapshot(&request.snapshot_id).await?.and_then(with_mark).into_iter().collect()
                }
                _ => Vec::new(),
            }
        } else if !request.source_volume_id.is_empty() {
            match self.volumes.volume(&request.source_volume_id).await? {
                Some((volume, _)) => {
                    let found = self.volumes.snapshots_of(&volume.name).await?;
                    let mut found: Vec<_> = found.into_iter().filter_map(with_mark).collect();
                    found.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
                    found
                }
                None => Vec::new(),
            }
        } else {
            self.volumes.all(&[DatasetKind::Snapshot]).await?
        };
        let is_wanted = |found: &Found| {
            let of = &request.source_volume_id;
            !found.is_deferred && (of.is_empty() || found.name.split('@').next() == Some(of))
        };
        let all = all.into_iter().filter(|(found, _)| is_wanted(found)).collect();
        let (page, next_token) = page(all, request.max_entries, &request.starting_token)?;
        let entry = |(found, mark): (Found, Mark)| SnapshotEntry { snapshot: Some(snapshots::message(&found, &mark)) };
        Ok(ListSnapshotsResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }
}
