//! `weir zpool`: the state of pools, and changes to them as a whole.
//!
//! Every command scans the given directories and devices for its pools. If a process has a pool open, that process runs
//! the command ([`crate::admin`]); otherwise the command opens the pool and closes it before it ends.

mod add;
mod attach;
mod checkpoint;
mod claim;
mod clear;
mod create;
mod dedup;
mod devices;
mod events;
mod get;
mod history;
pub mod holder;
mod import;
mod initialize_trim;
mod iostat;
mod iostat_text;
mod l2arc;
mod lifecycle;
mod list;
mod list_vdevs;
mod offline;
pub mod opened;
mod prefetch;
mod rebuild_text;
mod reguid;
mod remove;
pub mod repeat;
mod scrub;
mod set;
mod split;
mod status;
mod status_text;
mod target;
mod tree;
mod unopened;
mod upgrade;
mod vdev_properties;
mod vdev_scripts;
mod vdevs;
mod wait;
mod wrapped;

pub use dedup::text as dedup_text;
#[cfg(test)]
pub use set::wanted as pool_change;

use crate::call::Call;
use crate::failure::Failure;
use crate::json;
use clap::{Parser, Subcommand};

/// Administer pools.
#[derive(Debug, Parser)]
#[command(name = "zpool", version, override_usage = "zpool command args ...")]
pub struct ZpoolArgs {
    #[command(subcommand)]
    command: ZpoolCommand,
}

#[derive(Debug, Subcommand)]
enum ZpoolCommand {
    Add(add::AddArgs),
    Attach(attach::AttachArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Clear(clear::ClearArgs),
    Create(create::CreateArgs),
    Destroy(lifecycle::DestroyArgs),
    Detach(attach::DetachArgs),
    Events(events::EventsArgs),
    Export(lifecycle::ExportArgs),
    Get(get::GetArgs),
    History(history::HistoryArgs),
    Import(import::ImportArgs),
    Initialize(initialize_trim::InitializeArgs),
    Iostat(iostat::IostatArgs),
    Labelclear(lifecycle::LabelclearArgs),
    List(list::ListArgs),
    Offline(offline::OfflineArgs),
    Online(offline::OnlineArgs),
    Prefetch(prefetch::PrefetchArgs),
    Reopen(offline::ReopenArgs),
    Reguid(reguid::ReguidArgs),
    Remove(remove::RemoveArgs),
    Replace(attach::ReplaceArgs),
    Resilver(scrub::ResilverArgs),
    Scrub(scrub::ScrubArgs),
    Set(set::SetArgs),
    Split(split::SplitArgs),
    Status(status::StatusArgs),
    Sync(lifecycle::SyncArgs),
    Trim(initialize_trim::TrimArgs),
    Upgrade(upgrade::UpgradeArgs),
    Wait(wait::WaitArgs),
    Version(ZpoolVersionArgs),
}

/// Show the version of Weir's zpool.
#[derive(Debug, Parser)]
#[command(name = "zpool version", override_usage = "zpool version [-j]")]
struct ZpoolVersionArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
}

/// Runs the command.
pub fn run(call: &Call, args: &ZpoolArgs) -> Result<u8, Failure> {
    match &args.command {
        ZpoolCommand::Add(args) => add::run(call, args),
        ZpoolCommand::Attach(args) => attach::attach(call, args),
        ZpoolCommand::Checkpoint(args) => checkpoint::run(call, args),
        ZpoolCommand::Clear(args) => clear::run(call, args),
        ZpoolCommand::Create(args) => create::run(call, args),
        ZpoolCommand::Destroy(args) => lifecycle::destroy(call, args),
        ZpoolCommand::Detach(args) => attach::detach(call, args),
        ZpoolCommand::Events(args) => events::run(call, args),
        ZpoolCommand::Export(args) => lifecycle::export(call, args),
        ZpoolCommand::Get(args) => get::run(call, args),
        ZpoolCommand::History(args) => history::run(call, args),
        ZpoolCommand::Import(args) => import::run(call, args),
        ZpoolCommand::Iostat(args) => iostat::run(call, args),
        ZpoolCommand::Labelclear(args) => lifecycle::labelclear(call, args),
        ZpoolCommand::List(args) => list::run(call, args),
        ZpoolCommand::Offline(args) => offline::offline(call, args),
        ZpoolCommand::Online(args) => offline::online(call, args),
        ZpoolCommand::Prefetch(args) => prefetch::run(call, args),
        ZpoolCommand::Reopen(args) => offline::reopen(call, args),
        ZpoolCommand::Reguid(args) => reguid::run(call, args),
        ZpoolCommand::Remove(args) => remove::run(call, args),
        ZpoolCommand::Replace(args) => attach::replace(call, args),
        ZpoolCommand::Resilver(args) => scrub::resilver(call, args),
        ZpoolCommand::Scrub(args) => scrub::run(call, args),
        ZpoolCommand::Set(args) => set::run(call, args),
        ZpoolCommand::Split(args) => split::run(call, args),
        ZpoolCommand::Status(args) => status::run(call, args),
        ZpoolCommand::Sync(args) => lifecycle::sync(call, args),
        ZpoolCommand::Initialize(args) => initialize_trim::initialize(call, args),
        ZpoolCommand::Trim(args) => initialize_trim::trim(call, args),
        ZpoolCommand::Upgrade(args) => upgrade::run(call, args),
        ZpoolCommand::Wait(args) => wait::run(call, args),
        ZpoolCommand::Version(args) => Ok(json::version(call, "zpool version", args.json)),
    }
}
