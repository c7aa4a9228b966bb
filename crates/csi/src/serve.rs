//! The gRPC server: three services on one Unix socket.
//!
//! Each call is one message in and one out. Who may call is decided by the permissions of the socket's folder, which kubelet
//! owns; the socket itself is accessible to its owner only.

use crate::controller::{Controller, ControllerOptions};
use crate::identity::Identity;
use crate::node::{Node, NodeOptions};
use crate::storage::Storage;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;
use weir_machine::Machine;

/// Maximum size of a request in bytes. The specification bounds maps to 4 KiB and strings to 128 bytes.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Maximum length of a socket's path in bytes (`sun_path`).
const MAX_SOCKET_PATH_LEN: usize = 107;

/// Why the plugin cannot serve.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The text names no Unix socket.
    #[error("--endpoint takes unix:///PATH with at most {MAX_SOCKET_PATH_LEN} bytes of path, not '{0}'")]
    Endpoint(String),
    /// Another process listens there.
    #[error("{}: another process listens there", .0.display())]
    InUse(PathBuf),
    /// There is something else at the path.
    #[error("{}: exists and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The socket cannot be made.
    #[error("{}: {why}", .path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The reason.
        why: std::io::Error,
    },
    /// The server failed.
    #[error("the gRPC server failed: {0}")]
    Server(#[from] tonic::transport::Error),
}

/// Address on which the plugin listens: `unix:///path` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl FromStr for Endpoint {
    type Err = ServeError;

    fn from_str(text: &str) -> Result<Self, ServeError> {
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:"));
        match path.filter(|path| path.starts_with('/') && path.len() <= MAX_SOCKET_PATH_LEN && !path.contains('\0')) {
            Some(path) => Ok(Endpoint(path.into())),
            None => Err(ServeError::Endpoint(text.to_owned())),
        }
    }
}

impl Endpoint {
    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Listens on the socket. One that a process left behind is replaced.
    fn listen(&self) -> Result<UnixListener, ServeError> {
        let failed = |why| ServeError::Socket { path: self.0.clone(), why };
        match std::fs::symlink_metadata(&self.0) {
            Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NoSocket(self.0.clone())),
            Ok(_) if std::os::unix::net::UnixStream::connect(&self.0).is_ok() => {
                return Err(ServeError::InUse(self.0.clone()));
            }
            Ok(_) => std::fs::remove_file(&self.0).map_err(failed)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(&self.0).map_err(failed)?;
        std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(listener)
    }
}

/// The plugin with the services that it offers.
pub struct Plugin {
    /// The controller, if it is offered.
    pub(crate) controller: Option<Controller>,
    /// The node, if it is offered.
    pub(crate) node: Option<Node>,
}

impl Plugin {
    /// A plugin with a controller, which uses the process with the pools, or a node, or both.
    pub fn new(
        machine: &Machine,
        controller: Option<(ControllerOptions, Arc<dyn Storage>)>,
        node: Option<NodeOptions>,
    ) -> Self {
        Plugin {
            controller: controller.map(|(options, storage)| Controller::new(options, storage)),
            node: node.map(|options| Node::new(machine.clone(), options)),
        }
    }

    /// Whether volumes are reached from some nodes only.
    pub(crate) fn has_topology(&self) -> bool {
        let of = |segments: &BTreeMap<String, String>| !segments.is_empty();
        self.controller.as_ref().is_some_and(|controller| of(&controller.options.topology))
            || self.node.as_ref().is_some_and(|node| of(&node.options.topology))
    }
}

/// Serves the plugin until `end` resolves.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(plugin: Plugin, endpoint: &Endpoint, end: impl Future<Output = ()>) -> Result<(), ServeError> {
    let plugin = Arc::new(plugin);
    let mut routes = Routes::new(IdentityService(Arc::new(Identity(plugin.clone()))));
    if plugin.controller.is_some() {
        routes = routes.add_service(ControllerService(plugin.clone()));
    }
    if plugin.node.is_some() {
        routes = routes.add_service(NodeService(plugin));
    }
    let listener = UnixListenerStream::new(endpoint.listen()?);
    let server = tonic::transport::Server::builder().add_routes(routes);
    let done = server.serve_with_incoming_shutdown(listener, end).await;
    // Another process may have taken the path; then it stays.
    drop(std::fs::remove_file(endpoint.path()));
    Ok(done?)
}

/// A call of a service: the service, the request, the answer.
type Method<I, Q, A> = fn(Arc<I>, Q) -> BoxFuture<'static, Result<A, Status>>;

/// The handler of one call.
struct Handler<I, Q, A> {
    service: Arc<I>,
    method: Method<I, Q, A>,
}

impl<I, Q: 'static, A: 'static> Service<Request<Q>> for Handler<I, Q, A> {
    type Response = Response<A>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<A>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.method)(self.service.clone(), request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

/// Decodes a request and answers it.
async fn unary<I, Q, A>(request: http::Request<Body>, service: Arc<I>, method: Method<I, Q, A>) -> http::Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(MAX_REQUEST_BYTES);
    grpc.unary(Handler { service, method }, request).await
}

/// Logs a call that failed. Messages are not logged: they contain secrets.
fn logged<A>(call: &'static str, answer: Result<A, Status>) -> Result<A, Status> {
    if let Err(status) = &answer {
        tracing::warn!("{call}: {:?}: {}", status.code(), status.message());
    }
    answer
}

/// Declares a gRPC service: its name, what is called, and the calls with their methods.
macro_rules! service {
    ($service:ident($inner:ty) = $name:literal, $of:expr, { $($call:literal => $method:ident,)* }) => {
        #[derive(Clone)]
        struct $service(Arc<$inner>);

        impl NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let inner = self.0.clone();
                match request.uri().path() {
                    $(concat!("/", $name, "/", $call) => Box::pin(async move {
                        let method: Method<$inner, _, _> = |inner, message| {
                            Box::pin(async move { logged($call, $of(&inner)?.$method(message).await) })
                        };
                        Ok(unary(request, inner, method).await)
                    }),)*
                    _ => Box::pin(unknown(request.uri().path())),
                }
            }
        }
    };
}

/// The answer to a call that this plugin does not know.
fn unknown(path: &str) -> Ready<Result<http::Response<Body>, Infallible>> {
    ready(Ok(Status::unimplemented(format!("{path} is not implemented")).into_http()))
}

fn identity(identity: &Arc<Identity>) -> Result<&Identity, Status> {
    Ok(identity)
}

fn controller(plugin: &Arc<Plugin>) -> Result<&Controller, Status> {
    plugin.controller.as_ref().ok_or_else(|| Status::unimplemented("this process is no controller"))
}

fn node(plugin: &Arc<Plugin>) -> Result<&Node, Status> {
    plugin.node.as_ref().ok_or_else(|| Status::unimplemented("this process is no node"))
}

service!(IdentityService(Identity) = "csi.v1.Identity", identity, {
    "GetPluginInfo" => get_plugin_info,
    "GetPluginCapabilities" => get_plugin_capabilities,
    "Probe" => probe,
});

service!(ControllerService(Plugin) = "csi.v1.Controller", controller, {
    "CreateVolume" => create_volume,
    "DeleteVolume" => delete_volume,
    "ControllerPublishVolume" => controller_publish_volume,
    "ControllerUnpublishVolume" => controller_unpublish_volume,
    "ValidateVolumeCapabilities" => validate_volume_capabilities,
    "ListVolumes" => list_volumes,
    "GetCapacity" => get_capacity,
    "ControllerGetCapabilities" => controller_get_capabilities,
    "CreateSnapshot" => create_snapshot,
    "DeleteSnapshot" => delete_snapshot,
    "ListSnapshots" => list_snapshots,
    "ControllerExpandVolume" => controller_expand_volume,
});

service!(NodeService(Plugin) = "csi.v1.Node", node, {
    "NodeStageVolume" => node_stage_volume,
    "NodeUnstageVolume" => node_unstage_volume,
    "NodePublishVolume" => node_publish_volume,
    "NodeUnpublishVolume" => node_unpublish_volume,
    "NodeGetVolumeStats" => node_get_volume_stats,
    "NodeExpandVolume" => node_expand_volume,
    "NodeGetCapabilities" => node_get_capabilities,
    "NodeGetInfo" => node_get_info,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        assert_eq!("unix:///csi/csi.sock".parse::<Endpoint>().unwrap().path(), Path::new("/csi/csi.sock"));
        assert_eq!("unix:/csi.sock".parse::<Endpoint>().unwrap().path(), Path::new("/csi.sock"));
        let long = format!("unix:///{}", "a".repeat(MAX_SOCKET_PATH_LEN));
        for text in ["tcp://127.0.0.1:1", "unix://csi.sock", "/csi.sock", "", "unix:///a\0b", &long] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_no_socket_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(Endpoint(path.clone()).listen(), Err(ServeError::NoSocket(_))));
        assert_eq!(std::fs::read(path).unwrap(), b"x");
    }
}
