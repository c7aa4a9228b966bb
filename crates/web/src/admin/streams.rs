//! Streams of snapshots as files: what `zfs send` makes as a download, and an upload for `zfs receive`.
//!
//! ```text
//!   POST preview {"do":"send"} ─► dry run: the estimated size ─► confirmation
//!   GET  send?confirmation=…   ─► role, confirmation ─► `zfs send` ─► at most CHUNKS wait ─► body of the answer
//!   POST receive?dataset=…     ─► role ─► body of the request ─► at most CHUNKS wait ─► `zfs receive`
//! ```
//!
//! The browser itself saves a download, and its request cannot have a header of the page: so it has the confirmation, which only a
//! request that no other site can make has given.
//!
//! *Bounds.* A stream is as long as it is, and is never in memory as a whole. At most [`MAX_STREAMS`] are in progress. A client that
//! takes or sends no byte for [`STALL_TIME`], or goes away, ends its command: `zfs receive` destroys then what it had not received
//! whole.
#![allow(clippy::disallowed_methods, reason = "a command goes on in a task of its own if its client goes away")]

use super::action::PageAction;
use super::guard::Peer;
use super::routes::{Refused, check_role, line, of, refused};
use super::tokens::Identity;
use super::words::CommandLine;
use super::{Administrator, Ran, StreamEnd};
use crate::api::Problem;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, select as first_of};
use futures_util::stream::{StreamExt, unfold};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use utoipa::{IntoParams, ToSchema};

/// Streams in progress.
pub(super) const MAX_STREAMS: usize = 4;
/// Chunks of a stream, of some hundred KiB at most, that wait for the client or the command.
const CHUNKS: usize = 8;
/// Time in which a client has to take or to send a byte.
pub const STALL_TIME: Duration = Duration::from_secs(60);
/// Time in which the rest of an upload is read and forgotten after its command has failed, so that the client reads why.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// The stream that is sent, and the confirmation of its dry run.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SendQuery {
    /// Snapshot.
    snapshot: String,
    /// Earlier snapshot or bookmark: only the changes since then.
    from: Option<String>,
    /// Also all datasets below, with their snapshots and properties.
    #[serde(default)]
    recursive: bool,
    /// Encrypted blocks as they are, without their keys.
    #[serde(default)]
    raw: bool,
    /// Large, embedded and compressed blocks as they are.
    #[serde(default)]
    as_stored: bool,
    /// Confirmation that `preview` gave for this action.
    confirmation: Option<String>,
}

/// The dataset that receives a stream.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReceiveQuery {
    /// Full name.
    dataset: String,
    /// Leaves it unmounted.
    #[serde(default)]
    no_mount: bool,
}

/// End of an upload.
#[derive(Serialize, ToSchema)]
pub(crate) struct Received {
    /// The command line that was carried out.
    command: String,
    /// Text that it printed.
    output: String,
    /// Bytes that it read.
    bytes: u64,
}

/// A stream whose command runs.
struct Running {
    admin: Arc<Administrator>,
    who: Identity,
    client: SocketAddr,
    line: CommandLine,
    _place: OwnedSemaphorePermit,
}

impl Running {
    /// Notes an attempt that was refused.
    fn refuse(
        admin: &Administrator,
        who: &Identity,
        client: SocketAddr,
        line: &CommandLine,
        refused: Refused,
    ) -> Refused {
        let result = format!("refused: {}", refused.1.error);
        admin.audit.note(&admin.administration.time(), who, client, &line.to_string(), &result);
        refused
    }

    /// Takes a place for a stream, after `check`.
    fn begin(
        admin: Arc<Administrator>,
        who: Identity,
        client: SocketAddr,
        line: CommandLine,
        check: impl FnOnce(&Administrator, &Identity) -> Result<(), Refused>,
    ) -> Result<Self, Refused> {
        let place = check(&admin, &who).and_then(|()| {
            let why = || refused(StatusCode::SERVICE_UNAVAILABLE, format!("{MAX_STREAMS} streams are in progress"));
            admin.streams.clone().try_acquire_owned().map_err(|_| why())
        });
        match place {
            Ok(place) => Ok(Running { admin, who, client, line, _place: place }),
            Err(refused) => Err(Running::refuse(&admin, &who, client, &line, refused)),
        }
    }

    /// Runs the command to its end, and notes it with the bytes of its stream, which are complete when `counted` is ready.
    async fn run(self, end: StreamEnd, bytes: &AtomicU64, counted: impl Future<Output = ()>) -> Ran {
        let ran = self.admin.administration.stream(&self.line, end).await;
        counted.await;
        let result = match ran.code {
            0 => format!("done: {} bytes", bytes.load(Ordering::Relaxed)),
            _ => format!("failed after {} bytes: {}", bytes.load(Ordering::Relaxed), text_of(&ran)),
        };
        self.admin.audit.note(
            &self.admin.administration.time(),
            &self.who,
            self.client,
            &self.line.to_string(),
            &result,
        );
        ran
    }
}

/// All that a command printed, or its exit code.
fn text_of(ran: &Ran) -> String {
    match format!("{}{}", ran.err, ran.out).trim_end() {
        "" => format!("exit code {}", ran.code),
        text => text.to_owned(),
    }
}

fn query<T>(given: Result<Query<T>, QueryRejection>) -> Result<T, Refused> {
    given.map(|Query(query)| query).map_err(|wrong| refused(StatusCode::BAD_REQUEST, wrong.body_text()))
}

/// File name for the stream of a snapshot, of characters that every file system accepts.
fn file_name(snapshot: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '-' };
    let name: String = snapshot.chars().map(plain).take(200).collect();
    format!("{}.zfs", name.trim_start_matches(['.', '-']))
}

/// The stream of a snapshot, as `zfs send` writes it. It needs the confirmation that `preview` gave for the action `send`. The
/// connection breaks if the stream cannot be ended.
#[utoipa::path(get, path = "/api/v1/admin/send", params(SendQuery), responses(
    (status = 200, content_type = "application/octet-stream", body = String, description = "The stream"),
    (status = 400, body = Problem, description = "A parameter is malformed"),
    (status = 403, body = Problem, description = "The role does not include it"),
    (status = 409, body = Problem, description = "It needs the confirmation of a dry run"),
    (status = 422, body = Problem, description = "The command failed: all that it printed"),
    (status = 503, body = Problem, description = "Too many streams are in progress")))]
pub(crate) async fn send(
    Extension(who): Extension<Identity>,
    Extension(Peer(client)): Extension<Peer>,
    State(admin): State<Option<Arc<Administrator>>>,
    given: Result<Query<SendQuery>, QueryRejection>,
) -> Response {
    match begin_send(who, client, admin, given).await {
        Ok(answer) => answer,
        Err(refused) => refused.into_response(),
    }
}

async fn begin_send(
    who: Identity,
    client: SocketAddr,
    admin: Option<Arc<Administrator>>,
    given: Result<Query<SendQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    let admin = of(admin)?;
    let SendQuery { snapshot, from, recursive, raw, as_stored, confirmation } = query(given)?;
    let name = file_name(&snapshot);
    let action = PageAction::Send { snapshot, from, recursive, raw, as_stored };
    let line = line(&action)?;
    let running = Running::begin(admin, who, client, line, |admin, who| {
        check_role(who, &action)?;
        admin.confirmations.take(&admin.machine, confirmation.as_deref(), &action, who)?;
        Ok(())
    })?;
    let (to, mut chunks) = mpsc::channel::<Vec<u8>>(CHUNKS);
    let (ended, end) = oneshot::channel();
    let sent = Arc::new(AtomicU64::new(0));
    // Dropped when the client has taken all that the command wrote, or is gone.
    let (taking, taken) = oneshot::channel::<()>();
    let bytes = sent.clone();
    drop(tokio::spawn(async move {
        let counted = async { drop(taken.await) };
        let ran = running.run(StreamEnd::Output(to), &bytes, counted).await;
        // The client may be gone.
        drop(ended.send(ran));
    }));
    let lost = || refused(StatusCode::INTERNAL_SERVER_ERROR, "the command ended by an error of this program");
    let Some(first) = chunks.recv().await else {
        drop(taking);
        let ran = end.await.map_err(|_| lost())?;
        return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, text_of(&ran)));
    };
    let body = unfold((Some(first), chunks, Some((taking, end))), move |(first, mut chunks, mut end)| {
        let sent = sent.clone();
        async move {
            let next = match first {
                Some(first) => Some(first),
                None => chunks.recv().await,
            };
            if let Some(chunk) = next {
                sent.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                return Some((Ok(Bytes::from(chunk)), (None, chunks, end)));
            }
            // A stream without its end must not look like a whole one.
            let (taking, end) = end.take()?;
            drop(taking);
            let ran = end.await.ok();
            let is_whole = ran.is_some_and(|ran| ran.code == 0);
            (!is_whole).then(|| (Err(io::Error::other("zfs send failed")), (None, chunks, None)))
        }
    });
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [(CONTENT_TYPE, "application/octet-stream".to_owned()), (CONTENT_DISPOSITION, disposition)];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Receives a stream, the body of the request, as `zfs receive` does. If it ends early, what was not received whole is destroyed.
#[utoipa::path(post, path = "/api/v1/admin/receive", params(ReceiveQuery),
    request_body(content = String, content_type = "application/octet-stream", description = "The stream"), responses(
    (status = 200, body = Received),
    (status = 400, body = Problem, description = "A parameter is malformed"),
    (status = 403, body = Problem, description = "The role does not include it, or the request may come from another site"),
    (status = 415, body = Problem, description = "The body is not application/octet-stream"),
    (status = 422, body = Problem, description = "The command failed: all that it printed"),
    (status = 503, body = Problem, description = "Too many streams are in progress")))]
pub(crate) async fn receive(
    Extension(who): Extension<Identity>,
    Extension(Peer(client)): Extension<Peer>,
    State(admin): State<Option<Arc<Administrator>>>,
    given: Result<Query<ReceiveQuery>, QueryRejection>,
    body: Body,
) -> Response {
    let begun = || {
        let admin = of(admin)?;
        let ReceiveQuery { dataset, no_mount } = query(given)?;
        let action = PageAction::Receive { dataset, no_mount };
        let line = line(&action)?;
        Running::begin(admin, who, client, line, |_, who| check_role(who, &action))
    };
    match begun() {
        Ok(running) => {
            received(running, body).await.map_or_else(IntoResponse::into_response, IntoResponse::into_response)
        }
        Err(refused) => refused.into_response(),
    }
}

async fn received(running: Running, body: Body) -> Result<Json<Received>, Refused> {
    let clock = running.admin.machine.clock.clone();
    let command = running.line.to_string();
    let (to, from) = mpsc::channel::<Bytes>(CHUNKS);
    let read = Arc::new(AtomicU64::new(0));
    let counted = read.clone();
    let task = tokio::spawn(async move { running.run(StreamEnd::Input(from), &counted, std::future::ready(())).await });
    let mut body = body.into_data_stream();
    let mut stopped = None;
    loop {
        let chunk = match first_of(body.next(), pin!(clock.sleep(STALL_TIME))).await {
            Either::Left((Some(Ok(chunk)), _)) => chunk,
            Either::Left((None, _)) => break,
            Either::Left((Some(Err(_)), _)) => {
                stopped = Some("the upload ended early".to_owned());
                break;
            }
            Either::Right(_) => {
                stopped = Some(format!("no byte of the upload arrived within {} s", STALL_TIME.as_secs()));
                break;
            }
        };
        // The bytes are counted before the command gets them, because it may end as soon as it has the last ones.
        read.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        if to.send(chunk).await.is_err() {
            // The command has ended, and says why. It has read the end of the stream, or has failed.
            let rest = async { while body.next().await.is_some_and(|chunk| chunk.is_ok()) {} };
            let _ended = first_of(pin!(rest), pin!(clock.sleep(DRAIN_TIME))).await;
            break;
        }
    }
    drop(to);
    let lost = |_| refused(StatusCode::INTERNAL_SERVER_ERROR, "the command ended by an error of this program");
    let ran = task.await.map_err(lost)?;
    if ran.code == 0 {
        let output = format!("{}{}", ran.err, ran.out).trim_end().to_owned();
        return Ok(Json(Received { command, output, bytes: read.load(Ordering::Relaxed) }));
    }
    let why = [stopped, Some(text_of(&ran))].into_iter().flatten().collect::<Vec<_>>().join(": ");
    Err(refused(StatusCode::UNPROCESSABLE_ENTITY, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_its_snapshot() {
        assert_eq!(file_name("tank/vm@monday"), "tank-vm@monday.zfs");
        assert_eq!(file_name("tank/a b\"\r\nX: y@ü"), "tank-a-b---X--y@-.zfs");
        assert_eq!(file_name("-.a@b"), "a@b.zfs");
        assert!(file_name(&"a".repeat(5000)).len() < 255);
    }
}
