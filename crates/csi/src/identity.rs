//! The Identity service: what this plugin is, and whether it is ready.

use crate::PLUGIN_NAME;
use crate::serve::Plugin;
use crate::wire::BoolValue;
use crate::wire::identity::{
    Expansion, ExpansionCapability, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, PluginCapabilityKind, PluginService, ProbeRequest, ProbeResponse,
    ServiceCapability,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// The Identity service.
pub struct Identity(pub Arc<Plugin>);

impl Identity {
    /// Name and version.
    pub async fn get_plugin_info(&self, _: GetPluginInfoRequest) -> Result<GetPluginInfoResponse, Status> {
        Ok(GetPluginInfoResponse {
            name: PLUGIN_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: BTreeMap::new(),
        })
    }

    /// The services that callers can use.
    pub async fn get_plugin_capabilities(
        &self,
        _: GetPluginCapabilitiesRequest,
    ) -> Result<GetPluginCapabilitiesResponse, Status> {
        let service = |service: PluginService| PluginCapability {
            r#type: Some(PluginCapabilityKind::Service(ServiceCapability { r#type: service.into() })),
        };
        let mut capabilities = Vec::new();
        if self.0.controller.is_some() {
            capabilities.push(service(PluginService::ControllerService));
        }
        if self.0.has_topology() {
            capabilities.push(service(PluginService::VolumeAccessibilityConstraints));
        }
        capabilities.push(PluginCapability {
            r#type: Some(PluginCapabilityKind::VolumeExpansion(ExpansionCapability {
                r#type: Expansion::Online.into(),
            })),
        });
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    /// Whether the plugin is ready: a controller is if the process with the pools answers.
    pub async fn probe(&self, _: ProbeRequest) -> Result<ProbeResponse, Status> {
        let ready = match &self.0.controller {
            Some(controller) => match controller.volumes.pools().await {
                Ok(_) => true,
                Err(status) => {
                    tracing::warn!("not ready: {}", status.message());
                    false
                }
            },
            None => true,
        };
        Ok(ProbeResponse { ready: Some(BoolValue { value: ready }) })
    }
}
