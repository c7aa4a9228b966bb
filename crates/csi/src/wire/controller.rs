//! Messages of the Controller service: names and numbers of fields as in the specification.

use super::Int64Value;
use super::common::{
    CapacityRange, Snapshot, Topology, TopologyRequirement, Volume, VolumeCapability, VolumeContentSource,
};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(message, optional, tag = "6")]
    pub volume_content_source: Option<VolumeContentSource>,
    #[prost(message, optional, tag = "7")]
    pub accessibility_requirements: Option<TopologyRequirement>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub mutable_parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteVolumeResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerPublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub node_id: String,
    #[prost(message, optional, tag = "3")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "4")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerPublishVolumeResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub publish_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub node_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerUnpublishVolumeResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ValidateVolumeCapabilitiesRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub volume_context: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub mutable_parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ValidateVolumeCapabilitiesResponse {
    #[prost(message, optional, tag = "1")]
    pub confirmed: Option<Confirmed>,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Confirmed {
    #[prost(btree_map = "string, string", tag = "1")]
    pub volume_context: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub mutable_parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListVolumesRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListVolumesResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<VolumeEntry>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeStatus {
    #[prost(string, repeated, tag = "1")]
    pub published_node_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeEntry {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<VolumeStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetCapacityRequest {
    #[prost(message, repeated, tag = "1")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub parameters: BTreeMap<String, String>,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetCapacityResponse {
    #[prost(int64, tag = "1")]
    pub available_capacity: i64,
    #[prost(message, optional, tag = "2")]
    pub maximum_volume_size: Option<Int64Value>,
    #[prost(message, optional, tag = "3")]
    pub minimum_volume_size: Option<Int64Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerGetCapabilitiesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<ControllerServiceCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerServiceCapability {
    #[prost(oneof = "ControllerCapabilityKind", tags = "1")]
    pub r#type: Option<ControllerCapabilityKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ControllerCapabilityKind {
    #[prost(message, tag = "1")]
    Rpc(ControllerRpcCapability),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerRpcCapability {
    #[prost(enumeration = "ControllerRpc", tag = "1")]
    pub r#type: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ControllerRpc {
    Unknown = 0,
    CreateDeleteVolume = 1,
    PublishUnpublishVolume = 2,
    ListVolumes = 3,
    GetCapacity = 4,
    CreateDeleteSnapshot = 5,
    ListSnapshots = 6,
    CloneVolume = 7,
    PublishReadonly = 8,
    ExpandVolume = 9,
    ListVolumesPublishedNodes = 10,
    VolumeCondition = 11,
    GetVolume = 12,
    SingleNodeMultiWriter = 13,
    ModifyVolume = 14,
    GetSnapshot = 15,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSnapshotRequest {
    #[prost(string, tag = "1")]
    pub source_volume_id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteSnapshotResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListSnapshotsRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(string, tag = "4")]
    pub snapshot_id: String,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListSnapshotsResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<SnapshotEntry>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotEntry {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: BTreeMap<String, String>,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ControllerExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    pub node_expansion_required: bool,
}
