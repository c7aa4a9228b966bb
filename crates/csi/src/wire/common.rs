//! Messages of several services: names and numbers of fields as in the specification.

use super::Timestamp;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeContentSource {
    #[prost(oneof = "ContentSource", tags = "1, 2")]
    pub r#type: Option<ContentSource>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ContentSource {
    #[prost(message, tag = "1")]
    Snapshot(SnapshotSource),
    #[prost(message, tag = "2")]
    Volume(VolumeSource),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotSource {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeSource {
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCapability {
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AccessType {
    #[prost(message, tag = "1")]
    Block(BlockVolume),
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct BlockVolume {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AccessMode {
    #[prost(enumeration = "Mode", tag = "1")]
    pub mode: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Mode {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReaderOnly = 2,
    MultiNodeReaderOnly = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: BTreeMap<String, String>,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<VolumeContentSource>,
    #[prost(message, repeated, tag = "5")]
    pub accessible_topology: Vec<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TopologyRequirement {
    #[prost(message, repeated, tag = "1")]
    pub requisite: Vec<Topology>,
    #[prost(message, repeated, tag = "2")]
    pub preferred: Vec<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Snapshot {
    #[prost(int64, tag = "1")]
    pub size_bytes: i64,
    #[prost(string, tag = "2")]
    pub snapshot_id: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(message, optional, tag = "4")]
    pub creation_time: Option<Timestamp>,
    #[prost(bool, tag = "5")]
    pub ready_to_use: bool,
}
