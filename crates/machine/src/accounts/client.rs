//! Clients, and their numbers in the tables.

use crate::request::Protocol;
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
    pub(super) requests: AtomicU64,
}

/// A client of a front end. Clones are cheap and refer to the same client.
#[derive(Clone)]
pub struct Client(pub(super) Option<Arc<ClientIdentity>>);

impl Client {
    /// The pool itself, and commands.
    pub const INTERNAL: Client = Client(None);

    /// A client of a server without accounts, for tests.
    pub fn unaccounted(protocol: Protocol, name: impl Into<String>) -> Self {
        let requests = AtomicU64::new(0);
        Client(Some(Arc::new(ClientIdentity { origin: Origin::OTHER, protocol, name: name.into(), requests })))
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

    /// Number of the client's next request; 0 for internal work, which is not numbered.
    pub(crate) fn next_id(&self) -> u64 {
        self.0.as_ref().map_or(0, |identity| identity.requests.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol().name(), self.name())
    }
}
