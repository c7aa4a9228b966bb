//! The command line of each action.

use super::action::{JobWork, PageAction, ScrubStep, WorkStep};
use super::words::{CommandLine, Words};

type Line = Option<Result<CommandLine, String>>;

fn zfs(command: &str) -> Words {
    Words::new("zfs", &[command])
}

fn zpool(command: &str) -> Words {
    Words::new("zpool", &[command])
}

impl PageAction {
    /// The command line of an action on datasets; `None` for another action.
    pub(super) fn of_dataset(&self) -> Line {
        let words = match self {
            PageAction::Snapshot { snapshot, recursive } => {
                zfs("snapshot").option_if(*recursive, "-r").word("snapshot", snapshot)
            }
            PageAction::CreateDataset { name, volume_size, sparse, properties } => {
                let words = zfs("create").option_if(volume_size.is_some() && *sparse, "-s");
                let words = words.settings("-o", properties).option_word("-V", "size", volume_size.as_deref());
                words.word("name", name)
            }
            PageAction::Set { dataset, property, value } => {
                zfs("set").setting(property, value).word("dataset", dataset)
            }
            PageAction::Inherit { dataset, property } => {
                zfs("inherit").word("property", property).word("dataset", dataset)
            }
            PageAction::Destroy { name, recursive, dependents } => {
                let words = zfs("destroy").option_if(*recursive && !dependents, "-r").option_if(*dependents, "-R");
                words.word("name", name)
            }
            PageAction::Rollback { snapshot, destroy_later } => {
                zfs("rollback").option_if(*destroy_later, "-r").word("snapshot", snapshot)
            }
            PageAction::Clone { snapshot, name } => zfs("clone").word("snapshot", snapshot).word("name", name),
            PageAction::Rename { name, new_name } => zfs("rename").word("name", name).word("new name", new_name),
            PageAction::Promote { dataset } => zfs("promote").word("dataset", dataset),
            PageAction::Hold { snapshot, tag } => zfs("hold").word("tag", tag).word("snapshot", snapshot),
            PageAction::Release { snapshot, tag } => zfs("release").word("tag", tag).word("snapshot", snapshot),
            PageAction::Send { snapshot, from, recursive, raw, as_stored } => {
                let words = zfs("send").option_if(*recursive, "-R").option_if(*raw, "-w");
                let words = words.option_if(*as_stored && !raw, "-Lec");
                words.option_word("-i", "snapshot or bookmark", from.as_deref()).word("snapshot", snapshot)
            }
            PageAction::Receive { dataset, no_mount } => {
                zfs("receive").option_if(*no_mount, "-u").word("dataset", dataset)
            }
            PageAction::Mount { dataset } => zfs("mount").word("dataset", dataset),
            PageAction::Unmount { dataset, force } => zfs("unmount").option_if(*force, "-f").word("dataset", dataset),
            PageAction::LoadKey { dataset } => zfs("load-key").word("dataset", dataset),
            PageAction::UnloadKey { dataset } => zfs("unload-key").word("dataset", dataset),
            PageAction::ChangeKey { dataset } => {
                Words::new("zfs", &["change-key", "-o", "keyformat=passphrase", "-o", "keylocation=prompt"])
                    .word("dataset", dataset)
            }
            _ => return None,
        };
        Some(words.done())
    }

    /// The command line of an action on a whole pool; `None` for another action.
    pub(super) fn of_pool(&self) -> Line {
        let words = match self {
            PageAction::Scrub { pool, step } => {
                let words = zpool("scrub").option_if(*step == ScrubStep::Pause, "-p");
                words.option_if(*step == ScrubStep::Stop, "-s").word("pool", pool)
            }
            PageAction::CreatePool { name, vdevs, properties, root_properties, force } => {
                let words = zpool("create").option_if(*force, "-f").settings("-o", properties);
                words.settings("-O", root_properties).word("name", name).vdevs(vdevs)
            }
            PageAction::AddVdevs { pool, vdevs, force } => {
                zpool("add").option_if(*force, "-f").word("pool", pool).vdevs(vdevs)
            }
            PageAction::Import { pool, directory, force } => {
                let words = zpool("import").option_if(*force, "-f");
                let words = match directory {
                    Some(directory) => words.option_if(true, "-d").path("directory", directory),
                    None => words,
                };
                words.word("pool", pool)
            }
            PageAction::Export { pool, force } => zpool("export").option_if(*force, "-f").word("pool", pool),
            PageAction::DestroyPool { pool, force } => zpool("destroy").option_if(*force, "-f").word("pool", pool),
            PageAction::StopRemoval { pool } => zpool("remove").option_if(true, "-s").word("pool", pool),
            PageAction::Split { pool, name } => zpool("split").word("pool", pool).word("name", name),
            PageAction::Checkpoint { pool } => zpool("checkpoint").word("pool", pool),
            PageAction::DiscardCheckpoint { pool } => zpool("checkpoint").option_if(true, "-d").word("pool", pool),
            PageAction::Upgrade { pool } => zpool("upgrade").word("pool", pool),
            _ => return None,
        };
        Some(words.done())
    }

    /// The command line of an action on devices; `None` for another action.
    pub(super) fn of_devices(&self) -> Line {
        let device_of =
            |command: &str, pool: &str, device: &str| zpool(command).word("pool", pool).word("device", device);
        let stepped = |command: &str, pool: &str, device: Option<&str>, step: WorkStep| {
            let words = zpool(command).option_if(step == WorkStep::Suspend, "-s");
            let words = words.option_if(step == WorkStep::Cancel, "-c").word("pool", pool);
            device.into_iter().fold(words, |words, device| words.word("device", device))
        };
        let words = match self {
            PageAction::Clear { pool, device: None } => zpool("clear").word("pool", pool),
            PageAction::Clear { pool, device: Some(device) } => device_of("clear", pool, device),
            PageAction::Offline { pool, device } => device_of("offline", pool, device),
            PageAction::Online { pool, device } => device_of("online", pool, device),
            PageAction::Detach { pool, device } => device_of("detach", pool, device),
            PageAction::Remove { pool, device } => device_of("remove", pool, device),
            PageAction::Replace { pool, device, new_device, force } => {
                let words = zpool("replace").option_if(*force, "-f").word("pool", pool);
                words.word("device", device).path("new device", new_device)
            }
            PageAction::Attach { pool, device, new_device, force } => {
                let words = zpool("attach").option_if(*force, "-f").word("pool", pool);
                words.word("device", device).path("new device", new_device)
            }
            PageAction::Initialize { pool, device, step } => stepped("initialize", pool, device.as_deref(), *step),
            PageAction::Trim { pool, device, step } => stepped("trim", pool, device.as_deref(), *step),
            PageAction::Wipe { device, force } => zpool("labelclear").option_if(*force, "-f").path("device", device),
            _ => return None,
        };
        Some(words.done())
    }

    /// The command line of an action on jobs; `None` for another action.
    pub(super) fn of_job(&self) -> Line {
        let job = |command: &str| Words::new("daemon", &["job", command]);
        let words = match self {
            PageAction::AddJob { name, work, recursive, keep, schedule, time_zone, replace } => {
                let words = job("add").option_if(*replace, "--replace").option_if(*recursive, "-r");
                let words = words.option_number("--keep", *keep).option_word("--schedule", "schedule", Some(schedule));
                let words = words.option_word("--time-zone", "time zone", time_zone.as_deref());
                let words = match work {
                    JobWork::Snapshot(datasets) => words.option_words("--snapshot", "dataset", datasets),
                    JobWork::Scrub(pools) => words.option_words("--scrub", "pool", pools),
                    JobWork::Replicate { source, target, limit, keep_target, lag_seconds } => words
                        .option_word("--replicate", "source", Some(source))
                        .option_word("--to", "target", Some(target))
                        .option_word("--limit", "limit", limit.as_deref())
                        .option_number("--keep-target", *keep_target)
                        .option_number("--lag-seconds", *lag_seconds),
                };
                words.word("name", name)
            }
            PageAction::RemoveJob { job: name } => job("remove").word("job", name),
            PageAction::RunJob { job: name } => job("run").word("job", name),
            _ => return None,
        };
        Some(words.done())
    }
}
