//! Pools that cannot be opened, as `zpool status` shows them: described by their labels alone.

use super::tree::{self, VdevRow};
use crate::call::Call;
use crate::failure::Failure;
use serde_json::{Map, Value};
use std::path::PathBuf;
use weir_pool::dtls::all_by_labels;
use weir_pool::status::{VdevState, lacking, states};
use weir_pool::{assemble, scan, uberblocks};

/// A pool that cannot be opened.
pub struct UnopenedPool {
    /// Name.
    pub name: String,
    guid: u64,
    state: VdevState,
    /// Top-level vdevs without enough devices.
    missing: Vec<String>,
    why: String,
    rows: Vec<VdevRow>,
}

/// Status, action and message id.
struct Advice {
    status: String,
    action: &'static str,
    id: Option<&'static str>,
}

impl UnopenedPool {
    /// Describes the pool with that GUID from the labels found in these places; `None` if its labels do not describe
    /// its vdevs.
    pub fn describe(call: &Call, paths: &[PathBuf], guid: u64, why: &str) -> Result<Option<Self>, Failure> {
        let machine = call.machine()?;
        let assembly = assemble(machine.block_on(scan(machine, paths))?);
        let Some(pool) = assembly.pools.values().find(|pool| pool.config.guid == guid) else { return Ok(None) };
        let Ok(tree) = pool.label_tree() else { return Ok(None) };
        let newest = uberblocks::ranked(pool, None).first().map(|uberblock| uberblock.txg).unwrap_or_default();
        let dtls = all_by_labels(&tree, &pool.devices, newest);
        let (_, all) = states(&tree, &|guid| pool.devices.contains_key(&guid), &dtls);
        let missing = lacking(&tree, &all);
        // Without missing devices, the contents of the devices are the cause.
        let state = if missing.is_empty() { VdevState::Faulted } else { VdevState::Unavail };
        let name = pool.config.name.clone();
        let rows = tree::lines(&name, state, &tree, &all, &dtls);
        Ok(Some(UnopenedPool { name, guid, state, missing, why: why.to_owned(), rows }))
    }

    fn advice(&self) -> Advice {
        if !self.missing.is_empty() {
            return Advice {
                status: format!("Too many devices are missing: {}.", self.missing.join("; ")),
                action: "Bring the missing devices back.",
                id: Some("ZFS-8000-3C"),
            };
        }
        // The cause without the pool's name and the damaged block, which the error line names.
        let why = self.why.strip_prefix(&format!("pool '{}': ", self.name)).unwrap_or(&self.why);
        match why.split_once(": object set ") {
            Some((why, _)) => Advice {
                status: format!("The metadata of the pool is damaged: {why}."),
                action: "Try 'zpool import -F', which goes back to an earlier txg, or restore the pool from a backup.",
                id: Some("ZFS-8000-72"),
            },
            None => Advice {
                status: format!("The pool cannot be opened: {why}."),
                action: "Correct the cause, and repeat the command.",
                id: None,
            },
        }
    }

    /// Status as text.
    pub fn text(&self) -> String {
        let Advice { status, action, id } = self.advice();
        let see = id.map_or_else(String::new, |id| format!("   see: {}\n", super::status::more_about(id)));
        let tree = tree::text(&self.rows, &["READ", "WRITE", "CKSUM"], |guid| match guid {
            0 => Vec::new(),
            _ => vec!["0".to_owned(); 3],
        });
        format!(
            "  pool: {}\n state: {}\nstatus: {status}\naction: {action}\n{see}config:\n\n{tree}",
            self.name, self.state,
        )
    }

    /// Status as JSON.
    pub fn json(&self) -> Map<String, Value> {
        let Advice { status, action, id } = self.advice();
        let mut fields = vec![
            ("name", self.name.clone()),
            ("state", self.state.to_string()),
            ("pool_guid", self.guid.to_string()),
            ("status", status),
            ("action", action.to_owned()),
        ];
        if let Some(id) = id {
            fields.push(("msgid", id.to_owned()));
            fields.push(("moreinfo", super::status::more_about(id)));
        }
        fields.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect()
    }
}
