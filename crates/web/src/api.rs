//! The JSON API. Its OpenAPI description is at `/api/v1/openapi.json`.

use crate::admin::{Access, Administrator, Identity};
use crate::exporters::ExporterNames;
use crate::sampler::{LiveSecond, Sampler};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use utoipa::{Modify, OpenApi, ToSchema};
use weir_analytics::{SERIES, Sample, metrics};

/// The OpenAPI description.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weir",
        description = "Analytics and administration of the pools that a process has open. Every request needs a token."
    ),
    paths(
        pools,
        series,
        sample,
        crate::files::files,
        crate::ranges::history,
        crate::ranges::latency,
        crate::ranges::dips,
        live,
        crate::why::why,
        prometheus,
        crate::admin::routes::me,
        crate::admin::lights::lights,
        crate::admin::views::view,
        crate::admin::views::devices,
        crate::admin::views::disks,
        crate::admin::views::capacity,
        crate::admin::views::log,
        crate::admin::routes::audited,
        crate::admin::routes::command,
        crate::admin::routes::preview,
        crate::admin::routes::act,
        crate::admin::streams::send,
        crate::admin::streams::receive
    ),
    modifiers(&Refusals)
)]
struct Description;

/// Adds the refusals that every request may get.
struct Refusals;

impl Modify for Refusals {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let refusals = [("401", "A token is missing or wrong (text)"), ("421", "The host is not localhost (text)")];
        let operations = description.paths.paths.values_mut().flat_map(|path| [path.get.as_mut(), path.post.as_mut()]);
        for operation in operations.flatten() {
            for (code, why) in refusals {
                let response = utoipa::openapi::ResponseBuilder::new().description(why).build();
                operation.responses.responses.insert(code.to_owned(), response.into());
            }
        }
    }
}

/// The OpenAPI description as JSON.
pub fn open_api() -> String {
    Description::openapi().to_pretty_json().unwrap_or_default()
}

pub(crate) async fn description() -> Response {
    ([(CONTENT_TYPE, "application/json")], open_api()).into_response()
}

/// Reason for a failure.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// One line.
    pub error: String,
}

/// Answer of paths that do not exist.
pub(crate) async fn unknown(uri: Uri) -> (StatusCode, Json<Problem>) {
    let error = format!("there is no '{}': /api/v1/openapi.json describes what there is", uri.path());
    (StatusCode::NOT_FOUND, Json(Problem { error }))
}

pub(crate) fn not_open(pool: &str) -> (StatusCode, Json<Problem>) {
    (StatusCode::NOT_FOUND, Json(Problem { error: format!("this process has no pool '{pool}' open") }))
}

/// Names of the pools.
#[utoipa::path(get, path = "/api/v1/pools", responses((status = 200, body = Vec<String>)))]
pub(crate) async fn pools(State(sampler): State<Arc<Sampler>>) -> Json<Vec<String>> {
    Json(sampler.names())
}

/// A series of the history.
#[derive(Serialize, ToSchema)]
pub(crate) struct Series {
    /// Name.
    name: &'static str,
    /// Unit.
    unit: &'static str,
}

/// Names and units of the series of the history, in the order of its values.
#[utoipa::path(get, path = "/api/v1/series", responses((status = 200, body = Vec<Series>)))]
pub(crate) async fn series() -> Json<Vec<Series>> {
    Json(SERIES.into_iter().map(|(name, unit)| Series { name, unit }).collect())
}

/// All counters of a pool, as of now.
#[utoipa::path(get, path = "/api/v1/pools/{pool}/sample", params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = Sample), (status = 404, body = Problem)))]
pub(crate) async fn sample(State(sampler): State<Arc<Sampler>>, Path(pool): Path<String>) -> Response {
    match sampler.sample(&pool) {
        Some(sample) => Json(sample).into_response(),
        None => not_open(&pool).into_response(),
    }
}

/// Work of each pool in the last second, as an event a second: a JSON array with an element for each pool.
#[utoipa::path(get, path = "/api/v1/live",
    responses((status = 200, content_type = "text/event-stream", body = Vec<LiveSecond>)))]
pub(crate) async fn live(
    State(sampler): State<Arc<Sampler>>,
    State(access): State<Arc<Access>>,
    Extension(who): Extension<Identity>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
    let events = unfold((sampler.live(), access, who), |(mut seconds, access, who)| async move {
        seconds.changed().await.ok()?;
        if !access.knows(&who) {
            // Its token was revoked.
            return None;
        }
        let now = seconds.borrow_and_update().clone();
        let event = Event::default().json_data(&*now).unwrap_or_else(|_| Event::default().comment("not representable"));
        Some((Ok(event), (seconds, access, who)))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// Metrics for Prometheus. Those of the names that `names` lists are added: `zfs_exporter`, `node_exporter`.
#[utoipa::path(get, path = "/metrics",
    params(("names" = Option<String>, Query,
        description = "Projects whose names of metrics are added, separated by commas: zfs_exporter, node_exporter")),
    responses((status = 200, content_type = "application/openmetrics-text", body = String),
        (status = 400, body = Problem, description = "A parameter is malformed")))]
pub(crate) async fn prometheus(
    State(sampler): State<Arc<Sampler>>,
    State(admin): State<Option<Arc<Administrator>>>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let refused = |error: String| (StatusCode::BAD_REQUEST, Json(Problem { error })).into_response();
    let names = match query {
        Ok(Query(pairs)) => ExporterNames::of_query(&pairs),
        Err(wrong) => Err(wrong.body_text()),
    };
    let names = match names {
        Ok(names) => names,
        Err(why) => return refused(why),
    };
    let samples = sampler.samples();
    let families = names.families(&sampler.machine, &samples, admin.as_deref()).await;
    match metrics::text(samples, sampler.pools.service(), families) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_has_each_path_and_type() {
        let text: serde_json::Value = serde_json::from_str(&open_api()).unwrap();
        for path in [
            "pools",
            "series",
            "pools/{pool}/sample",
            "pools/{pool}/files",
            "pools/{pool}/history",
            "pools/{pool}/latency",
            "pools/{pool}/dips",
            "live",
            "why",
        ] {
            assert!(text["paths"][format!("/api/v1/{path}")]["get"].is_object(), "{path}");
        }
        let why = &text["paths"]["/api/v1/why"]["get"];
        let parameters = why["parameters"].as_array().unwrap();
        let names: Vec<_> = parameters.iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names, ["pool", "subject"]);
        assert!(parameters.iter().all(|one| one["in"] == "query"), "{why}");
        assert!(["200", "400", "404", "503"].iter().all(|code| why["responses"][code].is_object()), "{why}");
        let history = &text["paths"]["/api/v1/pools/{pool}/history"]["get"];
        for parameter in history["parameters"].as_array().unwrap() {
            let is_path = parameter["name"] == "pool";
            assert_eq!(parameter["in"], if is_path { "path" } else { "query" }, "{parameter}");
            assert_eq!(parameter["required"], is_path, "{parameter}");
        }
        for (path, item) in text["paths"].as_object().unwrap() {
            let method = if item["get"].is_object() { "get" } else { "post" };
            let responses = &item[method]["responses"];
            assert!(["200", "401", "421"].iter().all(|code| responses[code].is_object()), "{path}: {responses}");
        }
        for name in ["Report", "Diagnosis", "Finding", "Cause", "Sample", "Problem"] {
            assert!(text["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
