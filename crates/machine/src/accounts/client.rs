//! Clients, and their numbers in the tables.

use crate::request::{IS_ACCOUNTED, Protocol};
use std::fmt;
use std::sync::Arc;

/// A client by protocol and identity, as a small number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub(super) u32);

impl Origin {
    /// The pool itself.
    pub const POOL: Origin = Origin(0);
    /// Clients beyond the capacity of the tables.
    pub const OTHER: Origin = Origin(1);
}

struct ClientIdentity {
    origin: Origin,
    protocol: Protocol,
    name: String,
}

/// A client of a front end. Clones are cheap and refer to the same client.
///
/// The number of references to its identity is that of its requests in progress, plus one. A request needs a reference in any
/// case, so that counting requests costs nothing more.
#[derive(Clone)]
pub struct Client(Option<Arc<KnownClient>>);

/// The part that all clones of a client share.
struct KnownClient {
    /// Each request in progress has another reference.
    identity: Arc<ClientIdentity>,
}

/// The client of a request in progress.
pub struct RequestClient(Option<Arc<ClientIdentity>>);

impl Client {
    /// The pool itself, and commands.
    pub const INTERNAL: Client = Client(None);

    pub(super) fn new(origin: Origin, protocol: Protocol, name: String) -> Self {
        let identity = Arc::new(ClientIdentity { origin, protocol, name });
        Client(Some(Arc::new(KnownClient { identity })))
    }

    /// A client of a server without accounts, for tests.
    pub fn unaccounted(protocol: Protocol, name: impl Into<String>) -> Self {
        Client::new(Origin::OTHER, protocol, name.into())
    }

    /// The client's protocol.
    pub fn protocol(&self) -> Protocol {
        self.0.as_ref().map_or(Protocol::Internal, |known| known.identity.protocol)
    }

    /// The client's address or user; empty for internal work.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |known| &known.identity.name)
    }

    /// The client as the origin of data.
    pub fn origin(&self) -> Origin {
        self.0.as_ref().map_or(Origin::POOL, |known| known.identity.origin)
    }

    /// Begins a request of the client, which ends when the result is dropped. Also returns whether another one is in progress;
    /// internal work is not counted.
    #[inline]
    pub(crate) fn begin_request(&self) -> (RequestClient, bool) {
        let Some(known) = &self.0 else { return (RequestClient(None), false) };
        let of_request = Arc::clone(&known.identity);
        // One reference is the client's, one that of this request.
        let is_overlapping = IS_ACCOUNTED && Arc::strong_count(&of_request) > 2;
        (RequestClient(Some(of_request)), is_overlapping)
    }
}

impl RequestClient {
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
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol().name(), self.name())
    }
}

impl fmt::Debug for RequestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol().name(), self.name())
    }
}
