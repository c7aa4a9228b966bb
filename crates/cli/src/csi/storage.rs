//! The daemon as the storage of `weir csi`: one connection to the administration socket per command or query.

use crate::admin::{self, ask_command, ask_rows};
use crate::remote::RemoteProcess;
use crate::zfs::{When, parse_property};
use futures_util::future::BoxFuture;
use weir_admin::{Command, Outcome, Query, Refusal, Row};
use weir_csi::storage::Storage;
use weir_dsl::props::{DatasetKind, Value};

/// The daemon of this user, whichever process it is: it may be started again between two calls.
pub struct Daemon;

fn daemon() -> Result<RemoteProcess, String> {
    admin::daemon().ok_or_else(|| "no weir daemon of this user is running: 'weir daemon' starts it".to_owned())
}

fn unanswered(error: &std::io::Error) -> String {
    format!("the daemon does not answer: {error}")
}

impl Storage for Daemon {
    fn command(&self, command: Command) -> BoxFuture<'_, Result<Result<Outcome, Refusal>, String>> {
        Box::pin(async move { ask_command(&daemon()?, &command).await.map_err(|error| unanswered(&error)) })
    }

    fn query(&self, query: Query) -> BoxFuture<'_, Result<Result<Vec<Row>, Refusal>, String>> {
        Box::pin(async move { ask_rows(&daemon()?, &query).await.map_err(|error| unanswered(&error)) })
    }

    fn property(&self, name: &str, value: &str, kind: DatasetKind) -> Result<(String, Value), String> {
        parse_property(&format!("{name}={value}"), kind, When::Creation)
    }
}
