//! CreateVolume: new datasets, clones of snapshots, clones of volumes.
//!
//! A clone of a volume is one of a snapshot that is taken for it. The snapshot is marked for deferred destruction as soon as it has
//! its clone, so it goes with the clone.

use super::{Datasets, check_capability, signed, unsigned};
use crate::names::{self, MARK, MAX_LEN, Mark, Protocol};
use crate::parameters::Parameters;
use crate::volumes::Found;
use crate::wire::common::{CapacityRange, ContentSource, SnapshotSource, Volume, VolumeContentSource, VolumeSource};
use crate::wire::controller::{CreateVolumeRequest, CreateVolumeResponse};
use std::collections::BTreeMap;
use tonic::Status;
use weir_admin::{Change, CreateDataset, NewKind, RefusalKind};
use weir_dsl::props::{DatasetKind, Value};

/// Size of a volume for which no size is wanted, in bytes.
const DEFAULT_BYTES: u64 = 1 << 30;
/// Smallest size of a volume in bytes.
const MIN_BYTES: u64 = 1 << 20;
/// Block size of ZFS volumes in bytes, unless the storage class has `volblocksize`.
const DEFAULT_BLOCK_BYTES: u64 = 16 << 10;

/// The size that a range wants, in whole blocks; `None` if it wants none.
///
/// # Errors
/// INVALID_ARGUMENT for negative sizes, OUT_OF_RANGE if no size is in the range.
pub(super) fn size(range: &CapacityRange, block_bytes: u64) -> Result<Option<u64>, Status> {
    let required = unsigned(range.required_bytes, "required_bytes")?;
    let limit = unsigned(range.limit_bytes, "limit_bytes")?;
    let out_of_range = |why: String| Err(Status::out_of_range(why));
    if limit != 0 && required > limit {
        return out_of_range(format!("required_bytes {required} is more than limit_bytes {limit}"));
    }
    let wanted = match (required, limit) {
        (0, 0) => return Ok(None),
        (0, limit) => limit.min(DEFAULT_BYTES),
        (required, _) => required.max(MIN_BYTES),
    };
    let block = block_bytes.max(1);
    let whole = wanted.div_ceil(block).saturating_mul(block);
    // The largest size of a file in ZFS.
    if whole > i64::MAX as u64 - block || wanted < MIN_BYTES || (limit != 0 && whole > limit) {
        return out_of_range(format!("no size in whole blocks of {block} bytes and of at least {MIN_BYTES} fits"));
    }
    Ok(Some(whole))
}

/// Origin of a new volume.
enum Origin {
    Nothing,
    /// A snapshot, its mark, and whether it is taken for this volume.
    Snapshot {
        name: String,
        mark: Mark,
        is_own: bool,
    },
}

/// A volume to be created.
struct Wanted {
    dataset: String,
    mark: Mark,
    origin: Origin,
    properties: Vec<(String, Value)>,
    block_bytes: u32,
    reserve: bool,
}

impl Datasets<'_> {
    /// Creates a volume, or finds that it was created by the same request before.
    pub async fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let invalid = Status::invalid_argument;
        if request.name.is_empty() || request.name.len() > MAX_LEN {
            return Err(invalid(format!("name has {} bytes; it takes 1 to {MAX_LEN}", request.name.len())));
        }
        if request.volume_capabilities.is_empty() {
            return Err(invalid("volume_capabilities is missing".into()));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(invalid("mutable_parameters are not supported".into()));
        }
        let parameters = self.0.parameters(&request.parameters)?;
        for capability in &request.volume_capabilities {
            check_capability(capability, parameters.protocol).map_err(invalid)?;
        }
        let parent = parameters.parent.as_deref();
        let parent = parent.ok_or_else(|| {
            invalid("parameter 'parent' is missing: it names the dataset below which volumes are created".into())
        })?;
        if parent.len() > names::MAX_PARENT_LEN {
            return Err(invalid(format!("'{parent}' is too long: at most {} bytes", names::MAX_PARENT_LEN)));
        }
        if let Some(wanted) = &request.accessibility_requirements
            && !wanted.requisite.is_empty()
            && !wanted.requisite.iter().any(|topology| self.0.reaches(topology))
        {
            return Err(Status::resource_exhausted("none of the wanted topologies reaches this server"));
        }
        let dataset = names::volume_below(parent, &request.name);
        let _call = self.0.pending.begin(&dataset)?;
        let source = source_of(request.volume_content_source.as_ref())?;
        let wanted = self.wanted(&request, &parameters, dataset, source).await?;
        let found = match self.0.volumes.dataset(&wanted.dataset).await? {
            Some(found) => found,
            None => self.make(&wanted).await?,
        };
        let bytes = self.finished(&request, &wanted.mark, &found).await?;
        let volume = Volume {
            capacity_bytes: signed(bytes),
            volume_id: found.name.clone(),
            volume_context: context(&parameters),
            content_source: request.volume_content_source,
            accessible_topology: self.0.topology(),
        };
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    /// Checks what a request wants before anything is changed.
    async fn wanted(
        &self,
        request: &CreateVolumeRequest,
        parameters: &Parameters,
        dataset: String,
        source: Option<String>,
    ) -> Result<Wanted, Status> {
        let kind = match parameters.protocol {
            Protocol::Nfs => DatasetKind::Filesystem,
            Protocol::Iscsi => DatasetKind::Volume,
        };
        let mut block_bytes = if kind == DatasetKind::Volume { DEFAULT_BLOCK_BYTES } else { 1 };
        let mut properties = Vec::new();
        for (name, value) in &parameters.properties {
            let parsed = self.0.volumes.storage().property(name, value, kind);
            let (name, value) =
                parsed.map_err(|why| Status::invalid_argument(format!("parameter '{name}={value}': {why}")))?;
            match value {
                Value::Number(bytes) if name == "volblocksize" => block_bytes = bytes,
                value => properties.push((name, value)),
            }
        }
        let range = request.capacity_range.clone().unwrap_or_default();
        let origin = self.origin(&dataset, source.as_deref(), parameters.protocol).await?;
        if let Origin::Snapshot { name, .. } = &origin
            && let Some(of) = self.0.volumes.dataset(name.split('@').next().unwrap_or(name)).await?
        {
            block_bytes = of.block_bytes.max(1);
        }
        let at_least = match &origin {
            Origin::Snapshot { mark, .. } => mark.bytes,
            Origin::Nothing => 0,
        };
        let bytes = match size(&range, block_bytes)? {
            Some(bytes) if bytes < at_least => {
                return Err(Status::out_of_range(format!(
                    "the source has {at_least} bytes, more than the volume's {bytes}"
                )));
            }
            Some(bytes) => bytes,
            None if at_least > 0 => at_least,
            None => DEFAULT_BYTES,
        };
        let mark = Mark {
            name: request.name.clone(),
            protocol: parameters.protocol,
            bytes,
            source,
            chap: parameters.chap.clone(),
            mutual: parameters.mutual.clone(),
        };
        let block_bytes =
            u32::try_from(block_bytes).map_err(|_| Status::invalid_argument("volblocksize is too large"))?;
        Ok(Wanted { dataset, mark, origin, properties, block_bytes, reserve: parameters.reserve })
    }

    /// Finds the source of a new volume.
    async fn origin(&self, dataset: &str, source: Option<&str>, protocol: Protocol) -> Result<Origin, Status> {
        let Some(source) = source else { return Ok(Origin::Nothing) };
        let missing = || Status::not_found(format!("there is no source '{source}'"));
        let (name, mark, is_own) = match names::split_snapshot(source) {
            Some((volume, _)) => {
                self.0.volumes.volume(volume).await?.ok_or_else(missing)?;
                let found = self.0.volumes.snapshot(source).await?.filter(|found| !found.is_deferred);
                (source.to_owned(), found.and_then(|found| found.mark).ok_or_else(missing)?, false)
            }
            None => {
                let (found, mark) = self.0.volumes.volume(source).await?.ok_or_else(missing)?;
                let name = format!("{source}@{}", names::component(&format!("/for/{dataset}"), 64));
                (name, Mark { bytes: found.bytes, ..mark }, true)
            }
        };
        if names::pool_of(source) != names::pool_of(dataset) {
            let why = format!("'{source}' is in another pool than '{dataset}': a clone is in the pool of its source");
            return Err(Status::invalid_argument(why));
        }
        if mark.protocol != protocol {
            return Err(Status::invalid_argument(format!("'{source}' has another protocol than the storage class")));
        }
        Ok(Origin::Snapshot { name, mark, is_own })
    }

    /// Creates the dataset.
    async fn make(&self, wanted: &Wanted) -> Result<Found, Status> {
        let Wanted { dataset, mark, .. } = wanted;
        let text = |name: &str, value: &str| (name.to_owned(), Value::Text(value.to_owned()));
        let mut properties = wanted.properties.clone();
        properties.push(text(MARK, &mark.encode()));
        if mark.protocol == Protocol::Nfs {
            // It is shared when it is published, whatever its parent is.
            properties.push(text("sharenfs", "off"));
            properties.push(text("sharesmb", "off"));
            properties.push(("refquota".to_owned(), Value::Number(mark.bytes)));
            if wanted.reserve {
                properties.push(("refreservation".to_owned(), Value::Number(mark.bytes)));
            }
        } else {
            properties.push(text("weir:iscsi", "off"));
            properties.push(text("weir:nbd", "off"));
        }
        match &wanted.origin {
            Origin::Nothing => {
                let kind = match mark.protocol {
                    Protocol::Nfs => NewKind::FileSystem,
                    Protocol::Iscsi => NewKind::Volume {
                        size_bytes: mark.bytes,
                        block_bytes: wanted.block_bytes,
                        sparse: !wanted.reserve,
                    },
                };
                let new = CreateDataset { name: dataset.clone(), kind, properties, parents: false };
                self.0.volumes.change(dataset, "create", Change::Create(new)).await?;
            }
            Origin::Snapshot { name, is_own, .. } => {
                if *is_own {
                    self.take_own(name).await?;
                }
                let clone = Change::Clone { origin: name.clone(), name: dataset.clone(), properties, parents: false };
                self.0.volumes.change(dataset, &format!("clone {name}"), clone).await?;
                if *is_own {
                    self.destroy_snapshot(name, true).await?;
                }
            }
        }
        let found = self.0.volumes.dataset(dataset).await?;
        found.ok_or_else(|| Status::aborted(format!("{dataset} was destroyed while it was created; try again")))
    }

    /// Takes the snapshot of a volume for its clone, unless an earlier try took it.
    async fn take_own(&self, name: &str) -> Result<(), Status> {
        let change = Change::Snapshot { snapshots: vec![name.to_owned()], properties: Vec::new(), recursive: false };
        match self.0.volumes.try_change(name, "snapshot", change).await? {
            Ok(()) => Ok(()),
            Err(refusal) if refusal.kind == RefusalKind::Exists => Ok(()),
            Err(refusal) => Err(crate::storage::status_of(name, &refusal)),
        }
    }

    /// Checks that an existing dataset is what the request wants, and completes it. Returns its size in bytes.
    async fn finished(&self, request: &CreateVolumeRequest, wanted: &Mark, found: &Found) -> Result<u64, Status> {
        let differs = |what: &str| Err(Status::already_exists(format!("{} exists {what}", found.name)));
        let Some(mark) = &found.mark else { return differs("and was not created by this plugin") };
        if mark.name != wanted.name || mark.protocol != wanted.protocol {
            return differs("with another name or protocol");
        }
        if mark.source != wanted.source {
            return differs("with another source");
        }
        let mut bytes = found.bytes;
        if bytes < mark.bytes {
            // A clone has the size of its source first.
            self.0.resize(&found.name, mark.protocol, mark.bytes).await?;
            bytes = mark.bytes;
        }
        let range = request.capacity_range.clone().unwrap_or_default();
        let limit = unsigned(range.limit_bytes, "limit_bytes")?;
        if bytes < unsigned(range.required_bytes, "required_bytes")? || (limit != 0 && bytes > limit) {
            return differs(&format!("with {bytes} bytes"));
        }
        Ok(bytes)
    }
}

/// The handle of the source of a new volume.
fn source_of(source: Option<&VolumeContentSource>) -> Result<Option<String>, Status> {
    let Some(source) = source else { return Ok(None) };
    match &source.r#type {
        Some(ContentSource::Snapshot(SnapshotSource { snapshot_id })) => match names::split_snapshot(snapshot_id) {
            Some(_) => Ok(Some(snapshot_id.clone())),
            None => Err(Status::not_found(format!("there is no snapshot '{snapshot_id}'"))),
        },
        Some(ContentSource::Volume(VolumeSource { volume_id })) => match names::is_volume(volume_id) {
            true => Ok(Some(volume_id.clone())),
            false => Err(Status::not_found(format!("there is no volume '{volume_id}'"))),
        },
        None => Err(Status::invalid_argument("volume_content_source has neither snapshot nor volume")),
    }
}

/// The context of a volume: what publishing it needs.
fn context(parameters: &Parameters) -> BTreeMap<String, String> {
    let mut out = BTreeMap::from([("protocol".to_owned(), parameters.protocol.name().to_owned())]);
    out.extend(parameters.server.iter().map(|server| ("server".to_owned(), server.clone())));
    out.extend(parameters.port.iter().map(|port| ("port".to_owned(), port.to_string())));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks_within_the_range() {
        let of = |required_bytes, limit_bytes| size(&CapacityRange { required_bytes, limit_bytes }, 16384);
        assert_eq!(of(0, 0).unwrap(), None);
        assert_eq!(of(1, 0).unwrap(), Some(MIN_BYTES));
        assert_eq!(of((1 << 30) + 1, 0).unwrap(), Some((1 << 30) + 16384));
        assert_eq!(of(0, 2 << 20).unwrap(), Some(2 << 20));
        for (required, limit) in [(2, 1), ((1 << 30) + 1, (1 << 30) + 2), (0, 1), (i64::MAX, 0)] {
            assert_eq!(of(required, limit).unwrap_err().code(), tonic::Code::OutOfRange, "{required} {limit}");
        }
        assert_eq!(of(-1, 0).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
