//! `zpool split`: a new pool of one device of each mirror.
//!
//! Source of the messages: OpenZFS `cmd/zpool/zpool_main.c` (`zpool_do_split`), `lib/libzfs/libzfs_pool.c`
//! (`zpool_vdev_split`).

use super::attach::opened;
use super::import::{self, ImportArgs};
use super::set;
use super::target;
use super::tree::NameStyle;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::mounts::MountRequest;
use crate::options::{PoolDirs, pools_once};
use crate::pools::{names, search};
use crate::writable::host;
use clap::Parser;
use std::ffi::OsString;
use weir_engine::split::{SplitPlan, SplitRequest};
use weir_engine::{Engine, PoolProperty};
use weir_pool::{Class, VdevConfig};

/// Least value of the property `ashift` but 0, which is none.
const MIN_ASHIFT: u64 = 9;
/// Greatest value of the property `ashift`.
const MAX_ASHIFT: u64 = 16;

/// Split a pool of mirrors into two.
///
/// One device of each mirror becomes a new pool with the same contents: the last one, or the one that is named. The new pool is
/// exported, unless -R is given.
#[derive(Debug, Parser)]
#[command(
    name = "zpool split",
    override_usage = "zpool split [-gLlnP] [-o PROPERTY=VALUE]… [-R ROOT] [-d DIR]… POOL NEWPOOL [DEVICE]…"
)]
pub struct SplitArgs {
    /// With -n: GUIDs instead of names
    #[arg(short)]
    guids: bool,
    /// With -n: symbolic links resolved
    #[arg(short = 'L')]
    resolved: bool,
    /// With -n: whole paths
    #[arg(short = 'P')]
    full: bool,
    /// Show the layout of the new pool, and change nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -R: ask for the keys of encrypted datasets
    #[arg(short = 'l')]
    load_keys: bool,
    /// Property of the new pool; with -R also options of its mounts: ro, rw, nodev, nosuid, noexec. May be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE|OPTION,…")]
    properties: Vec<String>,
    /// Import the new pool, and mount its file systems below ROOT
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool, name of the new pool, and devices
    #[arg(value_name = "POOL NEWPOOL [DEVICE]")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &SplitArgs) -> Result<u8, Failure> {
    let (pool, new, devices) = match args.words.as_slice() {
        [] => return Err(SplitArgs::misused("Missing pool name")),
        [_] => return Err(SplitArgs::misused("Missing new pool name")),
        [pool, new, devices @ ..] => (pool, new, devices),
    };
    if args.altroot.is_none() && args.load_keys {
        return Err(SplitArgs::misused("loading keys is only valid when importing the pool"));
    }
    let doing = format!("Unable to split {pool}");
    let cannot = |why: String| Failure::failed(format!("{doing}: {why}"));
    pools_once(&args.properties).map_err(|why| SplitArgs::misused(&why))?;
    let pairs = args.properties.iter().filter_map(|text| text.split_once('='));
    let properties = pairs.map(property).collect::<Result<Vec<_>, _>>()?;
    if args.altroot.is_none() && !args.mount_options().is_empty() {
        return Err(SplitArgs::misused("setting mntopts is only valid when importing the pool"));
    }
    MountRequest::of_options(&args.mount_options()).map_err(|why| SplitArgs::misused(&why))?;
    let mut known = names(call, &search(call, &args.places.dirs)?)?;
    known.extend(call.served_pools().into_iter().map(|served| served.engine.name()));
    if known.contains(new) {
        return Err(cannot("pool already exists".into()));
    }
    opened(call, &args.places, pool)?.with(async |engine| {
        let why = "Device list must include at most one disk from each mirror";
        let mut wanted = Vec::new();
        for device in devices {
            wanted.push(target::leaf(call, engine, device, why).map_err(cannot)?.guid);
        }
        let plan = engine.pool_splits().plan(&wanted).map_err(|error| cannot(error.to_string()))?;
        if args.dry_run {
            call.print(format_args!("{}", layout(engine, &plan, new, args)?));
            return Ok(());
        }
        let command = Some((call.line(), call.caller.ids.0));
        let request = SplitRequest { name: new.clone(), devices: wanted, properties, host: host(), command };
        engine.pool_splits().split(&request).await.map_err(|error| cannot(error.to_string()))?;
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    match &args.altroot {
        Some(root) if !args.dry_run => import_new(call, args, new, root),
        _ => Ok(0),
    }
}

impl SplitArgs {
    fn mount_options(&self) -> Vec<String> {
        self.properties.iter().filter(|text| !text.contains('=')).cloned().collect()
    }
}

fn property((name, value): (&str, &str)) -> Result<PoolProperty, Failure> {
    if name == "ashift" {
        // Of devices that are added to the new pool later: those that it has keep theirs.
        let is_valid = |shift: &u64| *shift == 0 || (MIN_ASHIFT..=MAX_ASHIFT).contains(shift);
        let number = value.parse().ok().filter(is_valid).ok_or_else(|| {
            Failure::failed(format!("invalid 'ashift={value}' property: only values between 9 and 16 are allowed"))
        })?;
        return Ok(PoolProperty::Number { property: name.to_owned(), number });
    }
    set::stored(name, value).map_err(Failure::failed)
}

/// The layout of the new pool, as OpenZFS shows it.
fn layout(engine: &Engine, plan: &SplitPlan, new: &str, args: &SplitArgs) -> Result<String, Failure> {
    let root = VdevConfig::parse(&engine.shown().config.root).map_err(|error| Failure::failed(error.to_string()))?;
    let style = NameStyle { guids: args.guids, resolved: args.resolved, full: args.full };
    let mut out = format!("would create '{new}' with the following layout:\n\n\t{new}\n");
    for (class, heading) in [(Class::Normal, None), (Class::Dedup, Some("dedup")), (Class::Special, Some("special"))] {
        let of_class = |top: &&VdevConfig| engine.cache.blocks().metaslabs().class(top.id as u32) == Some(class);
        let leaves = root.children.iter().filter(of_class).flat_map(VdevConfig::leaves);
        let taken: Vec<_> = leaves.filter(|leaf| plan.leaves.contains(&leaf.guid)).collect();
        if let Some(heading) = heading.filter(|_| !taken.is_empty()) {
            out.push_str(&format!("\t{heading}\n"));
        }
        out.extend(taken.into_iter().map(|leaf| format!("\t  {}\n", style.of(leaf))));
    }
    Ok(out)
}

fn import_new(call: &Call, args: &SplitArgs, new: &str, root: &str) -> Result<u8, Failure> {
    let mut words: Vec<OsString> = vec!["zpool import".into(), "-R".into(), root.into()];
    if args.load_keys {
        words.push("-l".into());
    }
    for options in args.mount_options() {
        words.extend([OsString::from("-o"), options.into()]);
    }
    for dir in &args.places.dirs {
        words.extend([OsString::from("-d"), dir.clone()]);
    }
    words.push(new.into());
    let import = ImportArgs::try_parse_from(words).map_err(|error| Failure::failed(error.to_string()))?;
    import::run(call, &import).map_err(|failure| {
        let line = format!("Split was successful, but the new pool is not imported: {failure}");
        failure.saying(line)
    })
}
