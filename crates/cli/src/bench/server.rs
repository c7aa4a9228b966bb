//! The server of a target: a Weir on this machine whose file system or export is measured.

use crate::analytics::Watched;
use crate::call::Call;
use crate::options::PoolDirs;
use std::collections::BTreeMap;
use weir_analytics::Sample;
use weir_lab::environment::mount_of;
use weir_lab::target::Target;

/// Kind of the file systems that Weir mounts.
const MOUNT_KIND: &str = "fuse.weir";

/// Pool whose counters are read beside the client's.
pub struct Server {
    watched: Option<(Call, Watched)>,
}

impl Server {
    /// The process that serves a target; without one no counters are read.
    pub fn find(target: &str) -> Self {
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
        Self { watched }
    }

    /// No server.
    pub fn none() -> Self {
        Self { watched: None }
    }

    /// Facts about the dataset of a target.
    pub fn facts(target: &str) -> BTreeMap<String, String> {
        dataset(target).map(|dataset| BTreeMap::from([("dataset".to_owned(), dataset)])).unwrap_or_default()
    }

    /// Present counters by name; `None` without a server, or if it does not answer.
    pub fn counters(&mut self) -> Option<BTreeMap<String, u64>> {
        let (call, watched) = self.watched.as_ref()?;
        watched.samples(call).ok()?.first().map(counters)
    }
}

/// The dataset of a target, if Weir mounted it.
fn dataset(target: &str) -> Option<String> {
    let target = Target::parse(target).ok()?;
    let mount = mount_of(target.path()?)?;
    (mount.kind == MOUNT_KIND).then_some(mount.source)
}

/// Bytes of clients' reads by source, bytes that clients wrote, and bytes that devices took, since the process opened the pool.
fn counters(sample: &Sample) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for totals in sample.operations.iter().filter(|totals| totals.protocol != "internal") {
        for (source, bytes) in &totals.read_bytes.0 {
            *counters.entry(format!("read_bytes.{}", source.replace(' ', "_"))).or_insert(0) += bytes;
        }
        *counters.entry("written_bytes".to_owned()).or_insert(0) += totals.written_bytes;
    }
    for cause in &sample.written {
        *counters.entry(format!("device_bytes.{}", cause.content.replace(' ', "_"))).or_insert(0) += cause.bytes;
    }
    counters
}
