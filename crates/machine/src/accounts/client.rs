//! Clients, and their numbers in the tables.

use crate::invariant;
use crate::request::{IS_ACCOUNTED, Protocol};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A client by protocol and identity, as a small number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub(super) u32);

impl Origin {
    /// The pool itself.
    pub const POOL: Origin = Origin(0);
    /// Clients beyond the capacity of the tables.
    pub const OTHER: Origin = Origin(1);
}

pub(super) struct ClientIdentity {
    pub(super) origin: Origin,
    pub(super) protocol: Protocol,
    pub(super) name: String,
    /// Requests in progress.
    in_progress: AtomicU64,
}

impl ClientIdentity {
    pub(super) fn new(origin: Origin, protocol: Protocol, name: String) -> Self {
        ClientIdentity { origin, protocol, name, in_progress: AtomicU64::new(0) }
    }
}

/// A client of a front end. Clones are cheap and refer to the same client.
#[derive(Clone)]
pub struct Client(pub(super) Option<Arc<ClientIdentity>>);

impl Client {
    /// The pool itself, and commands.
    pub const INTERNAL: Client = Client(None);

    /// A client of a server without accounts, for tests.
    pub fn unaccounted(protocol: Protocol, name: impl Into<String>) -> Self {
        Client(Some(Arc::new(ClientIdentity::new(Origin::OTHER, protocol, name.into()))))
    }

    /// The client's protocol.
    pub fn protocol(&self) -> Protocol {
        self.0.as_ref().map_or(Protocol::Internal, |identity| identity.protocol)
    }

    /// The client's address or user; empty for internal work.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |identity| &identity.name)
    }

    /// The client as the origin of data.
    pub fn origin(&self) -> Origin {
        self.0.as_ref().map_or(Origin::POOL, |identity| identity.origin)
    }

    /// Begins a request of the client. Returns whether another one is in progress; internal work is not counted.
    #[inline]
    pub(crate) fn begin_request(&self) -> bool {
        let counted = self.0.as_ref().filter(|_| IS_ACCOUNTED);
        counted.is_some_and(|identity| identity.in_progress.fetch_add(1, Ordering::Relaxed) > 0)
    }

    /// Ends a request of the client.
    #[inline]
    pub(crate) fn end_request(&self) {
        if let Some(identity) = self.0.as_ref().filter(|_| IS_ACCOUNTED) {
            let before = identity.in_progress.fetch_sub(1, Ordering::Relaxed);
            invariant!(before > 0, "{}: a request ended that had not begun", identity.name);
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol().name(), self.name())
    }
}
