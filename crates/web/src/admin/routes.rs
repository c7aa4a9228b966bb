//! Requests that act: commands, dry runs, actions, and the audit log.
#![allow(clippy::disallowed_methods, reason = "an action goes on in a task of its own if its client goes away")]

use super::action::{PageAction, Role};
use super::confirm::ConfirmationError;
use super::dry_run::{DryOutput, dry_run};
use super::guard::Peer;
use super::tokens::Identity;
use super::words::CommandLine;
use super::{Administrator, Ran, Secret};
use crate::api::Problem;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, select as first_of};
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// Maximum size of the body of a request in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;
/// Time for a client to send the body of a request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Longest secret in bytes: a passphrase has at most 512.
const MAX_SECRET_BYTES: usize = 512;
/// Lines of the audit log in an answer.
const AUDIT_LINES: usize = 200;

/// Owner of the token, and whether the process can be administered.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    /// Name of the token.
    name: String,
    /// Rights.
    role: Role,
    /// Whether there is anything to administer.
    administers: bool,
}

/// Owner of the token of this request.
#[utoipa::path(get, path = "/api/v1/admin/me", responses((status = 200, body = Me)))]
pub(crate) async fn me(
    Extension(who): Extension<Identity>,
    State(admin): State<Option<Arc<Administrator>>>,
) -> Json<Me> {
    Json(Me { name: who.name, role: who.role, administers: admin.is_some() })
}

/// An action, with the confirmation of its dry run if it needs one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    /// The action.
    action: PageAction,
    /// Confirmation that `preview` gave.
    #[serde(default)]
    confirmation: Option<String>,
    /// Passphrase or key in hexadecimal digits, for an action that takes one.
    #[serde(default)]
    secret: Option<Secret>,
}

/// An action as a command line.
#[derive(Serialize, ToSchema)]
pub(crate) struct Described {
    /// The command line that does the same; empty if there is none.
    command: String,
    /// Why there is none.
    error: Option<String>,
    /// The least role that may do it.
    role: Role,
    /// Whether a dry run must precede it.
    needs_confirmation: bool,
    /// Whether it takes a passphrase or key.
    takes_secret: bool,
}

/// A dry run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Previewed {
    /// The command line that does the same.
    command: String,
    /// Output of the commands that show it.
    shown: Vec<DryOutput>,
    /// Confirmation for `act`, valid once, for 5 minutes, while nothing changes; null if the action needs none.
    confirmation: Option<String>,
}

/// End of an action.
#[derive(Serialize, ToSchema)]
pub(crate) struct Acted {
    /// The command line that was carried out.
    command: String,
    /// Text that it printed.
    output: String,
}

pub(super) type Refused = (StatusCode, Json<Problem>);

pub(super) fn refused(code: StatusCode, error: impl Into<String>) -> Refused {
    (code, Json(Problem { error: error.into() }))
}

impl From<ConfirmationError> for Refused {
    fn from(error: ConfirmationError) -> Self {
        refused(StatusCode::CONFLICT, error.to_string())
    }
}

/// The administrator, if there is one.
pub(super) fn of(admin: Option<Arc<Administrator>>) -> Result<Arc<Administrator>, Refused> {
    admin.ok_or_else(|| refused(StatusCode::NOT_FOUND, "this process cannot be administered here: use 'weir daemon'"))
}

/// Reads the order in a body.
async fn order(admin: &Administrator, body: Body) -> Result<Order, Refused> {
    let late = admin.machine.clock.sleep(BODY_TIME);
    let bytes = match first_of(pin!(to_bytes(body, MAX_BODY_BYTES)), pin!(late)).await {
        Either::Left((Ok(bytes), _)) => bytes,
        Either::Left((Err(_), _)) => {
            let why = format!("the body has more than {MAX_BODY_BYTES} bytes, or ended early");
            return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Either::Right(_) => {
            let why = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
            return Err(refused(StatusCode::REQUEST_TIMEOUT, why));
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| refused(StatusCode::BAD_REQUEST, format!("no action: {error}")))
}

/// The command line of an action.
pub(super) fn line(action: &PageAction) -> Result<CommandLine, Refused> {
    action.line().map_err(|why| refused(StatusCode::BAD_REQUEST, why))
}

/// Refuses an action that the role does not include.
pub(super) fn check_role(who: &Identity, action: &PageAction) -> Result<(), Refused> {
    let needed = action.role();
    if who.role >= needed {
        return Ok(());
    }
    let why = format!("the token '{}' has the role {}, and this needs {}", who.name, who.role.name(), needed.name());
    Err(refused(StatusCode::FORBIDDEN, why))
}

/// The command line that does the same as an action. Nothing is done.
#[utoipa::path(post, path = "/api/v1/admin/command", request_body = Order, responses((status = 200, body = Described),
    (status = 400, body = Problem, description = "No action")))]
pub(crate) async fn command(State(admin): State<Option<Arc<Administrator>>>, body: Body) -> Response {
    let described = async {
        let order = order(&*of(admin)?, body).await?;
        let (command, error) = match order.action.line() {
            Ok(line) => (line.to_string(), None),
            Err(why) => (String::new(), Some(why)),
        };
        let needs_confirmation = order.action.needs_confirmation();
        let (role, takes_secret) = (order.action.role(), order.action.takes_secret());
        Ok::<_, Refused>(Json(Described { command, error, role, needs_confirmation, takes_secret }))
    };
    described.await.map_or_else(IntoResponse::into_response, IntoResponse::into_response)
}

/// Dry run of an action, and the confirmation that it needs. Nothing is done.
#[utoipa::path(post, path = "/api/v1/admin/preview", request_body = Order, responses((status = 200, body = Previewed),
    (status = 400, body = Problem, description = "No action"),
    (status = 403, body = Problem, description = "The role does not include it"),
    (status = 422, body = Problem, description = "The command would fail: all that it printed")))]
pub(crate) async fn preview(
    Extension(who): Extension<Identity>,
    State(admin): State<Option<Arc<Administrator>>>,
    body: Body,
) -> Response {
    let previewed = async {
        let admin = of(admin)?;
        let order = order(&admin, body).await?;
        check_role(&who, &order.action)?;
        let command = line(&order.action)?.to_string();
        let dry = dry_run(&admin, &order.action).await;
        let dry = dry.map_err(|why| refused(StatusCode::UNPROCESSABLE_ENTITY, why))?;
        let make = || admin.confirmations.make(&admin.machine, &order.action, dry.digest(), &who);
        let confirmation = order.action.needs_confirmation().then(make);
        Ok::<_, Refused>(Json(Previewed { command, shown: dry.shown, confirmation }))
    };
    previewed.await.map_or_else(IntoResponse::into_response, IntoResponse::into_response)
}

/// Carries out an action. It goes on if the client goes away.
#[utoipa::path(post, path = "/api/v1/admin/act", request_body = Order, responses((status = 200, body = Acted),
    (status = 400, body = Problem, description = "No action"),
    (status = 403, body = Problem, description = "The role does not include it, or the request may come from another site"),
    (status = 409, body = Problem, description = "It needs the confirmation of a dry run, or the state has changed since"),
    (status = 413, body = Problem, description = "The body is too long"),
    (status = 422, body = Problem, description = "The command failed: all that it printed")))]
pub(crate) async fn act(
    Extension(who): Extension<Identity>,
    Extension(Peer(client)): Extension<Peer>,
    State(admin): State<Option<Arc<Administrator>>>,
    body: Body,
) -> Response {
    let (admin, order) = match of(admin) {
        Ok(admin) => match order(&admin, body).await {
            Ok(order) => (admin, order),
            Err(refused) => return refused.into_response(),
        },
        Err(refused) => return refused.into_response(),
    };
    let line = match line(&order.action) {
        Ok(line) => line,
        Err(refused) => return refused.into_response(),
    };
    let task = tokio::spawn(async move {
        let done = carry_out(&admin, &who, &order, &line).await;
        let result = match &done {
            Ok(_) => "done".to_owned(),
            Err((code, Json(problem))) if *code == StatusCode::UNPROCESSABLE_ENTITY => {
                format!("failed: {}", problem.error)
            }
            Err((_, Json(problem))) => format!("refused: {}", problem.error),
        };
        admin.audit.note(&admin.administration.time(), &who, client, &line.to_string(), &result);
        done
    });
    match task.await {
        Ok(Ok(output)) => output.into_response(),
        Ok(Err(refused)) => refused.into_response(),
        Err(_) => {
            refused(StatusCode::INTERNAL_SERVER_ERROR, "the command ended by an error of this program").into_response()
        }
    }
}

/// Checks role and confirmation, and runs the command.
async fn carry_out(
    admin: &Administrator,
    who: &Identity,
    order: &Order,
    line: &CommandLine,
) -> Result<Json<Acted>, Refused> {
    check_role(who, &order.action)?;
    if order.action.is_stream() {
        return Err(refused(StatusCode::BAD_REQUEST, "a stream is a download or an upload: GET send, POST receive"));
    }
    match &order.secret {
        Some(_) if !order.action.takes_secret() => {
            return Err(refused(StatusCode::BAD_REQUEST, "this action takes no secret"));
        }
        Some(secret) if secret.text().len() > MAX_SECRET_BYTES || secret.text().chars().any(char::is_control) => {
            let why = format!("a secret has at most {MAX_SECRET_BYTES} bytes, and no control characters");
            return Err(refused(StatusCode::BAD_REQUEST, why));
        }
        _ => {}
    }
    let mut _turn = None;
    if order.action.needs_confirmation() {
        let given = order.confirmation.as_deref();
        let digest = admin.confirmations.take(&admin.machine, given, &order.action, who)?;
        _turn = admin.confirmed.acquire().await.ok();
        let now = dry_run(admin, &order.action).await;
        if now.ok().map(|now| now.digest()) != Some(digest) {
            return Err(ConfirmationError::Changed.into());
        }
    }
    let Ran { code, out, err } = admin.run_with(line, order.secret.as_ref()).await;
    let text = format!("{err}{out}").trim_end().to_owned();
    match code {
        0 => Ok(Json(Acted { command: line.to_string(), output: text })),
        code if text.is_empty() => Err(refused(StatusCode::UNPROCESSABLE_ENTITY, format!("exit code {code}"))),
        _ => Err(refused(StatusCode::UNPROCESSABLE_ENTITY, text)),
    }
}

/// The last actions, the newest first: lines of the audit log.
#[utoipa::path(get, path = "/api/v1/admin/audit", responses((status = 200, body = Vec<serde_json::Value>),
    (status = 403, body = Problem, description = "The role does not include it")))]
pub(crate) async fn audited(
    Extension(who): Extension<Identity>,
    State(admin): State<Option<Arc<Administrator>>>,
) -> Response {
    if who.role < Role::Administer {
        return refused(StatusCode::FORBIDDEN, "the audit log is for the role administer").into_response();
    }
    let admin = match of(admin) {
        Ok(admin) => admin,
        Err(refused) => return refused.into_response(),
    };
    match admin.audit.last(AUDIT_LINES) {
        Ok(lines) => {
            let parsed = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
            Json(parsed.collect::<Vec<serde_json::Value>>()).into_response()
        }
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}
