//! `weir zfs`: datasets and their properties.

mod allow;
mod create;
mod destroy;
mod diff;
mod get;
mod holds;
pub mod identity;
mod keys;
mod list;
pub mod mount;
mod mount_helper;
mod program;
mod project;
mod property_list;
mod receive;
mod redact;
mod rewrite;
mod select;
mod send;
mod set;
mod snapshot;
mod sort;
mod target;
mod upgrade;
mod userspace;
mod values;
mod wait;

pub use create::file_system;
pub use values::{When, parse as parse_property, parse_new as parse_new_property};

use crate::call::Call;
use crate::failure::Failure;
use crate::json;
use clap::{Parser, Subcommand};

/// Administer datasets.
#[derive(Debug, Parser)]
#[command(name = "zfs", version, override_usage = "zfs command args ...")]
pub struct ZfsArgs {
    #[command(subcommand)]
    command: ZfsCommand,
}

#[derive(Debug, Subcommand)]
enum ZfsCommand {
    Allow(allow::AllowArgs),
    Bookmark(snapshot::BookmarkArgs),
    ChangeKey(keys::ChangeKeyArgs),
    Clone(create::CloneArgs),
    Create(create::CreateArgs),
    Destroy(destroy::DestroyArgs),
    Diff(diff::DiffArgs),
    Get(get::GetArgs),
    Groupspace(userspace::GroupspaceArgs),
    Hold(holds::HoldArgs),
    Holds(holds::HoldsArgs),
    Inherit(set::InheritArgs),
    List(list::ListArgs),
    LoadKey(keys::LoadKeyArgs),
    Mount(mount::MountArgs),
    #[command(name = "mount.zfs", hide = true)]
    MountHelper(mount_helper::MountHelperArgs),
    Program(program::ProgramArgs),
    Project(project::ProjectArgs),
    Projectspace(userspace::ProjectspaceArgs),
    Promote(snapshot::PromoteArgs),
    #[command(visible_alias = "recv")]
    Receive(receive::ReceiveArgs),
    Redact(redact::RedactArgs),
    Release(holds::ReleaseArgs),
    Rename(snapshot::RenameArgs),
    Rewrite(rewrite::RewriteArgs),
    Rollback(snapshot::RollbackArgs),
    Send(send::SendArgs),
    Set(set::SetArgs),
    Share(mount::ShareArgs),
    #[command(visible_alias = "snap")]
    Snapshot(snapshot::SnapshotArgs),
    Unallow(allow::UnallowArgs),
    UnloadKey(keys::UnloadKeyArgs),
    #[command(visible_alias = "umount")]
    Unmount(mount::UnmountArgs),
    Unshare(mount::UnshareArgs),
    Upgrade(upgrade::UpgradeArgs),
    Userspace(userspace::UserspaceArgs),
    Version(ZfsVersionArgs),
    Wait(wait::WaitArgs),
}

/// Show the version of Weir's zfs.
#[derive(Debug, Parser)]
#[command(name = "zfs version", override_usage = "zfs version [-j]")]
struct ZfsVersionArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
}

/// Runs the command.
pub fn run(call: &Call, args: &ZfsArgs) -> Result<u8, Failure> {
    match &args.command {
        ZfsCommand::Allow(args) => allow::allow(call, args),
        ZfsCommand::Bookmark(args) => snapshot::bookmark(call, args),
        ZfsCommand::ChangeKey(args) => keys::change(call, args),
        ZfsCommand::Clone(args) => create::clone(call, args),
        ZfsCommand::Create(args) => create::run(call, args),
        ZfsCommand::Destroy(args) => destroy::run(call, args),
        ZfsCommand::Diff(args) => diff::run(call, args),
        ZfsCommand::Get(args) => get::run(call, args),
        ZfsCommand::Groupspace(args) => userspace::of_groups(call, args),
        ZfsCommand::Hold(args) => holds::hold(call, args),
        ZfsCommand::Holds(args) => holds::holds(call, args),
        ZfsCommand::Inherit(args) => set::inherit(call, args),
        ZfsCommand::List(args) => list::run(call, args),
        ZfsCommand::LoadKey(args) => keys::load(call, args),
        ZfsCommand::Mount(args) => mount::mount(call, args),
        ZfsCommand::MountHelper(args) => mount_helper::run(call, args),
        ZfsCommand::Program(args) => program::run(call, args),
        ZfsCommand::Project(args) => project::run(call, args),
        ZfsCommand::Projectspace(args) => userspace::of_projects(call, args),
        ZfsCommand::Promote(args) => snapshot::promote(call, args),
        ZfsCommand::Receive(args) => receive::run(call, args),
        ZfsCommand::Redact(args) => redact::run(call, args),
        ZfsCommand::Release(args) => holds::release(call, args),
        ZfsCommand::Rename(args) => snapshot::rename(call, args),
        ZfsCommand::Rewrite(args) => rewrite::run(call, args),
        ZfsCommand::Rollback(args) => snapshot::rollback(call, args),
        ZfsCommand::Send(args) => send::run(call, args),
        ZfsCommand::Set(args) => set::run(call, args),
        ZfsCommand::Share(args) => mount::share(call, args),
        ZfsCommand::Snapshot(args) => snapshot::run(call, args),
        ZfsCommand::Unallow(args) => allow::unallow(call, args),
        ZfsCommand::UnloadKey(args) => keys::unload(call, args),
        ZfsCommand::Unmount(args) => mount::unmount(call, args),
        ZfsCommand::Unshare(args) => mount::unshare(call, args),
        ZfsCommand::Upgrade(args) => upgrade::run(call, args),
        ZfsCommand::Userspace(args) => userspace::of_users(call, args),
        ZfsCommand::Wait(args) => wait::run(call, args),
        ZfsCommand::Version(args) => Ok(json::version(call, "zfs version", args.json)),
    }
}
