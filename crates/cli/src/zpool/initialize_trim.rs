//! `zpool initialize`, `zpool trim`: passes over the free space of devices.

use super::attach::opened;
use super::target;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::{DatasetDirs, PoolDirs};
use crate::pools;
use crate::size;
use clap::Parser;
use std::sync::Arc;
use weir_engine::Engine;
use weir_engine::initialize_trim::start;
use weir_pool::VdevConfig;
use weir_pool::initialize_trim::LeafActivity;

/// Write a pattern to all free space of devices, so that thin devices allocate it.
#[derive(Debug, Parser)]
#[command(
    name = "zpool initialize",
    override_usage = "zpool initialize [-c | -s | -u] [-w] [-d DIR]… -a | POOL [DEVICE]…"
)]
pub struct InitializeArgs {
    /// Initialize all pools
    #[arg(short, long)]
    all: bool,
    /// Cancel
    #[arg(short, long)]
    cancel: bool,
    /// Suspend; 'zpool initialize' goes on
    #[arg(short, long)]
    suspend: bool,
    /// Forget that the devices were initialized
    #[arg(short, long)]
    uninit: bool,
    /// Wait until the devices are initialized
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool, and devices; default: all of the pool
    #[arg(value_name = "POOL [DEVICE]…")]
    words: Vec<String>,
}

/// Tell devices which space is free.
#[derive(Debug, Parser)]
#[command(
    name = "zpool trim",
    override_usage = "zpool trim [-d] [-r RATE] [-c | -s] [-w] [--dir DIR]… -a | POOL [DEVICE]…"
)]
pub struct TrimArgs {
    /// Trim all pools
    #[arg(short, long)]
    all: bool,
    /// Refused: secure TRIM, after which no copy of the contents is left on the device
    #[arg(short = 'd', long)]
    secure: bool,
    /// Maximum rate in bytes per second for each device
    #[arg(short, long, value_name = "RATE")]
    rate: Option<String>,
    /// Cancel
    #[arg(short, long)]
    cancel: bool,
    /// Suspend; 'zpool trim' goes on
    #[arg(short, long)]
    suspend: bool,
    /// Wait until the devices are trimmed
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    places: DatasetDirs,
    /// Pool, and devices; default: all of the pool
    #[arg(value_name = "POOL [DEVICE]…")]
    words: Vec<String>,
}

/// Step that a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start { rate: u64 },
    Cancel,
    Suspend,
    Forget,
}

/// A command, parsed.
struct FreeSpacePass {
    kind: LeafActivity,
    verb: &'static str,
    step: Step,
    waits: bool,
}

/// Runs `zpool initialize`.
pub fn initialize(call: &Call, args: &InitializeArgs) -> Result<u8, Failure> {
    let step = match (args.cancel, args.suspend, args.uninit) {
        (false, false, false) => Step::Start { rate: 0 },
        (true, false, false) => Step::Cancel,
        (false, true, false) => Step::Suspend,
        (false, false, true) => Step::Forget,
        _ => return Err(InitializeArgs::misused("-c, -s and -u cannot be combined")),
    };
    if args.wait && !matches!(step, Step::Start { .. }) {
        return Err(InitializeArgs::misused("-w cannot be used with -c, -s or -u"));
    }
    let pass = FreeSpacePass { kind: LeafActivity::Initialize, verb: "initialize", step, waits: args.wait };
    pass.run::<InitializeArgs>(call, &args.places, args.all, &args.words)
}

/// Runs `zpool trim`.
pub fn trim(call: &Call, args: &TrimArgs) -> Result<u8, Failure> {
    let rate = match args.rate.as_deref().map(size::parse) {
        None => 0,
        Some(Some(rate)) if rate > 0 => rate,
        Some(_) => return Err(TrimArgs::misused("invalid value for rate: it is a size, such as 10M, for one second")),
    };
    let step = match (args.cancel, args.suspend) {
        (false, false) => Step::Start { rate },
        (true, false) => Step::Cancel,
        (false, true) => Step::Suspend,
        (true, true) => return Err(TrimArgs::misused("-c and -s cannot be combined")),
    };
    if args.wait && !matches!(step, Step::Start { .. }) {
        return Err(TrimArgs::misused("-w cannot be used with -c or -s"));
    }
    if args.secure {
        return Err(Failure::failed("cannot trim: secure TRIM is not supported"));
    }
    let places = PoolDirs { dirs: args.places.dirs.clone() };
    let pass = FreeSpacePass { kind: LeafActivity::Trim, verb: "trim", step, waits: args.wait };
    pass.run::<TrimArgs>(call, &places, args.all, &args.words)
}

impl FreeSpacePass {
    fn run<C: CommandLine>(&self, call: &Call, places: &PoolDirs, all: bool, words: &[String]) -> Result<u8, Failure> {
        match (all, words) {
            (true, []) => {
                let mut names = pools::names(call, &pools::search(call, &places.dirs)?)?;
                names.extend(call.served_pools().into_iter().map(|pool| pool.engine.name()));
                names.sort();
                names.dedup();
                names.iter().try_for_each(|pool| self.on_pool(call, places, pool, &[]))?;
            }
            (true, _) => return Err(C::misused("-a cannot be combined with individual pools or vdevs")),
            (false, []) => return Err(C::misused("missing pool name argument")),
            (false, [pool, devices @ ..]) => self.on_pool(call, places, pool, devices)?,
        }
        Ok(0)
    }

    /// A pool that no process has open is initialized or trimmed within the command.
    fn on_pool(&self, call: &Call, places: &PoolDirs, pool: &str, devices: &[String]) -> Result<(), Failure> {
        let writable = opened(call, places, pool)?;
        let is_served = writable.served_pool().is_some();
        writable.with_pool(|writable| {
            let engine = &writable.engine;
            writable.machine.block_on(async {
                let leaves = self.leaves(call, engine, devices)?;
                let cannot = |error: weir_pool::PoolError| {
                    let what = if devices.is_empty() { pool.to_owned() } else { devices.join(" ") };
                    Failure::failed(format!("cannot {} {what}: {error}", self.verb))
                };
                match self.step {
                    Step::Start { rate } => start(engine, self.kind, &leaves, rate).await,
                    Step::Cancel => engine.initialize_trim().stop(self.kind, &leaves, false).await,
                    Step::Suspend => engine.initialize_trim().stop(self.kind, &leaves, true).await,
                    Step::Forget => engine.initialize_trim().forget(self.kind, &leaves).await,
                }
                .map_err(cannot)?;
                engine.log_command(call.line(), call.caller.ids.0)?;
                if self.waits || !is_served {
                    self.wait(call, engine, &leaves).await?;
                }
                Ok(())
            })
        })
    }

    /// Waits for the passes that were started. A caller that is gone ends the wait, not the passes.
    async fn wait(&self, call: &Call, engine: &Arc<Engine>, leaves: &[u64]) -> Result<(), Failure> {
        if !matches!(self.step, Step::Start { .. }) {
            return Ok(());
        }
        let interval = std::time::Duration::from_millis(50);
        while leaves.iter().any(|leaf| engine.initialize_trim().running(self.kind).contains(leaf)) {
            call.waits()?;
            if call.is_gone() {
                outln!(call, "it goes on");
                return Ok(());
            }
            if engine.events.is_ended() {
                return Err(Failure::failed("the pool is closed"));
            }
            engine.machine.clock.sleep(interval).await;
        }
        Ok(())
    }

    /// The devices that are named, or all that are in service.
    fn leaves(&self, call: &Call, engine: &Engine, devices: &[String]) -> Result<Vec<u64>, Failure> {
        if devices.is_empty() {
            let root =
                VdevConfig::parse(&engine.shown().config.root).map_err(|error| Failure::failed(error.to_string()))?;
            let tree = engine.cache.blocks().tree();
            let in_service = |leaf: &&VdevConfig| tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.is_in_service());
            return Ok(root.leaves().into_iter().filter(in_service).map(|leaf| leaf.guid).collect());
        }
        let find = |device: &String| {
            let cannot = |why| Failure::failed(format!("cannot {} '{device}': {why}", self.verb));
            target::leaf(call, engine, device, "invalid argument for this pool operation")
                .map(|leaf| leaf.guid)
                .map_err(cannot)
        };
        devices.iter().map(find).collect()
    }
}
