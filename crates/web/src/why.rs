//! What limits clients: the answer of `weir why -j`, by the same selection and the same rules.

use crate::api::{Problem, not_open};
use crate::sampler::Sampler;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, select as first_of};
use serde::Deserialize;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;
use weir_analytics::why::{LAST_SECONDS, PoolNotOpen, Report, Selection, select};

/// Longest name that is accepted, in bytes: that of a dataset (`ZFS_MAX_DATASET_NAME_LEN`, 256 with the NUL). Names of clients are
/// shorter.
const MAX_NAME_BYTES: usize = 255;
/// Time for the devices of the pools to answer.
const OBSERVE_TIME: Duration = Duration::from_secs(20);

/// Parameters of a diagnosis.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Question {
    /// Name of a pool [default: all pools that the process has open].
    pool: Option<String>,
    /// Pool, dataset with its descendants, or client as the table of clients shows it [default: whole pools].
    subject: Option<String>,
}

type Refused = (StatusCode, Json<Problem>);

fn refused(code: StatusCode, error: String) -> Refused {
    (code, Json(Problem { error }))
}

/// Refuses names that no pool, dataset or client has.
fn check_name(parameter: &str, name: Option<&str>) -> Result<(), Refused> {
    let Some(name) = name else { return Ok(()) };
    let wrong = |why: &str| Err(refused(StatusCode::BAD_REQUEST, format!("the parameter {parameter} {why}")));
    match name {
        "" => wrong("is empty: leave it out"),
        name if name.len() > MAX_NAME_BYTES => wrong(&format!("has {} bytes, more than {MAX_NAME_BYTES}", name.len())),
        name if name.chars().any(char::is_control) => wrong("has a control character"),
        _ => Ok(()),
    }
}

/// Diagnosis of pools, a dataset or a client: what limits, as `weir why -j` prints it. It looks at the last five minutes or, of a
/// pool that was opened later, at the time since then.
#[utoipa::path(get, path = "/api/v1/why", params(Question),
    responses((status = 200, body = Report),
        (status = 400, body = Problem, description = "A parameter is malformed"),
        (status = 404, body = Problem, description = "The process does not have the pool open"),
        (status = 503, body = Problem, description = "The state of a pool cannot be read")))]
pub(crate) async fn why(
    State(sampler): State<Arc<Sampler>>,
    question: Result<Query<Question>, QueryRejection>,
) -> Response {
    let question = match question {
        Ok(Query(question)) => question,
        Err(wrong) => return refused(StatusCode::BAD_REQUEST, wrong.body_text()).into_response(),
    };
    match report(&sampler, &question).await {
        Ok(report) => Json(report).into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// Finds the pools and the subject.
fn selection(open: Vec<String>, question: &Question) -> Result<Selection, Refused> {
    let Question { pool, subject } = question;
    check_name("pool", pool.as_deref())?;
    check_name("subject", subject.as_deref())?;
    let mut wanted = open;
    if let Some(pool) = pool {
        wanted.retain(|name| name == pool);
        if wanted.is_empty() {
            return Err(not_open(pool));
        }
    }
    select(subject.as_deref(), &wanted).map_err(|PoolNotOpen(other)| match pool {
        Some(pool) => refused(StatusCode::NOT_FOUND, format!("pool '{pool}' has no dataset of a pool '{other}'")),
        None => not_open(&other),
    })
}

async fn report(sampler: &Sampler, question: &Question) -> Result<Report, Refused> {
    let open = sampler.pools.engines().iter().map(|engine| engine.name()).collect();
    let Selection { pools, subject } = selection(open, question)?;
    let diagnoses = async {
        let _place = sampler.diagnoses.acquire().await;
        let mut seen = Vec::new();
        for pool in &pools {
            let observed = sampler.pools.observe(pool, LAST_SECONDS).await.ok_or_else(|| not_open(pool))?;
            let observed = observed.map_err(|error| refused(StatusCode::SERVICE_UNAVAILABLE, error))?;
            seen.push(observed);
        }
        if let Some(subject) = subject.as_ref().filter(|subject| !seen.iter().any(|pool| pool.knows(subject))) {
            let unknown = format!("no dataset or client '{subject}' had a request since the pools were opened");
            return Err(refused(StatusCode::NOT_FOUND, unknown));
        }
        Ok(Report { diagnoses: seen.iter().map(|pool| pool.diagnosis(subject.as_deref())).collect() })
    };
    match first_of(pin!(diagnoses), pin!(sampler.machine.clock.sleep(OBSERVE_TIME))).await {
        Either::Left((report, _)) => report,
        Either::Right(_) => {
            let error = format!("the state of the pools was not read within {} s", OBSERVE_TIME.as_secs());
            Err(refused(StatusCode::SERVICE_UNAVAILABLE, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pool: Option<&str>, subject: Option<&str>) -> Result<(String, Option<String>), u16> {
        let question = Question { pool: pool.map(str::to_owned), subject: subject.map(str::to_owned) };
        let found = selection(vec!["data".into(), "tank".into()], &question);
        found.map(|found| (found.pools.join(" "), found.subject)).map_err(|(code, _)| code.as_u16())
    }

    #[test]
    fn pools_datasets_and_clients_are_selected_as_by_the_command() {
        assert_eq!(of(None, None), Ok(("data tank".into(), None)));
        assert_eq!(of(Some("tank"), None), Ok(("tank".into(), None)));
        assert_eq!(of(None, Some("tank")), Ok(("tank".into(), None)));
        assert_eq!(of(Some("tank"), Some("tank/vm")), Ok(("tank".into(), Some("tank/vm".into()))));
        assert_eq!(of(Some("tank"), Some("10.0.0.1")), Ok(("tank".into(), Some("10.0.0.1".into()))));
        assert_eq!(of(None, Some("10.0.0.1")), Ok(("data tank".into(), Some("10.0.0.1".into()))));
    }

    #[test]
    fn names_that_nothing_has_are_refused() {
        assert_eq!(of(Some("other"), None), Err(404));
        assert_eq!(of(Some("tank"), Some("data/vm")), Err(404));
        assert_eq!(of(None, Some("other/vm")), Err(404));
        let longest = "c".repeat(MAX_NAME_BYTES);
        assert_eq!(of(None, Some(&longest)), Ok(("data tank".into(), Some(longest.clone()))));
        for name in ["", "a\nb", "tank/\u{1b}[2J", &format!("{longest}c")] {
            assert_eq!((of(Some(name), None), of(None, Some(name))), (Err(400), Err(400)), "{name:?}");
        }
    }
}
