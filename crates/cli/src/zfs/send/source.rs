//! The pool that streams are made of: open in this process, or read by the command.

use super::super::receive::find_guid;
use super::progress::Counter;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dsl::bookmarks::bookmarks;
use weir_dsl::redaction::redaction_snapshots;
use weir_dsl::{Dataset, Dir, Dsl, ResumeState};
use weir_engine::Engine;
use weir_engine::sends::{KeptSnapshots, pool_features};
use weir_format::ObjectId;
use weir_machine::Request;
use weir_pool::{Pool, PoolError};
use weir_send::estimate::estimate;
use weir_send::replicate::{Range, Steps, steps};
use weir_send::{Gathering, Output, PackagedDataset, PoolFeatures, SendError, SendFlags, SendNames, SendPlan, gather};

/// The pool of the snapshots.
pub enum Source<'a> {
    /// Open in this process.
    Served(Arc<Engine>),
    /// Read by this command.
    AtRest(&'a Pool),
}

/// The streams of a command.
#[derive(Default)]
pub struct Plan {
    /// The datasets of the package; empty if the command makes none.
    pub datasets: Vec<PackagedDataset>,
    /// The streams.
    pub steps: Steps,
    _kept: Option<KeptSnapshots>,
}

/// The names of an interrupted stream.
pub struct Resumed {
    /// The snapshot.
    pub to: String,
    /// The snapshot or bookmark that it is relative to.
    pub from: Option<String>,
    /// The redaction bookmark.
    pub redact: Option<String>,
}

/// The wanted form of a stream.
pub enum Wanted<'a> {
    /// The estimated size.
    Estimate,
    /// The bytes.
    Stream {
        /// Where they go.
        output: &'a mut dyn Output,
        /// Object and offset from which on the stream is sent.
        from_point: Option<(ObjectId, u64)>,
    },
}

fn pool_error(error: PoolError) -> SendError {
    match error {
        PoolError::Object(error) => SendError::Object(error),
        other => SendError::Refused(other.to_string()),
    }
}

impl Source<'_> {
    /// Plans the streams of `range` of the dataset `top`, with a package if `gathering` is given.
    ///
    /// # Errors
    /// Errors of [`gather`] and of [`steps`].
    pub async fn plan(
        &self,
        rq: &Request,
        top: &str,
        gathering: Option<&Gathering>,
        range: Option<&Range>,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Plan, SendError> {
        match self {
            Source::Served(engine) => {
                let dsl = engine.synced().dsl(rq).await.map_err(pool_error)?;
                let (datasets, steps) = planned(rq, &dsl, top, gathering, range, warn).await?;
                let names = steps.steps.iter().flat_map(|step| step.from.iter().chain([&step.to])).map(String::as_str);
                let kept = engine.sends().keep(rq, &dsl, names).await.map_err(pool_error)?;
                Ok(Plan { datasets, steps, _kept: Some(kept) })
            }
            Source::AtRest(pool) => {
                let (datasets, steps) = planned(rq, &pool.dsl, top, gathering, range, warn).await?;
                Ok(Plan { datasets, steps, _kept: None })
            }
        }
    }

    /// The name of the snapshot that a dataset is a clone of.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn origin(&self, rq: &Request, name: &str) -> Result<Option<String>, SendError> {
        match self {
            Source::Served(engine) => origin(rq, &*engine.synced().dsl(rq).await.map_err(pool_error)?, name).await,
            Source::AtRest(pool) => origin(rq, &pool.dsl, name).await,
        }
    }

    /// The snapshot of an interrupted stream, and the snapshot or bookmark that it is relative to: by their GUIDs, whatever
    /// their names are now.
    ///
    /// # Errors
    /// [`SendError::Refused`] if one is gone.
    pub async fn resumed(&self, rq: &Request, state: &ResumeState) -> Result<Resumed, SendError> {
        match self {
            Source::Served(engine) => resumed(rq, &*engine.synced().dsl(rq).await.map_err(pool_error)?, state).await,
            Source::AtRest(pool) => resumed(rq, &pool.dsl, state).await,
        }
    }

    /// Makes the stream of one snapshot, or estimates its size; returns the number of bytes.
    ///
    /// # Errors
    /// Errors of [`SendPlan::new`] and of [`weir_send::make`].
    pub async fn one(
        &self,
        rq: &Request,
        (names, to): (SendNames<'_>, &str),
        flags: SendFlags,
        wanted: Wanted<'_>,
    ) -> Result<u64, SendError> {
        match self {
            Source::Served(engine) => {
                let (sent, dsl) = engine.sends().hold(rq, to).await.map_err(pool_error)?;
                let of = (names, sent.dataset.clone());
                let plan = checked(rq, &dsl, of, &sent.set, (flags, sent.features)).await?;
                let _lists = engine.sends().keep_lists(plan.redaction_lists());
                if let Wanted::Estimate = wanted
                    && let Some(bytes) = estimated(rq, &dsl, (names, flags), &plan, &sent.set).await?
                {
                    return Ok(bytes);
                }
                // The hold keeps the snapshot; other blocks may be reused.
                drop(dsl);
                made(rq, &sent.set, &plan, wanted).await
            }
            Source::AtRest(pool) => {
                let dataset = pool.dsl.find(rq, to).await?;
                let key = pool.loaded.get(&dataset.dir).cloned();
                let set = pool.dsl.open_set(rq, &dataset, key).await?;
                let features = pool_features(&pool.features);
                let plan = checked(rq, &pool.dsl, (names, dataset), &set, (flags, features)).await?;
                if let Wanted::Estimate = wanted
                    && let Some(bytes) = estimated(rq, &pool.dsl, (names, flags), &plan, &set).await?
                {
                    return Ok(bytes);
                }
                made(rq, &set, &plan, wanted).await
            }
        }
    }
}

async fn planned(
    rq: &Request,
    dsl: &Dsl,
    top: &str,
    gathering: Option<&Gathering>,
    range: Option<&Range>,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<(Vec<PackagedDataset>, Steps), SendError> {
    let datasets = match gathering {
        Some(gathering) => gather(rq, dsl, top, gathering, warn).await?,
        None => Vec::new(),
    };
    let steps = match range {
        Some(range) => steps(rq, dsl, top, &datasets, range, warn).await?,
        None => Steps::default(),
    };
    Ok((datasets, steps))
}

async fn origin(rq: &Request, dsl: &Dsl, name: &str) -> Result<Option<String>, SendError> {
    match dsl.dir_named(name).map(|dir| dir.phys.origin).filter(|origin| origin.0 != 0) {
        Some(origin) => Ok(dsl.snapshot_name(rq, origin).await?),
        None => Ok(None),
    }
}

async fn resumed(rq: &Request, dsl: &Dsl, state: &ResumeState) -> Result<Resumed, SendError> {
    let name = &state.to_name;
    let near = name.split('@').next().unwrap_or_default();
    let by_guid = async |guid| find_guid(rq, dsl, near, guid).await.map_err(pool_error);
    let Some(to) = by_guid(state.to_guid).await? else {
        let why = match dsl.find(rq, name).await {
            Ok(_) => format!("'{name}' is no longer the same snapshot used in the initial send"),
            Err(_) => format!("'{name}' used in the initial send no longer exists"),
        };
        return Err(SendError::Refused(why));
    };
    let redact = match &state.redact_snaps {
        Some(guids) => {
            let of = to.split('@').next().unwrap_or_default();
            let dirs = dsl.dir_named(of).into_iter().collect();
            let found = bookmark_like(rq, dsl, dirs, |_, snapshots| are_equal(guids, snapshots)).await?;
            let why = || SendError::Refused("no appropriate redaction bookmark exists".to_owned());
            Some(found.ok_or_else(why)?)
        }
        None => None,
    };
    let Some(guid) = state.from_guid else { return Ok(Resumed { to, from: None, redact }) };
    let from = match &state.book_redact_snaps {
        Some(guids) => {
            let is_it = |of, snapshots: Option<&[u64]>| of == guid && are_equal(guids, snapshots);
            bookmark_like(rq, dsl, dsl.visible_dirs(), is_it).await?
        }
        None => match by_guid(guid).await? {
            Some(snapshot) => Some(snapshot),
            None => bookmark_like(rq, dsl, dsl.visible_dirs(), |of, _| of == guid).await?,
        },
    };
    match from {
        Some(from) => Ok(Resumed { to, from: Some(from), redact }),
        None => Err(SendError::Refused(format!("incremental source {guid:#x} no longer exists"))),
    }
}

/// Whether a redaction list is one of these snapshots.
fn are_equal(wanted: &[u64], snapshots: Option<&[u64]>) -> bool {
    let sorted = |guids: &[u64]| {
        let mut guids = guids.to_vec();
        guids.sort_unstable();
        guids
    };
    snapshots.is_some_and(|snapshots| sorted(snapshots) == sorted(wanted))
}

/// The first bookmark of these directories that fits: by its GUID, and the snapshots of its redaction list.
async fn bookmark_like(
    rq: &Request,
    dsl: &Dsl,
    dirs: Vec<&Dir>,
    fits: impl Fn(u64, Option<&[u64]>) -> bool,
) -> Result<Option<String>, SendError> {
    for dir in dirs {
        for named in bookmarks(dsl, rq, &dsl.head(rq, dir).await?).await? {
            let snapshots = redaction_snapshots(dsl, rq, &named.bookmark).await?;
            if fits(named.bookmark.guid, snapshots.as_deref()) {
                return Ok(Some(named.name));
            }
        }
    }
    Ok(None)
}

/// Estimates the size of a stream; `None` if it has to be made for that, as one with a redaction list.
async fn estimated(
    rq: &Request,
    dsl: &Dsl,
    (names, flags): (SendNames<'_>, SendFlags),
    plan: &SendPlan,
    set: &Arc<ObjectSet>,
) -> Result<Option<u64>, SendError> {
    if plan.redaction_lists().next().is_some() {
        return Ok(None);
    }
    estimate(rq, dsl, names.from, (&plan.to, set), flags.compressed || flags.raw).await
}

async fn checked(
    rq: &Request,
    dsl: &Dsl,
    names: (SendNames<'_>, Dataset),
    set: &Arc<ObjectSet>,
    options: (SendFlags, PoolFeatures),
) -> Result<SendPlan, SendError> {
    if set.is_locked() && !options.0.raw {
        return Err(SendError::Refused("source key must be loaded".into()));
    }
    SendPlan::new(rq, dsl, names, set, options).await
}

async fn made(rq: &Request, set: &Arc<ObjectSet>, plan: &SendPlan, wanted: Wanted<'_>) -> Result<u64, SendError> {
    match wanted {
        Wanted::Estimate => {
            let mut counter = Counter::default();
            weir_send::make(rq, set, plan, &mut counter).await
        }
        Wanted::Stream { output, from_point: None } => weir_send::make(rq, set, plan, output).await,
        Wanted::Stream { output, from_point: Some((object, offset)) } => {
            weir_send::make(rq, set, &plan.clone().continued(object, offset), output).await
        }
    }
}
