//! Mounts around a change of datasets that moves them: unmounted before it, mounted after it where they belong then.
//!
//! As in OpenZFS, a change of the name or the mount point of a busy file system is refused, and nothing is changed. With `-u`, mounts stay as they are.

use super::ServedPool;
use super::served_pool::UNMOUNT_TIME;
use crate::automount::is_below;
use crate::mounts::{MountError, MountRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_admin::{MountChange, MountEffect, Refusal, RefusalKind};
use weir_daemon::{DatasetShares, Exports, MountRule};
use weir_machine::Request;

type ByName = BTreeMap<String, DatasetShares>;

/// Reason of a refusal of a command that created a file system which then could not be mounted; its names are one line with the cause.
/// OpenZFS's text (`zfs_mount_and_share` in `cmd/zfs/zfs_main.c`), which other programs look for.
pub const CREATED_NOT_MOUNTED: &str = "filesystem successfully created, but not mounted";

/// IDs of the mounted file systems that a change moves or ends. Pure.
fn moved(
    effect: &MountEffect,
    mounted: &BTreeMap<u64, (String, String)>,
    all: &ByName,
    altroot: &str,
) -> BTreeSet<u64> {
    let top = effect.name.as_str();
    let path = all.get(top).and_then(|shares| shares.mount.path());
    let place = |to: &str| format!("{}{to}", altroot.trim_end_matches('/'));
    let stays = matches!(&effect.change, MountChange::Moved { to: Some(to) } if path == Some(place(to).as_str()));
    let below_parents = |name: &str| inherits_from(name, top, all);
    // A mount that mount(8) made is where the administrator wants it, whatever the name is.
    let is_legacy = |name: &str| all.get(name).is_some_and(|shares| matches!(shares.mount, MountRule::Legacy));
    let is_moved = |name: &str| match &effect.change {
        MountChange::New => false,
        MountChange::Renamed { .. } => is_below(name, top) && !is_legacy(name),
        MountChange::Moved { .. } if effect.recursive => is_below(name, top),
        MountChange::Moved { .. } => !stays && below_parents(name),
        MountChange::Destroyed { names } => names.iter().any(|destroyed| destroyed == name),
        MountChange::Closed => true,
        MountChange::Forbidden => name == top || effect.recursive && is_below(name, top),
    };
    mounted.iter().filter(|(_, (name, _))| is_moved(name)).map(|(id, _)| *id).collect()
}

/// Whether a file system is `top`, or inherits its mount point from there.
fn inherits_from(name: &str, top: &str, all: &ByName) -> bool {
    let mut at = name;
    while at != top {
        let Some((parent, _)) = at.rsplit_once('/').filter(|_| all.get(at).is_some_and(|s| s.is_below_parent)) else {
            return false;
        };
        at = parent;
    }
    true
}

async fn all_shares(front: &Exports) -> Result<ByName, Refusal> {
    let shares = front.dataset_shares(&Request::internal("mount")).await;
    shares.map_err(|error| Refusal::new(RefusalKind::Pool, error.to_string()))
}

impl ServedPool {
    /// Before a change: see [`weir_admin::Host::prepare_mounts`].
    ///
    /// # Errors
    /// If a file system is busy; then all are mounted as before.
    #[allow(clippy::disallowed_methods, reason = "it waits for the kernel, in real time")]
    pub async fn prepare_mounts(self: &Arc<Self>, effect: &MountEffect, leaves: bool) -> Result<Vec<u64>, Refusal> {
        if leaves {
            self.automounts().iter().for_each(|automounts| automounts.leave(effect.name_after()));
            return Ok(Vec::new());
        }
        if effect.change == MountChange::Closed && !effect.force {
            let pool = self.clone();
            let checking = tokio::task::spawn_blocking(move || pool.mounts.check_whole_pool());
            // One that does not answer is ended with the pool.
            if let Ok(Ok(Err(why))) = tokio::time::timeout(UNMOUNT_TIME, checking).await {
                return Err(Refusal::new(RefusalKind::Busy, format!("cannot unmount {why}")));
            }
        }
        let concerns = |name: &str| match &effect.change {
            MountChange::Destroyed { names } => names.iter().any(|destroyed| destroyed == name),
            _ => is_below(name, &effect.name),
        };
        let has_mounts = self.mounts.by_id().values().any(|(name, _)| concerns(name));
        let Some(front) = self.front().filter(|_| has_mounts && effect.change != MountChange::New) else {
            return Ok(Vec::new());
        };
        let all = all_shares(&front).await?;
        let ids = moved(effect, &self.mounts.by_id(), &all, &self.engine.facts().altroot);
        let (pool, force) = (self.clone(), effect.force);
        let chosen = ids.clone();
        // The kernel asks this process while it unmounts.
        let unmounting =
            tokio::task::spawn_blocking(move || pool.mounts.suspend(&chosen, force, &front, &pool.machine, &all));
        let Ok(done) = tokio::time::timeout(UNMOUNT_TIME, unmounting).await else {
            tracing::warn!("pool '{}': a mount does not end: another mount namespace has it", self.engine.name());
            return Ok(ids.into_iter().collect());
        };
        let lost = |error: tokio::task::JoinError| Refusal::new(RefusalKind::Pool, error.to_string());
        done.map_err(lost)?.map_err(|why| Refusal::new(RefusalKind::Busy, format!("cannot unmount {why}")))
    }

    /// After a change: see [`weir_admin::Host::settle_mounts`].
    ///
    /// # Errors
    /// If a file system cannot be mounted where it belongs now; [`CREATED_NOT_MOUNTED`] for a new one.
    pub async fn settle_mounts(
        self: &Arc<Self>,
        effect: &MountEffect,
        leaves: bool,
        suspended: Vec<u64>,
    ) -> Result<(), Refusal> {
        // As in OpenZFS, a value of `mountpoint` mounts what is not mounted, also if it is the present value.
        let mounts_there = !leaves
            && self.automounts().is_some()
            && matches!(&effect.change, MountChange::Moved { to } if to.as_deref() != Some("legacy"));
        let mounts_new = !leaves && effect.change == MountChange::New && self.automounts().is_some();
        if !leaves && suspended.is_empty() && !mounts_there && !mounts_new {
            return Ok(());
        }
        let failed = |why: String| Refusal::new(RefusalKind::Pool, why);
        let renewed = self.renew().await.map_err(|failure| failed(failure.to_string()));
        if leaves {
            self.automounts().iter().for_each(|automounts| automounts.follow_again(effect.name_after()));
        }
        renewed?;
        if mounts_new {
            return self.new_is_mounted(&effect.name);
        }
        let Some(front) = self.front() else { return Ok(()) };
        let all = all_shares(&front).await?;
        let mut suspended = suspended;
        if mounts_there {
            let concerned = all.values().filter(|shares| inherits_from(&shares.dataset, &effect.name, &all));
            suspended.extend(concerned.filter(|shares| shares.mount.is_automatic()).map(|shares| shares.id));
        }
        self.mounts.follow_names(&all.values().map(|shares| (shares.id, shares.dataset.clone())).collect());
        let pool = self.clone();
        let mounting = tokio::task::spawn_blocking(move || pool.mount_again(&front, &suspended, &all));
        let whys = mounting.await.map_err(|error| failed(error.to_string()))?;
        match whys.is_empty() {
            true => Ok(()),
            false => Err(failed(format!("property may be set but unable to remount filesystem: {}", whys.join("; ")))),
        }
    }

    /// Fails if a file system that was just created could not be mounted.
    fn new_is_mounted(&self, name: &str) -> Result<(), Refusal> {
        let failure = self.automounts().and_then(|automounts| automounts.take_failure(name));
        failure.map_or(Ok(()), |why| {
            let names = vec![format!("cannot mount '{name}': {why}")];
            Err(Refusal::because_of(RefusalKind::Pool, CREATED_NOT_MOUNTED, names))
        })
    }

    /// Mounts file systems that were unmounted for a change, if they may be mounted now; returns what failed.
    fn mount_again(&self, front: &Exports, suspended: &[u64], all: &ByName) -> Vec<String> {
        // By name: parents first.
        let chosen = all.values().filter(|shares| suspended.contains(&shares.id) && shares.mount.is_possible());
        let mounted = chosen.filter_map(|shares| {
            let done = self.mounts.mount(front, &self.machine, shares, MountRequest::default());
            // One whose key is not loaded stays unmounted.
            done.err()
                .filter(|error| !matches!(error, MountError::NoKey))
                .map(|error| format!("'{}': {error}", shares.dataset))
        });
        mounted.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_moves_what_inherits_the_mount_point() {
        let mut all = ByName::new();
        let inherited = [("t", false), ("t/a", true), ("t/a/b", true), ("t/a/own", false), ("t/a/own/c", true)];
        for (id, (name, is_below_parent)) in inherited.into_iter().enumerate() {
            all.insert(
                name.to_owned(),
                DatasetShares::mounted_at(name, id as u64, &format!("/{name}"), is_below_parent),
            );
        }
        let mounted = all.values().map(|s| (s.id, (s.dataset.clone(), s.mount.path().unwrap().to_owned()))).collect();
        let ids = |change, recursive| {
            moved(&MountEffect { name: "t/a".into(), recursive, change, force: false }, &mounted, &all, "")
                .into_iter()
                .collect::<Vec<_>>()
        };
        let to = |path: &str| MountChange::Moved { to: Some(path.to_owned()) };
        assert_eq!(ids(to("/x"), false), [1, 2]);
        assert_eq!(ids(to("/t/a"), false), [0; 0], "it is there already");
        assert_eq!(ids(MountChange::Moved { to: None }, true), [1, 2, 3, 4]);
        assert_eq!(ids(MountChange::Renamed { new_name: "t/z".into() }, true), [1, 2, 3, 4]);
        assert_eq!(ids(MountChange::Forbidden, false), [1]);
        assert_eq!(ids(MountChange::Destroyed { names: vec!["t/a/b".into(), "t/a/own".into()] }, true), [2, 3]);
        assert_eq!(ids(MountChange::New, false), [0; 0]);
        assert_eq!(ids(MountChange::Closed, true), [0, 1, 2, 3, 4]);
    }
}
