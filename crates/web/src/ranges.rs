//! Ranges of the history as JSON: series, requests by latency, and dips that repeat.

use crate::api::{Problem, not_open};
use crate::sampler::Sampler;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use weir_analytics::{Dips, LatencyCounts, LatencyKind, Point, Resolution, SERIES};

/// Greatest time between two points of an answer, in seconds.
const MAX_STEP_SECONDS: u64 = 86_400;

/// A range of the history.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Range {
    /// Time between two points [default: second].
    resolution: Option<Resolution>,
    /// First time, in milliseconds since 1970 [default: the oldest].
    from: Option<u64>,
    /// Last time, in milliseconds since 1970 [default: now].
    to: Option<u64>,
    /// Seconds between two points of the answer, a multiple of those of the resolution and at most a day [default: those of the
    /// resolution]. A point is the mean of those in its time, of latencies the maximum.
    step: Option<u64>,
}

/// Points of the history, as columns.
#[derive(Serialize, ToSchema)]
pub(crate) struct Columns {
    /// Seconds between two points.
    seconds: u64,
    /// Times, in milliseconds since 1970.
    time_ms: Vec<u64>,
    /// Values of each series, in the order of `/api/v1/series`; null for points of a version that did not have the series.
    values: Vec<Vec<Option<f32>>>,
}

/// The history of a pool: one second for an hour, ten seconds for a day, one minute for 30 days. Times without points are gaps: the
/// process did not run, or did not have the pool open.
#[utoipa::path(get, path = "/api/v1/pools/{pool}/history",
    params(("pool" = String, Path, description = "Name of the pool"), Range),
    responses((status = 200, body = Columns),
        (status = 400, body = Problem, description = "A parameter is malformed"),
        (status = 404, body = Problem, description = "The process does not have the pool open")))]
pub(crate) async fn history(
    State(sampler): State<Arc<Sampler>>,
    Path(pool): Path<String>,
    range: Result<Query<Range>, QueryRejection>,
) -> Response {
    answer(&sampler, &pool, range, |seconds, points| {
        let mut columns = Columns { seconds, time_ms: Vec::new(), values: SERIES.map(|_| Vec::new()).into() };
        for point in points {
            columns.time_ms.push(point.time_ms);
            columns
                .values
                .iter_mut()
                .zip(point.values)
                .for_each(|(column, value)| column.push(Some(value).filter(|value| !value.is_nan())));
        }
        columns
    })
}

/// Requests by time and latency, for a heat map.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatencyColumns {
    /// Seconds between two points.
    seconds: u64,
    /// Upper bounds of the classes of latency, in nanoseconds. There is one class more, without a bound.
    bounds_ns: Vec<u64>,
    /// Times, in milliseconds since 1970.
    time_ms: Vec<u64>,
    /// Of each time, the number of reads of each class; null for points of a version that did not count them.
    reads: Vec<Option<Vec<u64>>>,
    /// Numbers of writes, in the same form.
    writes: Vec<Option<Vec<u64>>>,
    /// Numbers of all other operations.
    others: Vec<Option<Vec<u64>>>,
}

/// Requests of a pool by latency over time. Counts of more than 2047 requests are rounded down by less than 0.3 %.
#[utoipa::path(get, path = "/api/v1/pools/{pool}/latency",
    params(("pool" = String, Path, description = "Name of the pool"), Range),
    responses((status = 200, body = LatencyColumns),
        (status = 400, body = Problem, description = "A parameter is malformed"),
        (status = 404, body = Problem, description = "The process does not have the pool open")))]
pub(crate) async fn latency(
    State(sampler): State<Arc<Sampler>>,
    Path(pool): Path<String>,
    range: Result<Query<Range>, QueryRejection>,
) -> Response {
    answer(&sampler, &pool, range, |seconds, points| {
        let of = |kind| points.iter().map(|point| point.latency.classes(kind)).collect();
        LatencyColumns {
            seconds,
            bounds_ns: LatencyCounts::bounds_ns(),
            time_ms: points.iter().map(|point| point.time_ms).collect(),
            reads: of(LatencyKind::Reads),
            writes: of(LatencyKind::Writes),
            others: of(LatencyKind::Others),
        }
    })
}

/// Dips of a series.
#[derive(Serialize, ToSchema)]
pub(crate) struct SeriesDips {
    /// Name of the series.
    series: &'static str,
    #[serde(flatten)]
    dips: Dips,
}

/// Dips of the bytes per second that clients read and wrote, and the time after which they repeat.
#[utoipa::path(get, path = "/api/v1/pools/{pool}/dips",
    params(("pool" = String, Path, description = "Name of the pool"), Range),
    responses((status = 200, body = Vec<SeriesDips>),
        (status = 400, body = Problem, description = "A parameter is malformed"),
        (status = 404, body = Problem, description = "The process does not have the pool open")))]
pub(crate) async fn dips(
    State(sampler): State<Arc<Sampler>>,
    Path(pool): Path<String>,
    range: Result<Query<Range>, QueryRejection>,
) -> Response {
    answer(&sampler, &pool, range, |seconds, points| {
        let of = |(place, (series, _)): (usize, &(&'static str, &'static str))| {
            let value = |point: &Point| Some((point.time_ms, *point.values.get(place)?));
            let values: Vec<(u64, f32)> = points.iter().filter_map(value).collect();
            SeriesDips { series, dips: weir_analytics::dips(&values, seconds * 1000) }
        };
        let wanted = |(_, (series, _)): &(usize, &(&'static str, &'static str))| matches!(*series, "read" | "written");
        SERIES.iter().enumerate().filter(wanted).map(of).collect::<Vec<_>>()
    })
}

/// Answers with what `make` makes of the seconds between two points and the points of a range.
fn answer<T: Serialize>(
    sampler: &Sampler,
    pool: &str,
    range: Result<Query<Range>, QueryRejection>,
    make: impl FnOnce(u64, Vec<Point>) -> T,
) -> Response {
    let range = match range {
        Ok(Query(range)) => range,
        Err(wrong) => return (StatusCode::BAD_REQUEST, Json(Problem { error: wrong.body_text() })).into_response(),
    };
    let resolution = range.resolution.unwrap_or(Resolution::Second);
    let seconds = range.step.unwrap_or(resolution.seconds());
    if seconds == 0 || !seconds.is_multiple_of(resolution.seconds()) || seconds > MAX_STEP_SECONDS {
        let error = format!("step is a multiple of {} seconds, and at most {MAX_STEP_SECONDS}", resolution.seconds());
        return (StatusCode::BAD_REQUEST, Json(Problem { error })).into_response();
    }
    let from_ms = range.from.unwrap_or(0);
    let to_ms = range.to.unwrap_or(u64::MAX);
    match sampler.history(pool, |history| history.merged(resolution, seconds * 1000, from_ms, to_ms)) {
        Some(points) => Json(make(seconds, points)).into_response(),
        None => not_open(pool).into_response(),
    }
}
