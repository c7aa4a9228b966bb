//! Messages of the Identity service: names and numbers of fields as in the specification.

use super::BoolValue;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetPluginInfoRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetPluginInfoResponse {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub manifest: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetPluginCapabilitiesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetPluginCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginCapability {
    #[prost(oneof = "PluginCapabilityKind", tags = "1, 2")]
    pub r#type: Option<PluginCapabilityKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum PluginCapabilityKind {
    #[prost(message, tag = "1")]
    Service(ServiceCapability),
    #[prost(message, tag = "2")]
    VolumeExpansion(ExpansionCapability),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ServiceCapability {
    #[prost(enumeration = "PluginService", tag = "1")]
    pub r#type: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum PluginService {
    Unknown = 0,
    ControllerService = 1,
    VolumeAccessibilityConstraints = 2,
    GroupControllerService = 3,
    SnapshotMetadataService = 4,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExpansionCapability {
    #[prost(enumeration = "Expansion", tag = "1")]
    pub r#type: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Expansion {
    Unknown = 0,
    Online = 1,
    Offline = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ProbeRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}
