//! What targets there are, and who may use them.

use crate::login::{Admission, ChapConfig};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use weir_front::Hosts;

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunConfig {
    /// Number, below 16384.
    pub lun: u16,
    /// Name of the export that it offers.
    pub export: String,
    /// Whether writes may be answered before they are stable (`wce=on`).
    pub write_cache: bool,
    /// Whether initiators may only read it.
    pub read_only: bool,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// Name.
    pub iqn: String,
    /// Logical units.
    pub luns: Vec<LunConfig>,
    /// Names of the initiators that may use it; an empty list permits all.
    pub initiators: Vec<String>,
    /// Addresses that may use it.
    pub hosts: Hosts,
    /// Authentication.
    pub chap: Option<ChapConfig>,
}

impl TargetConfig {
    /// Whether an initiator at this address may use the target, if it authenticates itself.
    fn admits(&self, initiator: &str, host: IpAddr) -> bool {
        // Names are compared as RFC 3722 prepares them: without regard to case.
        let is_listed = |name: &String| name.eq_ignore_ascii_case(initiator);
        self.hosts.has(host) && (self.initiators.is_empty() || self.initiators.iter().any(is_listed))
    }
}

/// All targets, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets(BTreeMap<String, Arc<TargetConfig>>);

impl Targets {
    /// Of several targets with one name, the last one counts.
    pub(crate) fn new(targets: Vec<TargetConfig>) -> Self {
        Targets(targets.into_iter().map(|target| (target.iqn.to_ascii_lowercase(), Arc::new(target))).collect())
    }

    /// A target by name.
    pub(crate) fn get(&self, iqn: &str) -> Option<&Arc<TargetConfig>> {
        self.0.get(&iqn.to_ascii_lowercase())
    }

    /// Whether an initiator may use a target.
    pub(crate) fn admission(&self, initiator: &str, host: IpAddr, target: &str) -> Admission {
        match self.get(target) {
            None => Admission::NotFound,
            Some(target) if !target.admits(initiator, host) => Admission::Forbidden,
            Some(target) => Admission::Admitted(target.chap.clone()),
        }
    }

    /// The names of the targets that an initiator may use.
    pub(crate) fn visible(&self, initiator: &str, host: IpAddr) -> Vec<String> {
        self.0.values().filter(|target| target.admits(initiator, host)).map(|target| target.iqn.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_initiators_and_hosts_see_a_target() {
        let target = |iqn: &str, initiators: &[&str], hosts| TargetConfig {
            iqn: iqn.into(),
            luns: Vec::new(),
            initiators: initiators.iter().map(|name| (*name).to_owned()).collect(),
            hosts,
            chap: None,
        };
        let targets = Targets::new(vec![
            target("iqn.a", &[], Hosts::all()),
            target("iqn.b", &["iqn.client"], Hosts::all()),
            target("iqn.c", &[], Hosts::loopback()),
        ]);
        let far: IpAddr = "192.0.2.1".parse().unwrap();
        let near: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(targets.visible("iqn.other", far), ["iqn.a"]);
        assert_eq!(targets.visible("IQN.client", near), ["iqn.a", "iqn.b", "iqn.c"]);
        assert_eq!(targets.admission("iqn.other", far, "iqn.b"), Admission::Forbidden);
        assert_eq!(targets.admission("iqn.client", far, "IQN.B"), Admission::Admitted(None));
        assert_eq!(targets.admission("iqn.client", far, "iqn.d"), Admission::NotFound);
    }
}
