//! The server of a target: a Weir on this machine whose file system, unit or export is measured, or the pool of this process.
//!
//! A mount names its dataset, and an NFS path its pool. The URL of an iSCSI unit names neither, nor does any URL say which
//! process listens: for targets at this machine's loopback address, the counters of the protocol are read, and the session
//! keeps them only if they agree with what the client moved.

use crate::analytics::Watched;
use crate::call::Call;
use crate::options::PoolDirs;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_analytics::Sample;
use weir_engine::Engine;
use weir_lab::environment::mount_of;
use weir_lab::native::network::url::{NetworkTarget, Place};
use weir_lab::target::{Target, is_local_nbd};
use weir_machine::Protocol;

/// Kind of the file systems that Weir mounts.
const MOUNT_KIND: &str = "fuse.weir";

/// Beginning of the names of counters of what devices took.
const DEVICE_BYTES: &str = "device_bytes.";

/// Pool whose counters are read beside the client's.
pub struct Server {
    watched: Option<(Call, Watched)>,
    /// The pool, if this process has it open.
    engine: Option<Arc<Engine>>,
    /// Protocol whose requests count; without one, all.
    protocol: Option<&'static str>,
}

impl Server {
    /// The process that serves a target; without one no counters are read.
    pub fn find(target: &str) -> Self {
        match Target::parse(target) {
            Ok(Target::Network(network)) => return Self::behind(&network),
            Ok(Target::Nbd(uri)) if is_local_nbd(&uri) => return Self::of_protocol(Protocol::Nbd.name(), &[]),
            _ => {}
        }
        let watched = dataset(target).and_then(|dataset| {
            let pool = dataset.split(['/', '@']).next()?.to_owned();
            let call = Call::own("bench", Vec::new());
            let found = Watched::find(&call, &PoolDirs::default(), &[pool]);
            // The figures are measured all the same.
            let found = found.inspect_err(|error| {
                eprintln!("weir bench: bytes that the server of {target} reads from its ARC do not show: {error}");
            });
            Some((call, found.ok()?))
        });
        Self { watched, engine: None, protocol: None }
    }

    /// The process on this machine that may serve a network target.
    fn behind(network: &NetworkTarget) -> Self {
        let (protocol, pools) = match &network.place {
            _ if !network.is_local() => return Self::none(),
            Place::Iscsi { .. } => ("iscsi", Vec::new()),
            Place::Nfs { path, .. } => ("nfs3", path.split('/').nth(1).map(str::to_owned).into_iter().collect()),
            Place::Smb { .. } => ("smb", Vec::new()),
        };
        Self::of_protocol(protocol, &pools)
    }

    /// The process on this machine that may serve these pools, or any, by a protocol.
    fn of_protocol(protocol: &'static str, pools: &[String]) -> Self {
        let call = Call::own("bench", Vec::new());
        // Another server than Weir is no failure.
        let watched = Watched::find(&call, &PoolDirs::default(), pools).ok().map(|watched| (call, watched));
        Self { watched, engine: None, protocol: Some(protocol) }
    }

    /// No server.
    pub fn none() -> Self {
        Self { watched: None, engine: None, protocol: None }
    }

    /// The pool that this process has open: all its clients are the benchmark.
    pub fn in_process(engine: Arc<Engine>) -> Self {
        Self { watched: None, engine: Some(engine), protocol: Some(Protocol::Internal.name()) }
    }

    /// Facts about the dataset of a target.
    pub fn facts(target: &str) -> BTreeMap<String, String> {
        dataset(target).map(|dataset| BTreeMap::from([("dataset".to_owned(), dataset)])).unwrap_or_default()
    }

    /// Present counters by name; `None` without a server, or if it does not answer.
    pub fn counters(&mut self) -> Option<BTreeMap<String, u64>> {
        let samples = match (&self.engine, &self.watched) {
            (Some(engine), _) => vec![Sample::take(engine)],
            (None, Some((call, watched))) => watched.samples(call).ok()?,
            (None, None) => return None,
        };
        let mut sums = BTreeMap::new();
        for (name, count) in samples.iter().flat_map(|sample| counters(sample, self.protocol)) {
            // What devices took is known only if one pool may have served the target.
            if samples.len() == 1 || !name.starts_with(DEVICE_BYTES) {
                *sums.entry(name).or_insert(0) += count;
            }
        }
        Some(sums)
    }
}

/// The dataset of a target, if Weir mounted it.
fn dataset(target: &str) -> Option<String> {
    let target = Target::parse(target).ok()?;
    let mount = mount_of(target.path()?)?;
    (mount.kind == MOUNT_KIND).then_some(mount.source)
}

/// Bytes of clients' reads by source, bytes that clients wrote, and bytes that devices took, since the process opened the pool.
fn counters(sample: &Sample, protocol: Option<&str>) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let counts = |name: &str| protocol.map_or(name != "internal", |protocol| name == protocol);
    for totals in sample.operations.iter().filter(|totals| counts(&totals.protocol)) {
        for (source, bytes) in &totals.read_bytes.0 {
            *counters.entry(format!("read_bytes.{}", source.replace(' ', "_"))).or_insert(0) += bytes;
        }
        *counters.entry("written_bytes".to_owned()).or_insert(0) += totals.written_bytes;
    }
    for cause in &sample.written {
        *counters.entry(format!("{DEVICE_BYTES}{}", cause.content.replace(' ', "_"))).or_insert(0) += cause.bytes;
    }
    counters
}
