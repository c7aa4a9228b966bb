//! The files of a pool with the most bytes of late.

use crate::api::{Problem, not_open};
use crate::sampler::Sampler;
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, select as first_of};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weir_analytics::{FileTable, Interval, paths};

/// Time for the devices to answer with the paths. Files are shown by their numbers then.
const PATHS_TIME: Duration = Duration::from_secs(5);

/// Files with the most bytes of late, each with one client, the greatest first: what was counted since they were listed, and their
/// errors since the pool was opened. The first 64 have their paths.
#[utoipa::path(get, path = "/api/v1/pools/{pool}/files", params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = FileTable), (status = 404, body = Problem)))]
pub(crate) async fn files(State(sampler): State<Arc<Sampler>>, Path(pool): Path<String>) -> Response {
    let engine = sampler.pools.engines().into_iter().find(|engine| engine.name() == pool);
    let (Some(engine), Some(sample)) = (engine, sampler.sample(&pool)) else { return not_open(&pool).into_response() };
    let mut files = Interval::between(None, &sample).files;
    let wanted: Vec<(u64, u64)> = files.rows.iter().map(|row| (row.objset, row.object)).collect();
    let found = async {
        let _place = sampler.diagnoses.acquire().await;
        paths(&engine, &wanted).await
    };
    if let Either::Left((found, _)) = first_of(pin!(found), pin!(sampler.machine.clock.sleep(PATHS_TIME))).await {
        for (row, path) in files.rows.iter_mut().zip(found) {
            row.path = path.or(row.path.take());
        }
    }
    Json(files).into_response()
}
