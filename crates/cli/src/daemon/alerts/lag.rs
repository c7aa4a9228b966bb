//! Targets of replications that are behind.
//!
//! The source keeps a bookmark of the last snapshot that a target has. Its time says how far the target is behind, also when the
//! target cannot be reached, and when the daemon has just been started.

use super::conditions::Condition;
use super::settings::Kind;
use crate::daemon::jobs::{Job, Work};
use crate::daemon::keeper::Daemon;
use crate::snapshot_names::time_of;
use std::sync::Arc;
use weir_admin::below;
use weir_dsl::bookmarks::bookmarks;
use weir_dsl::{Dir, Dsl, Scope};
use weir_machine::Request;

/// How far one dataset's target is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lag {
    dataset: String,
    seconds: u64,
    /// Whether the target has a snapshot at all.
    has_any: bool,
}

/// The condition of a job whose target is further behind than the job allows. None if the source's pool is not open: that has an
/// alert of its own.
pub async fn of_job(daemon: &Arc<Daemon>, job: &Job, now: u64) -> Option<Condition> {
    let Work::Replicate { source, target, recursive, lag_seconds: Some(limit), .. } = &job.work else { return None };
    let pool = daemon.process.named(source.split('/').next().unwrap_or(source))?;
    let rq = &Request::internal("alerts");
    let found = async {
        let dsl = pool.engine.synced().dsl_in(rq, Scope::All).await.map_err(|error| error.to_string())?;
        let dirs = below(&dsl, source).into_iter().filter(|dir| *recursive || dir.name == *source);
        let mut worst: Option<Lag> = None;
        for dir in dirs {
            let lag = of_dataset(&dsl, rq, dir, &job.name, now).await.map_err(|error| error.to_string())?;
            if worst.as_ref().is_none_or(|worst| lag.seconds > worst.seconds) {
                worst = Some(lag);
            }
        }
        Ok::<_, String>(worst)
    };
    match found.await {
        Ok(worst) => condition(&job.name, target, *limit, &worst?),
        Err(error) => {
            tracing::debug!("job '{}': alerts: {error}", job.name);
            None
        }
    }
}

/// How far the target is behind: since the last snapshot that it has, or since the dataset was created.
async fn of_dataset(
    dsl: &Dsl,
    rq: &Request,
    dir: &Dir,
    job: &str,
    now: u64,
) -> Result<Lag, weir_dmu::error::ObjectError> {
    let head = dsl.head(rq, dir).await?;
    let own = |name: &str| name.rsplit_once('#').is_some_and(|(_, mark)| time_of(job, mark).is_some());
    let all = bookmarks(dsl, rq, &head).await?;
    let last = all.iter().filter(|mark| own(&mark.name)).map(|mark| mark.bookmark.creation_time_s).max();
    let seconds = now.saturating_sub(last.unwrap_or(head.phys.creation_time_s));
    Ok(Lag { dataset: dir.name.clone(), seconds, has_any: last.is_some() })
}

fn condition(job: &str, target: &str, limit: u64, lag: &Lag) -> Option<Condition> {
    if lag.seconds <= limit {
        return None;
    }
    let Lag { dataset, seconds, has_any } = lag;
    let since = if *has_any { "the last snapshot that it has is" } else { "it has no snapshot, and the dataset is" };
    let text = format!("job '{job}': {target} is behind {dataset}: {since} {seconds} s old; the limit is {limit} s");
    let state = if *has_any { "behind" } else { "empty" }.to_owned();
    Some(Condition { kind: Kind::ReplicationLag, subject: job.to_owned(), state, text, critical: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_beyond_the_limit_is_named_with_both_figures() {
        let lag = |seconds, has_any| Lag { dataset: "tank/home".into(), seconds, has_any };
        assert_eq!(condition("off", "nas:b/home", 60, &lag(60, true)), None);
        let late = condition("off", "nas:b/home", 60, &lag(61, true)).unwrap();
        assert_eq!((late.id().as_str(), late.state.as_str()), ("replication-lag:off", "behind"));
        assert!(
            late.text.contains("nas:b/home is behind tank/home") && late.text.contains("61 s old; the limit is 60 s")
        );
        let none = condition("off", "nas:b/home", 60, &lag(61, false)).unwrap();
        assert_eq!(none.state, "empty", "the first snapshot is news");
        assert!(none.text.contains("it has no snapshot"), "{}", none.text);
    }
}
