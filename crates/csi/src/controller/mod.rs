//! The Controller service: volumes and snapshots as datasets of the process with the pools.

mod capabilities;
mod create;
mod delete;
mod lists;
mod publish;
mod snapshots;

use crate::names;
use crate::names::Protocol;
use crate::parameters::Parameters;
use crate::pending::Pending;
use crate::storage::Storage;
use crate::volumes::Volumes;
use crate::wire::common::Topology;
use crate::wire::controller::Confirmed;
use crate::wire::controller::{
    ControllerCapabilityKind, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerRpc, ControllerRpcCapability,
    ControllerServiceCapability, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
pub(crate) use capabilities::{check_capability, is_block};
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;
use weir_admin::Change;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;

/// Options of the controller.
#[derive(Clone, Debug, Default)]
pub struct ControllerOptions {
    /// Dataset below which all volumes are; storage classes without `parent` use it.
    pub parent: Option<String>,
    /// Name or address of the server as nodes reach it, for storage classes without `server`.
    pub server: Option<String>,
    /// Topology segments of the nodes that reach the server; empty if all do.
    pub topology: BTreeMap<String, String>,
}

/// The Controller service.
pub struct Controller {
    pub(crate) options: ControllerOptions,
    pub(crate) volumes: Volumes,
    pub(crate) pending: Pending,
}

/// Creation and destruction of volumes and snapshots.
struct Datasets<'a>(&'a Controller);

/// The size in bytes that a request wants, as a number that is not negative.
fn unsigned(bytes: i64, of: &str) -> Result<u64, Status> {
    u64::try_from(bytes).map_err(|_| Status::invalid_argument(format!("{of} is negative: {bytes}")))
}

/// A size for a message.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Controller {
    /// A controller of the process with the pools.
    pub(crate) fn new(options: ControllerOptions, storage: Arc<dyn Storage>) -> Self {
        let volumes = Volumes::new(storage, options.parent.clone());
        Controller { options, volumes, pending: Pending::default() }
    }

    /// Creates a volume, or finds that the same request created it before.
    pub async fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        Datasets(self).create_volume(request).await
    }

    /// Destroys a volume with the snapshots of it that are not the plugin's.
    pub async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        Datasets(self).delete_volume(request).await
    }

    /// Takes a snapshot of a volume, or finds that the same request took it before.
    pub async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Status> {
        Datasets(self).create_snapshot(request).await
    }

    /// Destroys a snapshot; one with clones when the last of them goes.
    pub async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<DeleteSnapshotResponse, Status> {
        Datasets(self).delete_snapshot(request).await
    }

    /// The calls that this controller offers.
    pub async fn controller_get_capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ControllerGetCapabilitiesResponse, Status> {
        let calls = [
            ControllerRpc::CreateDeleteVolume,
            ControllerRpc::PublishUnpublishVolume,
            ControllerRpc::ListVolumes,
            ControllerRpc::ListVolumesPublishedNodes,
            ControllerRpc::GetCapacity,
            ControllerRpc::CreateDeleteSnapshot,
            ControllerRpc::ListSnapshots,
            ControllerRpc::CloneVolume,
            ControllerRpc::PublishReadonly,
            ControllerRpc::ExpandVolume,
            ControllerRpc::SingleNodeMultiWriter,
        ];
        let capability = |call: ControllerRpc| ControllerServiceCapability {
            r#type: Some(ControllerCapabilityKind::Rpc(ControllerRpcCapability { r#type: call.into() })),
        };
        Ok(ControllerGetCapabilitiesResponse { capabilities: calls.map(capability).to_vec() })
    }

    /// Parameters of a storage class, with the options of the controller where they say nothing.
    fn parameters(&self, map: &BTreeMap<String, String>) -> Result<Parameters, Status> {
        let mut parameters = Parameters::parse(map).map_err(Status::invalid_argument)?;
        if let Some(parent) = &parameters.parent
            && !self.volumes.is_allowed(parent)
        {
            let top = self.options.parent.as_deref().unwrap_or_default();
            return Err(Status::invalid_argument(format!(
                "parameter 'parent': '{parent}' is not below '{top}', the dataset of this controller (--parent)"
            )));
        }
        parameters.parent = parameters.parent.or_else(|| self.options.parent.clone());
        parameters.server = parameters.server.or_else(|| self.options.server.clone());
        Ok(parameters)
    }

    /// The topology of volumes.
    fn topology(&self) -> Vec<Topology> {
        match self.options.topology.is_empty() {
            true => Vec::new(),
            false => vec![Topology { segments: self.options.topology.clone() }],
        }
    }

    /// Space for new volumes.
    pub async fn get_capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        let parameters = self.parameters(&request.parameters)?;
        let nothing =
            GetCapacityResponse { available_capacity: 0, maximum_volume_size: None, minimum_volume_size: None };
        let fits = request.volume_capabilities.iter().all(|one| check_capability(one, parameters.protocol).is_ok());
        let is_reached = request.accessible_topology.is_none_or(|topology| self.reaches(&topology));
        if !fits || !is_reached {
            return Ok(nothing);
        }
        let available = match &parameters.parent {
            Some(parent) => self.volumes.available(parent).await?,
            None => {
                let mut sum = 0u64;
                for pool in self.volumes.pools().await? {
                    sum = sum.saturating_add(self.volumes.available(&pool).await?);
                }
                sum
            }
        };
        Ok(GetCapacityResponse { available_capacity: signed(available), ..nothing })
    }

    /// Whether nodes of a topology reach the server.
    fn reaches(&self, topology: &Topology) -> bool {
        self.options.topology.iter().all(|(key, value)| topology.segments.get(key).is_none_or(|other| other == value))
    }

    /// Whether a volume can be used in these ways.
    pub async fn validate_volume_capabilities(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        if request.volume_id.is_empty() || request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_id and volume_capabilities are required"));
        }
        let (found, _) = self.volumes.existing(&request.volume_id).await?;
        for capability in &request.volume_capabilities {
            if let Err(message) = check_capability(capability, found.protocol()) {
                return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
            }
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }

    /// Enlarges a volume; it is never made smaller.
    pub async fn controller_expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let Some(range) = request.capacity_range else {
            self.volumes.existing(&request.volume_id).await?;
            return Err(Status::invalid_argument("capacity_range is missing"));
        };
        let _call = self.pending.begin(&request.volume_id)?;
        let (found, mark) = self.volumes.existing(&request.volume_id).await?;
        if let Some(capability) = &request.volume_capability {
            check_capability(capability, found.protocol()).map_err(Status::invalid_argument)?;
        }
        let bytes = create::size(&range, found.block_bytes)?.unwrap_or(found.bytes).max(found.bytes);
        if range.limit_bytes > 0 && bytes > unsigned(range.limit_bytes, "limit_bytes")? {
            return Err(Status::out_of_range(format!("{} has {} bytes already", found.name, found.bytes)));
        }
        if bytes > found.bytes {
            self.resize(&found.name, found.protocol(), bytes).await?;
        }
        debug_assert!(bytes >= found.bytes && bytes >= mark.bytes.min(found.bytes), "volumes only grow");
        let node_expansion_required = found.protocol() == Protocol::Iscsi;
        Ok(ControllerExpandVolumeResponse { capacity_bytes: signed(bytes), node_expansion_required })
    }

    /// Sets the size of a volume, or the quota of a file system.
    async fn resize(&self, name: &str, protocol: Protocol, bytes: u64) -> Result<(), Status> {
        debug_assert!(names::is_volume(name) && bytes > 0, "sizes are checked before");
        let change = match protocol {
            Protocol::Iscsi => Change::Resize { name: name.to_owned(), size_bytes: bytes, keep_reservation: false },
            Protocol::Nfs => Change::Set {
                name: name.to_owned(),
                settings: vec![("refquota".to_owned(), Setting::Set(Value::Number(bytes)))],
                recursive: false,
            },
        };
        self.volumes.change(name, &format!("expand to {bytes} bytes"), change).await
    }
}
