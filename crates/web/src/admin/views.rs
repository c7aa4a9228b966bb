//! What the screens show: answers of the commands that read, by name.

use super::action::Role;
use super::tokens::Identity;
use super::words::CommandLine;
use super::{Administrator, Device, Disk, LayoutQuery, Ran, UsableSpace};
use crate::api::Problem;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Longest name that is accepted, in bytes.
const MAX_NAME_BYTES: usize = 4096;
/// Columns of pools: their sizes, and whether they can be changed.
const POOL_COLUMNS: &str = "name,size,allocated,free,fragmentation,capacity,dedupratio,health,readonly";
/// Columns of the list of datasets.
const DATASET_COLUMNS: &str = "name,type,used,available,referenced,usedbysnapshots,compressratio,quota,mountpoint,mounted,\
                               origin,volsize,encryption,encryptionroot,keystatus,sharenfs,sharesmb,weir:iscsi,weir:nbd";
/// Columns of the list of snapshots.
const SNAPSHOT_COLUMNS: &str = "name,used,referenced,written,creation,userrefs,clones";

/// Object of a view.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Subject {
    /// Pool or dataset; for `import` a directory or device.
    name: Option<String>,
}

/// Answer of a command that reads.
#[derive(Serialize, ToSchema)]
pub(crate) struct Viewed {
    /// The command line that prints the same.
    command: String,
    /// JSON that it printed; null if it prints none.
    #[schema(value_type = Object)]
    answer: Value,
    /// Text that it printed, if that is no JSON.
    text: String,
    /// Text of its error; empty if it succeeded.
    error: String,
}

/// The command of a view, and whether it prints JSON; `None` if there is no such view.
fn command_of(what: &str, name: Option<&str>) -> Option<(CommandLine, bool)> {
    let line = |program, words: &[&str]| Some((CommandLine::new(program, words), true));
    match (what, name) {
        ("pools", None) => line("zpool", &["status", "-j", "--json-int", "-s"]),
        ("sizes", None) => line("zpool", &["list", "-j", "--json-int", "-p", "-o", POOL_COLUMNS]),
        ("datasets", None) => {
            line("zfs", &["list", "-j", "--json-int", "-p", "-t", "filesystem,volume", "-o", DATASET_COLUMNS])
        }
        ("snapshots", Some(of)) => {
            let words = [
                "list",
                "-j",
                "--json-int",
                "-p",
                "-t",
                "snapshot",
                "-d",
                "1",
                "-s",
                "createtxg",
                "-o",
                SNAPSHOT_COLUMNS,
                of,
            ];
            line("zfs", &words)
        }
        ("properties", Some(of)) => line("zfs", &["get", "-j", "all", of]),
        ("pool_properties", Some(of)) => line("zpool", &["get", "-j", "all", of]),
        ("status", None) => line("daemon", &["status", "-j", "--json-int"]),
        ("alerts", None) => line("daemon", &["alerts", "-j", "--json-int"]),
        ("history", Some(of)) => Some((CommandLine::new("zpool", ["history", of]), false)),
        ("import", None) => Some((CommandLine::new("zpool", ["import"]), false)),
        ("import", Some(place)) if place.starts_with('/') => {
            Some((CommandLine::new("zpool", ["import", "-d", place]), false))
        }
        _ => None,
    }
}

fn refused(code: StatusCode, error: impl Into<String>) -> Response {
    (code, Json(Problem { error: error.into() })).into_response()
}

/// State of pools, datasets, alerts, jobs and clients, as the commands show it that read it: `pools`, `sizes`, `datasets`,
/// `status`, `alerts`, `import` (also of a directory), and of a pool or dataset `snapshots`, `properties`, `pool_properties`, `history`.
#[utoipa::path(get, path = "/api/v1/admin/view/{what}",
    params(("what" = String, Path, description = "Name of the view"), Subject),
    responses((status = 200, body = Viewed),
        (status = 400, body = Problem, description = "A parameter is malformed"),
        (status = 404, body = Problem, description = "There is no such view")))]
pub(crate) async fn view(
    State(admin): State<Option<Arc<Administrator>>>,
    Path(what): Path<String>,
    subject: Result<Query<Subject>, QueryRejection>,
) -> Response {
    let subject = match subject {
        Ok(Query(subject)) => subject,
        Err(wrong) => return refused(StatusCode::BAD_REQUEST, wrong.body_text()),
    };
    let name = subject.name.as_deref();
    let is_wrong = |name: &str| name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('-');
    if name.is_some_and(|name| is_wrong(name) || name.chars().any(char::is_control)) {
        return refused(StatusCode::BAD_REQUEST, "the parameter name is no name of a pool, dataset or directory");
    }
    let Some(admin) = admin else {
        return refused(StatusCode::NOT_FOUND, "this process cannot be administered here: use 'weir daemon'");
    };
    let Some((line, is_json)) = command_of(&what, name) else {
        return refused(StatusCode::NOT_FOUND, format!("there is no view '{what}' of this"));
    };
    let Ran { code, out, err } = admin.run(&line).await;
    let command = line.to_string();
    let error = if code == 0 { String::new() } else { err.trim_end().to_owned() };
    let viewed = match serde_json::from_str(&out) {
        Ok(answer) if is_json => Viewed { command, answer, text: String::new(), error },
        _ => Viewed { command, answer: Value::Null, text: format!("{out}{err}"), error },
    };
    Json(viewed).into_response()
}

/// A device that is asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Place {
    /// Absolute path [default: all devices that a pool could use].
    path: Option<String>,
}

/// Devices of this machine that a pool could use, or the one at a path.
#[utoipa::path(get, path = "/api/v1/admin/devices", params(Place), responses((status = 200, body = Vec<Device>),
    (status = 400, body = Problem, description = "The path is malformed"),
    (status = 403, body = Problem, description = "The role does not include paths")))]
pub(crate) async fn devices(
    State(admin): State<Option<Arc<Administrator>>>,
    Extension(who): Extension<Identity>,
    place: Result<Query<Place>, QueryRejection>,
) -> Response {
    let place = match place {
        Ok(Query(place)) => place,
        Err(wrong) => return refused(StatusCode::BAD_REQUEST, wrong.body_text()),
    };
    let Some(admin) = admin else { return Json(Vec::<Device>::new()).into_response() };
    match place.path {
        None => Json(admin.administration.devices(None).await).into_response(),
        Some(_) if who.role < Role::Administer => refused(StatusCode::FORBIDDEN, "a path is for the role administer"),
        Some(path) if path.starts_with('/') && path.len() <= MAX_NAME_BYTES && !path.contains('\0') => {
            Json(admin.administration.devices(Some(path)).await).into_response()
        }
        Some(_) => refused(StatusCode::BAD_REQUEST, "the path of a device begins with /"),
    }
}

/// Disks of the open pools, and devices of this machine that a pool could use, with their health by SMART.
#[utoipa::path(get, path = "/api/v1/admin/disks", responses((status = 200, body = Vec<Disk>)))]
pub(crate) async fn disks(State(admin): State<Option<Arc<Administrator>>>) -> Json<Vec<Disk>> {
    match admin {
        Some(admin) => Json(admin.administration.disks().await),
        None => Json(Vec::new()),
    }
}

/// Usable space of a layout, by the planner's arithmetic.
#[utoipa::path(get, path = "/api/v1/admin/capacity", params(LayoutQuery),
    responses((status = 200, body = UsableSpace), (status = 400, body = Problem, description = "There is no such layout")))]
pub(crate) async fn capacity(
    State(admin): State<Option<Arc<Administrator>>>,
    layout: Result<Query<LayoutQuery>, QueryRejection>,
) -> Response {
    let layout = match layout {
        Ok(Query(layout)) => layout,
        Err(wrong) => return refused(StatusCode::BAD_REQUEST, wrong.body_text()),
    };
    let none = || Err("this process cannot be administered here".to_owned());
    match admin.map_or_else(none, |admin| admin.administration.usable_space(&layout)) {
        Ok(space) => Json(space).into_response(),
        Err(why) => refused(StatusCode::BAD_REQUEST, why),
    }
}

/// The last lines of the log, the oldest first.
#[utoipa::path(get, path = "/api/v1/admin/log", responses((status = 200, body = Vec<String>)))]
pub(crate) async fn log(State(admin): State<Option<Arc<Administrator>>>) -> Json<Vec<String>> {
    Json(admin.map(|admin| admin.administration.log()).unwrap_or_default())
}
