//! Dry runs: what an action that cannot be undone would do, and the state that it would do it to.
//!
//! The state is names and GUIDs: of the datasets and snapshots that go, of the pool and its devices, and what is on new devices. Sizes
//! are shown and are no part of it, because they change with every write of a client.

use super::action::PageAction;
use super::words::{CommandLine, NewVdev};
use super::{Administrator, Ran};
use serde::Serialize;
use std::collections::BTreeSet;
use utoipa::ToSchema;

/// Output of a command that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DryOutput {
    /// The command line; empty for a description of devices.
    pub command: String,
    /// Text that it printed.
    pub text: String,
}

/// A dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DryRun {
    /// For the administrator.
    pub shown: Vec<DryOutput>,
    /// Lines that are the same as long as the action would do the same.
    state: Vec<String>,
}

impl DryRun {
    /// Digest of the state.
    pub fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for line in &self.state {
            hasher.update(&(line.len() as u64).to_le_bytes());
            hasher.update(line.as_bytes());
        }
        hasher.finalize()
    }

    /// Adds a line of the state.
    fn keep(&mut self, line: impl Into<String>) {
        self.state.push(line.into());
    }
}

/// Commands of a dry run, which stops at the first that fails.
struct Runner<'a> {
    admin: &'a Administrator,
    done: DryRun,
}

impl Runner<'_> {
    /// Output of a command.
    async fn output(&self, line: &CommandLine) -> Result<String, String> {
        let Ran { code, out, err } = self.admin.run(line).await;
        if code == 0 { Ok(out) } else { Err(format!("{err}{out}").trim_end().to_owned()) }
    }

    /// Shows the output of a command, which the state does not have.
    async fn show(&mut self, line: CommandLine) -> Result<String, String> {
        let text = self.output(&line).await?;
        self.done.shown.push(DryOutput { command: line.to_string(), text: text.clone() });
        Ok(text)
    }

    /// Makes the whole output of a command part of the state.
    async fn keep(&mut self, line: CommandLine) -> Result<(), String> {
        let text = self.output(&line).await?;
        self.done.keep(text);
        Ok(())
    }

    /// Shows the contents of devices, which are part of the state.
    async fn devices(&mut self, devices: &[String]) {
        let lines = self.admin.administration.contents(devices).await;
        self.done.shown.push(DryOutput { command: String::new(), text: lines.join("\n") });
        self.done.state.extend(lines);
    }

    /// Devices of a pool, their GUIDs and their states.
    async fn pool(&mut self, pool: &str) -> Result<(), String> {
        self.keep(CommandLine::new("zpool", ["get", "-Hp", "-o", "value", "guid", pool])).await?;
        self.keep(CommandLine::new(
            "zpool",
            ["get", "-Hp", "-o", "name,property,value", "guid,state", pool, "all-vdevs"],
        ))
        .await
    }

    async fn destroy(&mut self, name: &str, option: Option<&str>) -> Result<(), String> {
        let option: Vec<&str> = option.into_iter().collect();
        let words = |how: &'static str| ["destroy", how].into_iter().chain(option.clone()).chain([name]);
        self.show(CommandLine::new("zfs", words("-nv"))).await?;
        let plan = self.output(&CommandLine::new("zfs", words("-nvp"))).await?;
        let names: BTreeSet<&str> = plan.lines().filter_map(|line| line.strip_prefix("destroy\t")).collect();
        let of = name.split(['@', '#']).next().unwrap_or(name);
        let guids = ["list", "-Hp", "-t", "all", "-r", "-o", "name,guid", of];
        let guids = self.output(&CommandLine::new("zfs", guids)).await?;
        let goes = |line: &&str| line.split('\t').next().is_some_and(|name| names.contains(name));
        self.done.state.extend(guids.lines().filter(goes).map(str::to_owned));
        // Clones elsewhere have no GUID above, and are known by name.
        self.done.state.extend(names.iter().map(|name| (*name).to_owned()));
        if !name.contains(['@', '#']) {
            let sizes = ["list", "-t", "all", "-r", "-o", "name,used,referenced", name];
            self.show(CommandLine::new("zfs", sizes)).await?;
        }
        Ok(())
    }

    async fn rollback(&mut self, snapshot: &str, destroy_later: bool) -> Result<(), String> {
        let Some((dataset, name)) = snapshot.split_once('@') else {
            return Err(format!("'{snapshot}' is no snapshot"));
        };
        let written = format!("written@{name}");
        self.show(CommandLine::new("zfs", ["get", "-o", "name,property,value", &written, dataset])).await?;
        let list = ["list", "-Hp", "-t", "snapshot,bookmark", "-d", "1", "-s", "createtxg", "-o", "name,guid", dataset];
        let list = self.output(&CommandLine::new("zfs", list)).await?;
        let names = || list.lines().filter_map(|line| line.split('\t').next());
        let later: Vec<&str> = names().skip_while(|name| *name != snapshot).skip(1).collect();
        if !destroy_later && !later.is_empty() {
            let why = "there are later snapshots or bookmarks, which are destroyed with -r";
            return Err(format!("cannot rollback to '{snapshot}': {why}:\n{}", later.join("\n")));
        }
        let text = later.iter().map(|name| format!("would destroy {name}\n")).collect::<String>();
        let text = format!("{text}would set {dataset} back to {snapshot}\n");
        self.done.shown.push(DryOutput { command: String::new(), text });
        self.done.keep(list);
        Ok(())
    }

    /// The command of the action with its option `-n`, whose output is part of the state.
    async fn tried(&mut self, action: &PageAction) -> Result<(), String> {
        let mut line = action.line()?;
        line.words.insert(1, "-n".to_owned());
        let text = self.show(line).await?;
        self.done.keep(text);
        Ok(())
    }

    async fn new_vdevs(&mut self, action: &PageAction, vdevs: &[NewVdev]) -> Result<(), String> {
        self.tried(action).await?;
        let devices: Vec<String> = vdevs.iter().flat_map(|vdev| vdev.devices.clone()).collect();
        self.devices(&devices).await;
        Ok(())
    }

    async fn take(&mut self, action: &PageAction) -> Result<(), String> {
        match action {
            PageAction::Destroy { name, recursive, dependents } => {
                let option = if *dependents { Some("-R") } else { recursive.then_some("-r") };
                if name.contains('#') {
                    return self
                        .keep(CommandLine::new("zfs", ["list", "-Hp", "-t", "bookmark", "-o", "name,guid", name]))
                        .await;
                }
                self.destroy(name, option).await
            }
            PageAction::Rollback { snapshot, destroy_later } => self.rollback(snapshot, *destroy_later).await,
            PageAction::CreatePool { vdevs, .. } => self.new_vdevs(action, vdevs).await,
            PageAction::AddVdevs { pool, vdevs, .. } => {
                self.new_vdevs(action, vdevs).await?;
                self.pool(pool).await
            }
            PageAction::Split { pool, .. } => {
                self.tried(action).await?;
                self.pool(pool).await
            }
            PageAction::Remove { pool, .. } => {
                // What is allocated changes with every write of a client.
                let mut line = action.line()?;
                line.words.insert(1, "-n".to_owned());
                self.show(line).await?;
                self.show(CommandLine::new("zpool", ["list", "-v", pool])).await?;
                self.pool(pool).await
            }
            PageAction::DiscardCheckpoint { pool } => {
                self.show(CommandLine::new("zpool", ["status", pool])).await?;
                self.pool(pool).await
            }
            PageAction::Upgrade { pool } => {
                let lacking = self.show(CommandLine::new("zpool", ["upgrade"])).await?;
                self.done.keep(lacking);
                self.keep(CommandLine::new("zpool", ["get", "-Hp", "-o", "value", "guid", pool])).await
            }
            PageAction::Wipe { device, .. } => {
                self.devices(std::slice::from_ref(device)).await;
                Ok(())
            }
            PageAction::Export { pool, .. } => {
                self.show(CommandLine::new("zpool", ["list", pool])).await?;
                self.keep(CommandLine::new("zpool", ["get", "-Hp", "-o", "value", "guid", pool])).await
            }
            PageAction::DestroyPool { pool, .. } => {
                self.show(CommandLine::new("zpool", ["list", pool])).await?;
                self.show(CommandLine::new("zfs", ["list", "-t", "all", "-r", "-o", "name,used,referenced", pool]))
                    .await?;
                self.keep(CommandLine::new("zfs", ["list", "-Hp", "-t", "all", "-r", "-o", "name,guid", pool])).await
            }
            PageAction::Detach { pool, .. } => {
                self.show(CommandLine::new("zpool", ["status", pool])).await?;
                self.pool(pool).await
            }
            PageAction::Replace { pool, new_device, .. } | PageAction::Attach { pool, new_device, .. } => {
                self.show(CommandLine::new("zpool", ["status", pool])).await?;
                self.devices(std::slice::from_ref(new_device)).await;
                self.pool(pool).await
            }
            PageAction::Send { snapshot, .. } => {
                let mut line = action.line()?;
                line.words.insert(1, "-nv".to_owned());
                self.show(line).await?;
                self.keep(CommandLine::new("zfs", ["get", "-Hp", "-o", "value", "guid", snapshot])).await
            }
            PageAction::Import { directory, .. } => {
                let words = ["import"].into_iter().chain(directory.iter().flat_map(|place| ["-d", place.as_str()]));
                let text = self.show(CommandLine::new("zpool", words)).await?;
                self.done.keep(text);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Runs the commands that show what an action would do.
///
/// # Errors
/// All that the command printed that failed.
pub(crate) async fn dry_run(admin: &Administrator, action: &PageAction) -> Result<DryRun, String> {
    // Also of fields that no command of the dry run has.
    action.line()?;
    let mut runner = Runner { admin, done: DryRun::default() };
    runner.take(action).await?;
    Ok(runner.done)
}
