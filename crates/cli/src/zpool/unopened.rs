//! Pools that cannot be opened, as `zpool status` and `zpool list` show them: described by their labels, or, without any of their
//! devices, by the cache file.

use super::tree::{self, TreeStyle};
use super::wrapped::wrapped;
use crate::cache_file::CacheFile;
use crate::call::Call;
use crate::colors::{Colors, of_state};
use crate::failure::Failure;
use crate::writable::host;
use serde_json::{Map, Value};
use std::path::PathBuf;
use weir_admin::{FoundStates, OpenErrors, Problem, VdevFacts, VdevHealth, VdevStatus, problem_of_found};
use weir_pool::VdevConfig;
use weir_pool::dtls::{Dtls, all_by_labels};
use weir_pool::status::{VdevState, lacking, states};
use weir_pool::{assemble, scan, uberblocks};

/// A pool that cannot be opened.
pub struct UnopenedPool {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// Top-level vdevs without enough devices.
    missing: Vec<String>,
    /// The problem of these.
    problem: Option<Problem>,
    why: String,
    vdevs: VdevStatus,
}

/// Status, action and message id.
struct Advice {
    status: String,
    action: &'static str,
    problem: Option<Problem>,
}

impl UnopenedPool {
    /// Describes the pool with that GUID from the labels found in these places, or from the cache file; `None` if neither describes its
    /// vdevs.
    pub fn describe(call: &Call, paths: &[PathBuf], guid: u64, why: &str) -> Result<Option<Self>, Failure> {
        let machine = call.machine()?;
        let assembly = assemble(machine.block_on(scan(machine, paths))?);
        let Some(pool) = assembly.pools.values().find(|pool| pool.config.guid == guid) else {
            return Ok(Self::remembered(call, guid, why));
        };
        let Ok(tree) = pool.label_tree() else { return Ok(None) };
        let newest = uberblocks::ranked(pool, None).first().map(|uberblock| uberblock.txg).unwrap_or_default();
        let dtls = all_by_labels(&tree, &pool.devices, newest);
        let (_, all) = states(&tree, &|guid| pool.devices.contains_key(&guid), &dtls);
        let missing = lacking(&tree, &all);
        // Without missing devices, the contents of the devices are the cause.
        let state = if missing.is_empty() { VdevState::Faulted } else { VdevState::Unavail };
        let name = pool.config.name.clone();
        let open_errors = OpenErrors::of(machine, &tree, &all);
        let facts = VdevFacts { states: &all, dtls: &dtls, open_errors: &open_errors };
        let vdevs = VdevStatus::of_found(&name, state, &tree, facts);
        let unopened = open_errors.kinds();
        let found = FoundStates { health: state, all: &all, unopened, misses_writes: false };
        let problem = if missing.is_empty() { None } else { problem_of_found(pool, &tree, &found, host().id) };
        Ok(Some(UnopenedPool { name, guid, missing, problem, why: why.to_owned(), vdevs }))
    }

    /// The pool as the cache file describes it: none of its devices can be opened.
    fn remembered(call: &Call, guid: u64, why: &str) -> Option<Self> {
        let machine = call.machine().ok()?;
        let all = CacheFile::usual()?.configurations().ok()?;
        let (name, config) = all.into_iter().find(|(_, config)| config.get_u64("pool_guid") == Some(guid))?;
        let tree = VdevConfig::parse(config.get_list("vdev_tree")?).ok()?;
        let dtls = Dtls::new();
        let (_, all) = states(&tree, &|_| false, &dtls);
        let missing = lacking(&tree, &all);
        let open_errors = OpenErrors::of(machine, &tree, &all);
        let facts = VdevFacts { states: &all, dtls: &dtls, open_errors: &open_errors };
        let vdevs = VdevStatus::of_found(&name, VdevState::Unavail, &tree, facts);
        let problem = match open_errors.kinds().lacks_file {
            true => Problem::MissingDevicesBeyondRedundancy,
            false => Problem::MissingDisksBeyondRedundancy,
        };
        Some(UnopenedPool { name, guid, missing, problem: Some(problem), why: why.to_owned(), vdevs })
    }

    /// Health of the pool.
    pub fn health(&self) -> VdevHealth {
        self.vdevs.health
    }

    fn advice(&self) -> Advice {
        if let Some(problem) = self.problem {
            let missing = self.missing.join("; ");
            let status = format!("{} They are: {missing}.", problem.status());
            return Advice { status, action: problem.action(), problem: Some(problem) };
        }
        // The cause without the pool's name and the damaged block, which the error line names.
        let why = self.why.strip_prefix(&format!("pool '{}': ", self.name)).unwrap_or(&self.why);
        match why.split_once(": object set ") {
            Some((why, _)) => Advice {
                status: format!("{} Cause: {why}.", Problem::DamagedPool.status()),
                action: Problem::DamagedPool.action(),
                problem: Some(Problem::DamagedPool),
            },
            None => Advice {
                status: format!("The pool cannot be opened: {why}."),
                action: "Correct the cause, and repeat the command.",
                problem: None,
            },
        }
    }

    /// Status as text.
    pub fn text(&self, colors: Colors) -> String {
        let Advice { status, action, problem } = self.advice();
        let status = wrapped("status", &status);
        let action = wrapped("action", action);
        let see = problem.and_then(Problem::page).map_or_else(String::new, |page| format!("   see: {page}\n"));
        let rows = tree::lines(&self.vdevs, TreeStyle::default(), &|_| Vec::new());
        let tree = tree::text(&rows, &["READ", "WRITE", "CKSUM"], colors, |_| vec!["0".to_owned(); 3]);
        let state = self.vdevs.health.to_string();
        let state = colors.paint(of_state(&state), &state);
        colors.labels(&format!("  pool: {}\n state: {state}\n{status}{action}{see}config:\n\n{tree}", self.name))
    }

    /// Status as JSON.
    pub fn json(&self) -> Map<String, Value> {
        let Advice { status, action, problem } = self.advice();
        let mut fields = vec![
            ("name", self.name.clone()),
            ("state", self.vdevs.health.to_string()),
            ("pool_guid", self.guid.to_string()),
            ("status", status),
            ("action", action.to_owned()),
        ];
        fields.extend(problem.and_then(Problem::id).map(|id| ("msgid", id.to_owned())));
        fields.extend(problem.and_then(Problem::page).map(|page| ("moreinfo", page)));
        fields.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect()
    }
}
