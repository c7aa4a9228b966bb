//! Pools opened for changes: for one command, or for as long as they are served.
//!
//! A command that finds its pool open in this process uses it as it is. Otherwise it locks the devices ([`crate::locks`]),
//! opens the pool, does its work in transaction groups, and closes: a pool that was in use is left in use by this machine,
//! so the next command needs no `-f`; one that was exported is exported again.

use crate::admin::Held;
use crate::call::{Call, Whose};
use crate::failure::Failure;
use crate::limits::Limits;
use crate::locks::{Locks, lock};
use std::path::PathBuf;
use std::sync::Arc;
use weir_dsl::sync_tasks::DslError;
use weir_engine::{DirtyLimits, DslReadGuard, Engine, Host, ImportOptions};
use weir_machine::{Machine, Request};
use weir_pool::assemble::state;
use weir_pool::{FoundPool, OpenOptions, PoolError, assemble, scan};

/// A pool opened for changes.
pub struct Written {
    /// What it runs on.
    pub machine: Machine,
    /// The pool.
    pub engine: Arc<Engine>,
    hold: Hold,
}

/// Who has the pool.
enum Hold {
    /// This command, for itself.
    Own { exported_before: bool, locks: Locks },
    /// The process, for long.
    Process(Arc<Held>),
}

/// How a pool is to be opened.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Folders and devices to look at.
    pub search: Vec<PathBuf>,
    /// Its name or GUID.
    pub pool: String,
    /// Keys of encrypted datasets.
    pub keys: Vec<(String, Vec<u8>)>,
    /// Open it though another machine used it last, or it was destroyed.
    pub force: bool,
    /// Take an older transaction group if the last cannot be read.
    pub rewind: bool,
    /// Give up what intent logs on missing devices hold.
    pub without_logs: bool,
    /// Its new name.
    pub new_name: Option<String>,
    /// The memory that it may take; `None` for a command that has it open for a moment.
    pub limits: Option<Limits>,
}

/// The pool of that name or GUID among those found; one that was destroyed only if `destroyed`.
pub fn find<'a>(
    pools: impl Iterator<Item = &'a FoundPool>,
    name: &str,
    destroyed: bool,
) -> Result<&'a FoundPool, Failure> {
    let alive = |p: &&FoundPool| destroyed == (p.config.state == state::DESTROYED);
    let mut found = pools.filter(alive).filter(|p| p.config.name == name || p.config.guid.to_string() == name);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Failure::failed(format!("cannot open '{name}': no such pool"))),
        (Some(_), Some(_)) => {
            Err(Failure::failed(format!("cannot open '{name}': more than one pool has that name; use its number")))
        }
    }
}

impl Written {
    /// The pool as a command needs it: as this process has it open, or opened for the command.
    ///
    /// # Errors
    /// [`Failure::elsewhere`] if another process is to be asked.
    pub fn of_call(call: &Call, wish: &Wish) -> Result<Self, Failure> {
        let machine = call.machine()?;
        let assembly = assemble(machine.block_on(scan(machine, &wish.search))?);
        let whose = find(assembly.pools.values(), &wish.pool, false).map_or(Whose::Free, |found| call.whose(found));
        drop(assembly);
        match whose {
            Whose::Theirs(elsewhere) => Err(Failure::elsewhere(&wish.pool, elsewhere)),
            Whose::Ours(held) => {
                let (machine, engine) = (held.machine.clone(), held.engine.clone());
                Ok(Written { machine, engine, hold: Hold::Process(held) })
            }
            Whose::Free => {
                let written = Self::open(machine.clone(), wish)?;
                call.begin();
                Ok(written)
            }
        }
    }

    /// The process that has it open for long, if this one does.
    pub fn held(&self) -> Option<&Arc<Held>> {
        match &self.hold {
            Hold::Own { .. } => None,
            Hold::Process(held) => Some(held),
        }
    }

    /// What is locked for this command alone.
    pub fn locks(&self) -> Option<&Locks> {
        match &self.hold {
            Hold::Own { locks, .. } => Some(locks),
            Hold::Process(_) => None,
        }
    }

    /// Locks the devices of a pool and opens it.
    pub fn open(machine: Machine, wish: &Wish) -> Result<Self, Failure> {
        let assembly = assemble(machine.block_on(scan(&machine, &wish.search))?);
        let destroyed = wish.force && find(assembly.pools.values(), &wish.pool, false).is_err();
        let found = find(assembly.pools.values(), &wish.pool, destroyed)?;
        let locks = lock(&wish.pool, found.leaves().map(|device| device.path.clone()).collect())?;
        let exported_before = found.config.state == state::EXPORTED;
        let mut open = OpenOptions::new(wish.search.clone(), found.config.guid.to_string());
        open.keys = wish.keys.clone();
        if wish.rewind {
            open.rewind = weir_pool::Rewind::Auto;
        }
        drop(assembly);
        let limits = wish.limits.clone().unwrap_or_else(Limits::of_command);
        open.arc_bytes = limits.arc_bytes;
        let mut options = ImportOptions::new(open);
        options.dirty = DirtyLimits::new(limits.dirty_bytes);
        options.host = host();
        options.force = wish.force;
        options.without_logs = wish.without_logs;
        options.new_name = wish.new_name.clone();
        let cannot = |error: PoolError| Failure::failed(format!("cannot open '{}': {error}", wish.pool));
        let engine = machine.block_on(Engine::import(&machine, &options)).map_err(cannot)?;
        Ok(Written { machine, engine, hold: Hold::Own { exported_before, locks } })
    }

    /// A pool that was just made, on devices that are locked.
    pub fn made(machine: Machine, engine: Arc<Engine>, locks: Locks) -> Self {
        Written { machine, engine, hold: Hold::Own { exported_before: false, locks } }
    }

    /// Does something with it, then closes it. What went wrong first is told.
    pub fn with<T>(self, work: impl AsyncFnOnce(&Engine) -> Result<T, Failure>) -> Result<T, Failure> {
        let done = self.machine.block_on(work(&self.engine));
        let closed = self.close();
        let value = done?;
        closed.map(|()| value)
    }

    /// Closes it, as it was before; one that the process has open shows what was done, and stays open.
    pub fn close(self) -> Result<(), Failure> {
        let closed = match &self.hold {
            Hold::Process(held) => return self.machine.block_on(held.renew()),
            Hold::Own { exported_before: true, .. } => self.machine.block_on(self.engine.export()),
            Hold::Own { exported_before: false, .. } => self.machine.block_on(self.engine.stop()),
        };
        Ok(closed?)
    }

    /// Exports it, or destroys it. If the process has it open, that ends.
    pub fn end(self, destroyed: bool, force: bool) -> Result<(), String> {
        if let Hold::Process(held) = &self.hold {
            if !force && held.is_used() {
                return Err("pool is busy: clients use it (-f ends that)".into());
            }
            return self.machine.block_on(held.end(destroyed));
        }
        let done = match destroyed {
            true => self.machine.block_on(self.engine.destroy()),
            false => self.machine.block_on(self.engine.export()),
        };
        done.map_err(|error| error.to_string())
    }

    /// Leaves it in use when it is closed, also if it was exported before.
    pub fn stays(mut self) -> Self {
        if let Hold::Own { exported_before, .. } = &mut self.hold {
            *exported_before = false;
        }
        self
    }
}

/// This machine, as labels name it: the number that OpenZFS would use where it is set, else one made from the machine's
/// own identity, so that it is the same tomorrow.
pub fn host() -> Host {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    Host { id: host_id(), name }
}

fn host_id() -> u64 {
    let module = std::fs::read_to_string("/sys/module/spl/parameters/spl_hostid").ok();
    let of_module = module.and_then(|text| text.trim().parse::<u64>().ok()).filter(|id| *id != 0);
    let of_file = || {
        let bytes = std::fs::read("/etc/hostid").ok()?;
        bytes.first_chunk::<4>().map(|bytes| u64::from(u32::from_le_bytes(*bytes))).filter(|id| *id != 0)
    };
    let of_machine = || {
        let text = std::fs::read_to_string("/etc/machine-id").ok()?;
        u64::from_str_radix(text.trim().get(..8)?, 16).ok().filter(|id| *id != 0)
    };
    of_module.or_else(of_file).or_else(of_machine).unwrap_or(0)
}

/// The data sets. No group syncs while they are looked at: what changes them is asked for afterwards.
pub async fn dsl(engine: &Engine, rq: &Request) -> Result<DslReadGuard, Failure> {
    Ok(engine.dsl(rq).await?)
}

/// Words why a change did not happen: `cannot destroy 'p/x': dataset is busy`.
pub fn refused(doing: &str, error: PoolError) -> Failure {
    let why = match &error {
        PoolError::Dsl(change) => reason(change),
        other => other.to_string(),
    };
    Failure::failed(format!("{doing}: {why}"))
}

fn reason(error: &DslError) -> String {
    match error {
        DslError::Object(error) => error.to_string(),
        DslError::Missing { .. } => "dataset does not exist".into(),
        DslError::Exists { .. } => "dataset already exists".into(),
        DslError::NoParent { .. } => "parent does not exist".into(),
        DslError::Name { why, .. } => format!("invalid name: {why}"),
        DslError::Kind { why, .. } | DslError::Space { why, .. } | DslError::Key { why, .. } => (*why).to_owned(),
        DslError::Busy { why, .. } => format!("dataset is busy: {why}"),
        DslError::HasDependents { what, dependents, .. } => format!("{what} exist\n{}", dependents.join("\n")),
        DslError::Property { property, why, .. } => format!("'{property}' {why}"),
        DslError::Feature { feature, .. } => {
            format!("pool must be upgraded: feature@{feature} is not enabled")
        }
    }
}
