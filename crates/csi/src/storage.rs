//! The process that has the pools open, as the controller sees it: typed commands and queries.

use futures_util::future::BoxFuture;
use tonic::{Code, Status};
use weir_admin::{Command, Outcome, Query, Refusal, RefusalKind, Row};
use weir_dsl::props::{DatasetKind, Value};

/// Access to the process that has the pools open.
pub trait Storage: Send + Sync + 'static {
    /// Carries a command out. The outer error says why the process cannot be reached.
    fn command(&self, command: Command) -> BoxFuture<'_, Result<Result<Outcome, Refusal>, String>>;

    /// Reads all rows of a query. The outer error says why the process cannot be reached.
    fn query(&self, query: Query) -> BoxFuture<'_, Result<Result<Vec<Row>, Refusal>, String>>;

    /// Parses the value of a property of a new dataset as `zfs create -o` does.
    ///
    /// # Errors
    /// The reason why it is invalid.
    fn property(&self, name: &str, value: &str, kind: DatasetKind) -> Result<(String, Value), String>;
}

/// The gRPC status of a refusal of a command on `name`.
pub fn status_of(name: &str, refusal: &Refusal) -> Status {
    let code = match refusal.kind {
        RefusalKind::Missing | RefusalKind::NoSnapshots => Code::NotFound,
        RefusalKind::Exists => Code::AlreadyExists,
        RefusalKind::NoParent | RefusalKind::Name | RefusalKind::Property => Code::InvalidArgument,
        RefusalKind::Busy
        | RefusalKind::Held
        | RefusalKind::HasChildren
        | RefusalKind::HasClones
        | RefusalKind::HasLater
        | RefusalKind::Key
        | RefusalKind::Stream => Code::FailedPrecondition,
        RefusalKind::Space => Code::ResourceExhausted,
        RefusalKind::OtherPool | RefusalKind::Unopened => Code::Unavailable,
        RefusalKind::Stopped | RefusalKind::Canceled => Code::Aborted,
        RefusalKind::Denied => Code::PermissionDenied,
        RefusalKind::Pool => Code::Internal,
    };
    let names = match refusal.names.as_slice() {
        [] => String::new(),
        names => format!(": {}", names.join(", ")),
    };
    Status::new(code, format!("{name}: {}{names}", refusal.why))
}

/// The status of a process that cannot be reached.
pub(crate) fn unreachable(why: String) -> Status {
    Status::unavailable(why)
}
