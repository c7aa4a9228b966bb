//! Commands on a pool as a whole, and on the process that has it open.

use crate::change::Author;
use crate::monitor::ChangeMonitor;
use crate::mounting::{MountChange, MountEffect};
use crate::program::{LuaProgram, ProgramEnd};
use crate::properties::JsonVdevSetting;
use crate::query::find_vdevs;
use crate::refusal::{Refusal, RefusalKind};
use futures_util::future::{BoxFuture, Either, select};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, UNIX_EPOCH};
use weir_analytics::{ConnectionFacts, LinkFacts, Sample};
use weir_blocks::vdev::LeafHealth;
use weir_engine::scrub::{ScrubStart, errors};
use weir_engine::{Engine, PoolProperty, VdevSetting};
use weir_format::NvList;
use weir_format::dsl::ErrorScrubPhys;
use weir_format::features;
use weir_machine::Request;
use weir_pool::VdevConfig;

/// A change of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PoolChange {
    /// Clears error counters, puts faulted devices back into service, and resumes a suspended pool.
    Clear {
        /// Devices by name, path or GUID; all if there is none.
        devices: Vec<String>,
    },
    /// Waits until all changes are on stable storage.
    Sync {
        /// Whether a txg is written even if nothing was changed.
        force: bool,
    },
    /// Sets the comment; empty for none.
    SetComment {
        /// The text.
        text: String,
    },
    /// Sets the sets of features that may be enabled.
    SetCompatibility {
        /// Names of sets, or `off`.
        sets: String,
    },
    /// Sets a user property, or removes it.
    SetUser {
        /// Name of the property.
        property: String,
        /// Value; empty for none.
        text: String,
    },
    /// Enables a feature.
    EnableFeature {
        /// Short name.
        feature: String,
    },
    /// Sets a property that is stored as a number.
    SetNumber {
        /// Name of the property.
        property: String,
        /// Value as stored.
        number: u64,
    },
    /// Sets a property of a vdev.
    SetVdev {
        /// Names by which the vdev may be called, of which the first that a vdev has counts: name, path or GUID, `root`.
        names: Vec<String>,
        /// Name of the property.
        property: String,
        /// Value of it.
        #[serde(with = "JsonVdevSetting")]
        setting: VdevSetting,
    },
    /// Pauses a scrub.
    PauseScrub,
    /// Stops a scrub.
    StopScrub,
}

/// Work of the process that has the pool open, beyond the pool itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ProcessChange {
    /// Starts a scrub, or resumes a paused one, in the background.
    StartScrub,
    /// The same, of the blocks that are newer than the last scrub.
    StartScrubFromLastTxg,
    /// The same, of the blocks in the error log.
    StartErrorScrub,
    /// Starts a resilver of all devices that lack blocks, in the background; one that is running starts again.
    StartResilver,
    /// Closes the pool, and ends the process.
    Close {
        /// Whether the pool is marked as destroyed instead of exported.
        destroyed: bool,
        /// Whether clients that use the pool lose it, and mounts that are in use are detached.
        force: bool,
        /// Whether a suspended pool is exported: what is only in memory is lost. Without effect on a pool that is destroyed.
        #[serde(default)]
        hard: bool,
    },
}

/// Destroyed datasets that are being freed in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreeingProgress {
    /// Bytes that wait to be freed.
    pub left_bytes: u64,
    /// Bytes freed since something waits.
    pub freed_bytes: u64,
    /// Seconds since then.
    pub active_s: u64,
    /// Seconds that the rest takes at the speed so far, if that is known.
    pub left_s: Option<u64>,
}

/// A scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubProgress {
    /// Whether it is at work now: neither paused, nor finished, nor stopped.
    pub is_running: bool,
    /// Whether it examined the whole pool.
    pub is_finished: bool,
    /// Whether it is a resilver.
    pub is_resilver: bool,
    /// Bytes examined.
    pub examined_bytes: u64,
    /// Bytes to examine in all.
    pub to_examine_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Errors found.
    pub errors: u64,
    /// Seconds spent, over all imports.
    pub active_s: u64,
    /// Estimated remaining seconds; `None` before a rate is known.
    pub left_s: Option<u64>,
    /// Of a scrub of the blocks in the error log: how many were examined, and how many there are in all. Its bytes are not counted.
    #[serde(default)]
    pub error_blocks: Option<(u64, u64)>,
}

/// The process that has a pool open.
pub trait Host: Sync {
    /// The pool.
    fn engine(&self) -> &Engine;

    /// Continues a scrub that the pool records as running, in the background.
    fn go_on_scrubbing(&self);

    /// Whether the scrub task runs.
    ///
    /// # Errors
    /// The error that ended its last run.
    fn is_scrubbing(&self) -> Result<bool, String>;

    /// Whether clients use the pool.
    fn is_used(&self) -> bool;

    /// The last kept sample of the counters that is at least `seconds` old, or else the oldest; `None` if the process keeps none.
    fn earlier_sample(&self, _seconds: u64) -> Option<Sample> {
        None
    }

    /// Clients that are known to use the pool, each as protocol and address.
    fn clients(&self) -> Vec<String> {
        Vec::new()
    }

    /// Network interfaces, and the connections of clients of this process; empty if it has none, or they cannot be read.
    fn network(&self) -> BoxFuture<'_, (Vec<LinkFacts>, Vec<ConnectionFacts>)> {
        Box::pin(std::future::ready((Vec::new(), Vec::new())))
    }

    /// Names of the users with a CHAP secret.
    ///
    /// # Errors
    /// If the list cannot be read.
    fn chap_users(&self) -> Result<Vec<String>, String>;

    /// Why a dataset cannot have the name of a share or export, or the logical unit, that a value of a property of sharing gives it:
    /// another dataset that this process shares has it. The default is for processes that share nothing.
    fn share_conflict(&self, _dataset: &str, _property: &str, _value: &str) -> Option<String> {
        None
    }

    /// Before a change: unmounts the file systems that the change moves, and returns their IDs. With `leaves_mounts` it unmounts
    /// none, and the process mounts and moves none because of the change. The default is for processes without mounts.
    ///
    /// # Errors
    /// If one of them is busy; then all of them are still mounted.
    fn prepare_mounts<'a>(
        &'a self,
        _effect: &'a MountEffect,
        _leaves_mounts: bool,
    ) -> BoxFuture<'a, Result<Vec<u64>, Refusal>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// After a change, or after it failed: mounts the file systems of [`Host::prepare_mounts`] where they belong now.
    ///
    /// # Errors
    /// If one cannot be mounted there.
    fn settle_mounts<'a>(
        &'a self,
        _effect: &'a MountEffect,
        _leaves_mounts: bool,
        _suspended: Vec<u64>,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Runs a program in one txg. `monitor` says whether its caller cancels it. The default is for processes without an
    /// interpreter.
    ///
    /// # Errors
    /// If the pool cannot run it. The failure of a program is no error here.
    fn run_program(&self, _program: LuaProgram, _monitor: ChangeMonitor) -> BoxFuture<'_, Result<ProgramEnd, Refusal>> {
        let why = "this process has no interpreter for programs";
        Box::pin(std::future::ready(Err(Refusal::new(RefusalKind::Pool, why))))
    }

    /// Closes the pool and ends the process; returns when the devices are unlocked.
    ///
    /// # Errors
    /// The reason why the pool could not be closed.
    fn close(&self, destroyed: bool) -> BoxFuture<'_, Result<(), String>>;
}

impl PoolChange {
    /// Carries the change out, and records the author's command line in the history, except for a sync.
    ///
    /// # Errors
    /// The reason why it is refused or failed.
    pub(crate) async fn run(self, engine: &Engine, author: &mut Author) -> Result<(), Refusal> {
        let property = match self {
            PoolChange::Sync { force: false } => return Ok(engine.sync().await?),
            PoolChange::Sync { force: true } => return Ok(engine.sync_always().await?),
            PoolChange::Clear { devices } => {
                clear(engine, &devices).await?;
                None
            }
            PoolChange::PauseScrub => {
                engine.scrubs().pause().await?;
                None
            }
            PoolChange::StopScrub => {
                engine.scrubs().stop().await?;
                None
            }
            PoolChange::SetVdev { names, property, setting } => {
                set_vdev(engine, &names, property, setting).await?;
                None
            }
            PoolChange::SetCompatibility { sets } => Some(PoolProperty::Compatibility(sets)),
            PoolChange::SetUser { property, text } => Some(PoolProperty::User { name: property, text }),
            PoolChange::SetComment { text } => Some(PoolProperty::Comment(text)),
            PoolChange::EnableFeature { feature } => {
                let unknown = || Refusal::new(RefusalKind::Pool, format!("there is no feature '{feature}'"));
                Some(PoolProperty::Feature(features::by_name(&feature).ok_or_else(unknown)?))
            }
            PoolChange::SetNumber { property, number } => Some(PoolProperty::Number { property, number }),
        };
        if let Some(property) = property {
            engine.properties().set_on_pool(property).await?;
        }
        Ok(author.record(engine)?)
    }
}

impl ProcessChange {
    /// Carries the change out, and records the author's command line in the history.
    ///
    /// # Errors
    /// The reason why it is refused or failed.
    pub(crate) async fn run(self, host: &impl Host, author: &mut Author) -> Result<(), Refusal> {
        match self {
            ProcessChange::StartScrub | ProcessChange::StartScrubFromLastTxg => {
                let from = match self {
                    ProcessChange::StartScrub => ScrubStart::Whole,
                    _ => ScrubStart::LastScrubbedTxg,
                };
                check_not_scrubbing(host).await?;
                host.engine().scrubs().start_after(from).await?;
                go_on(host, author)
            }
            ProcessChange::StartErrorScrub => {
                host.engine().error_scrubs().start().await?;
                go_on(host, author)
            }
            ProcessChange::StartResilver => {
                host.engine().scrubs().start_resilver(true).await?;
                go_on(host, author)
            }
            ProcessChange::Close { destroyed, force, hard } => {
                close(host, author, destroyed, force, hard && !destroyed).await
            }
        }
    }
}

/// Carries out a scan that was started. The command that started it is recorded first, so that it precedes the end of a short scan in
/// the pool's history and events.
fn go_on(host: &impl Host, author: &mut Author) -> Result<(), Refusal> {
    let recorded = author.record(host.engine());
    host.go_on_scrubbing();
    Ok(recorded?)
}

/// Closes the pool, as [`ProcessChange::Close`] says.
async fn close(host: &impl Host, author: &mut Author, destroyed: bool, force: bool, hard: bool) -> Result<(), Refusal> {
    let is_suspended = host.engine().devices().suspended_because().is_some();
    // A pool is not destroyed without its devices, either: it would be closed, and its labels would stay.
    if is_suspended && !hard {
        let why = "pool I/O is currently suspended\n'zpool clear' resumes it when its devices are back; \
                   'zpool export -F' closes it, and loses what is only in memory";
        return Err(Refusal::new(RefusalKind::Pool, why));
    }
    if !force && !hard && host.is_used() {
        let why = "pool is busy: clients use it (-f ends that)";
        return Err(Refusal::because_of(RefusalKind::Busy, why, host.clients()));
    }
    let gives_up = hard && is_suspended;
    // A mount may be in use without an open file, as a working directory.
    let name = host.engine().name();
    let effect = MountEffect { name, recursive: true, change: MountChange::Closed, force: force || gives_up };
    let suspended = match host.prepare_mounts(&effect, false).await {
        // Its datasets cannot be read; closing the pool ends its mounts.
        Err(_) if gives_up => Vec::new(),
        prepared => prepared?,
    };
    // Before the last txg, as in OpenZFS. A suspended pool has none, and is closed without it.
    let _recorded = author.record(host.engine());
    let done = host.close(destroyed).await.map_err(|why| Refusal::new(RefusalKind::Pool, why));
    if gives_up && host.engine().events.is_ended() {
        // It is closed without its last txg, as asked for.
        return Ok(());
    }
    if done.is_err() {
        // If the pool is still open; the error of closing it says more than that of mounting.
        let _mounted = host.settle_mounts(&effect, false, suspended).await;
    }
    done
}

/// Fails if a scrub runs. One that is paused, or that ended with an error, can be resumed.
async fn check_not_scrubbing(host: &impl Host) -> Result<(), Refusal> {
    let progress = host.engine().scrubs().progress(&Request::internal("scrub")).await?;
    let is_open =
        progress.is_some_and(|progress| progress.is_open() && !progress.is_resilver() && !progress.is_paused());
    if is_open && host.is_scrubbing() == Ok(true) {
        let why = "currently scrubbing; use 'zpool scrub -s' to cancel scrub";
        return Err(Refusal::new(RefusalKind::Busy, why));
    }
    Ok(())
}

/// How far destroyed datasets are freed; `None` if none waits.
pub(crate) fn freeing(engine: &Engine) -> Option<FreeingProgress> {
    let freeing = engine.shown().freeing;
    (freeing.left_bytes > 0).then(|| FreeingProgress {
        left_bytes: freeing.left_bytes,
        freed_bytes: freeing.freed_bytes,
        active_s: freeing.active_ns / 1_000_000_000,
        left_s: freeing.left_s(),
    })
}

/// The last scrub, if there was one.
pub(crate) async fn scrub(host: &impl Host) -> Result<Option<ScrubProgress>, Refusal> {
    let is_at_work = host.is_scrubbing().map_err(|why| Refusal::new(RefusalKind::Pool, why))?;
    let rq = &Request::internal("scrub");
    let progress = host.engine().scrubs().live_progress(rq).await?;
    let scan_start_s = progress.as_ref().map_or(0, |progress| progress.scan.start_time_s);
    if let Some(of_errors) =
        host.engine().error_scrubs().progress(rq).await?.filter(|scrub| scrub.start_time_s >= scan_start_s)
    {
        return Ok(Some(of_error_scrub(host, &of_errors, is_at_work)));
    }
    Ok(progress.map(|progress| ScrubProgress {
        is_running: progress.is_open() && !progress.is_paused() && is_at_work,
        is_finished: progress.is_finished(),
        is_resilver: progress.is_resilver(),
        examined_bytes: progress.scan.examined_bytes,
        to_examine_bytes: progress.scan.to_examine_bytes,
        repaired_bytes: progress.scan.processed_bytes,
        errors: progress.scan.errors,
        active_s: progress.active_s,
        left_s: progress.left_s,
        error_blocks: None,
    }))
}

fn of_error_scrub(host: &impl Host, scrub: &ErrorScrubPhys, is_at_work: bool) -> ScrubProgress {
    let is_open = errors::is_open(scrub);
    let now_s = host.engine().machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    ScrubProgress {
        is_running: is_open && scrub.paused == 0 && is_at_work,
        is_finished: errors::is_finished(scrub),
        is_resilver: false,
        examined_bytes: 0,
        to_examine_bytes: 0,
        repaired_bytes: 0,
        errors: scrub.errors,
        active_s: if is_open { now_s } else { scrub.end_time_s }.saturating_sub(scrub.start_time_s),
        left_s: None,
        error_blocks: Some((scrub.examined, scrub.examined.saturating_add(scrub.to_examine))),
    }
}

/// Sets a property of the vdev that has one of these names.
async fn set_vdev(engine: &Engine, names: &[String], property: String, setting: VdevSetting) -> Result<(), Refusal> {
    let root = VdevConfig::parse(&engine.shown().config.root);
    let root = root.map_err(|error| Refusal::new(RefusalKind::Pool, error.to_string()))?;
    let found = names.iter().map(|name| find_vdevs(&root, name)).find(|found| !found.is_empty());
    let [guid] = found.unwrap_or_default()[..] else {
        return Err(Refusal::new(RefusalKind::Missing, "no such vdev in pool"));
    };
    Ok(engine.vdev_properties().set(guid, property, setting).await?)
}

/// Time in which a pool that is resumed syncs a txg, or is suspended again.
const RESUMES_WITHIN: Duration = Duration::from_secs(10);
/// Interval at which this is looked at.
const RESUME_LOOK: Duration = Duration::from_millis(50);

async fn clear(engine: &Engine, devices: &[String]) -> Result<(), Refusal> {
    let health = engine.cache.blocks().tree().health();
    let mut chosen = Vec::new();
    for device in devices {
        let none = || Refusal::because_of(RefusalKind::Missing, "no such device in pool", vec![device.clone()]);
        let leaf = health.iter().find(|leaf| is_called(leaf, device)).map(|leaf| leaf.guid);
        chosen.push(Some(leaf.or_else(|| cache_called(engine, device)).ok_or_else(none)?));
    }
    if chosen.is_empty() {
        chosen.push(None);
    }
    let was_suspended = engine.devices().suspended_because().is_some();
    for leaf in chosen {
        engine.devices().clear(leaf).await?;
    }
    // As OpenZFS (`vdev_clear`): devices that could not be opened are tried again.
    engine.vdevs().reopen().await?;
    if was_suspended { resumed(engine).await } else { Ok(()) }
}

/// Waits until a pool that was suspended has synced a txg. Refuses if it is suspended again: its devices are still not in order
/// (OpenZFS `zio_resume`). A pool that does neither in time is taken to go on.
async fn resumed(engine: &Engine) -> Result<(), Refusal> {
    let clock = &engine.machine.clock;
    let begun = clock.now();
    let is_suspended_again = async {
        while clock.now().since(begun) < RESUMES_WITHIN {
            if let Some(why) = engine.devices().suspended_because() {
                return Err(Refusal::new(RefusalKind::Pool, format!("the pool is still suspended: {why}")));
            }
            clock.sleep(RESUME_LOOK).await;
        }
        Ok(())
    };
    match select(pin!(engine.sync()), pin!(is_suspended_again)).await {
        Either::Left((synced, _)) => Ok(synced?),
        Either::Right((refused, _)) => refused,
    }
}

/// The cache device with that GUID or path, or whose path ends in that name.
fn cache_called(engine: &Engine, device: &str) -> Option<u64> {
    let is_called = |cache: &&NvList| {
        let path = cache.get_str("path").unwrap_or_default();
        let guid = cache.get_u64("guid").map(|guid| guid.to_string());
        path == device || guid.as_deref() == Some(device) || path.rsplit('/').next() == Some(device)
    };
    engine.shown().config.aux.caches.iter().find(is_called).and_then(|cache| cache.get_u64("guid"))
}

/// Whether a leaf has that GUID, name or path, or its path ends in that name.
fn is_called(leaf: &LeafHealth, device: &str) -> bool {
    let file_name = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    leaf.guid.to_string() == device || leaf.name == device || file_name(&leaf.name).as_deref() == Some(device)
}
