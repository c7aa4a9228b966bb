//! HTTP server of analytics: a page, a JSON API, a live stream and metrics, of the pools that a process has open.
//!
//! ```text
//!   once a second: Sample of each pool ─► Interval ─► History            recorder, sampler
//!                                            │           │  every 20 s
//!                                            │           └────► files    store
//!   GET /                    page            │   sets a cookie, so that the token leaves the address bar
//!   GET /metrics             OpenMetrics     │
//!   GET /api/v1/…            JSON            │
//!   GET /api/v1/why          diagnosis       │   the answer of `weir why -j`
//!   GET /api/v1/live         event stream ◄──┘   an event a second
//! ```
//!
//! *Security.* Without TLS, the server listens on loopback only. Without a token, it answers nothing but 401. A request whose
//! `Host` is neither loopback nor, with TLS, an address or a name of the certificate is refused, so that a page of the web cannot
//! reach it by a name that it makes point to this machine. Connections in total and of a host, headers and the time for them are
//! bounded.

mod access;
mod admin;
mod api;
mod exporters;
mod files;
mod interfaces;
mod network;
mod origin;
mod page;
mod ranges;
mod recorder;
mod sampler;
mod server;
mod store;
mod tls;
mod why;

pub use access::{Token, TokenError};
pub use admin::{
    Access, Administration, Administrator, Audit, CommandLine, Device, Disk, Identity, JobWork, LayoutQuery,
    NamedToken, NewVdev, OWN_NAME, PageAction, Ran, Role, STALL_TIME, ScrubStep, Secret, Setting, Smart, StreamEnd,
    TARGETS, Target, UsableSpace, VdevKind, WorkStep,
};
pub use api::open_api;
pub use interfaces::local_v4;
pub use recorder::Recorder;
pub use sampler::{HistoryStatus, Pools};
pub use server::{Web, WebError, WebOptions};
pub use store::{Store, StoreStatus};
pub use tls::WebTls;
