//! NBD for the volumes of all pools.

use super::{ProtocolContext, ProtocolServer, ServingTask, hosts_that_use, listen, shell_quoted, uri_escaped};
use crate::exports::Exports;
use crate::service::{ServiceError, ServiceOptions};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use weir_front::{BlockExports as _, ClientConnection};
use weir_machine::{Protocol, RequestTotals};

/// The NBD server.
pub(super) struct NbdServer {
    server: Arc<weir_nbd::Server>,
    serving: ServingTask,
}

impl NbdServer {
    /// Starts the server; `None` if there can be no volumes, or if there are none yet and the port is unavailable.
    pub(super) async fn start(context: &ProtocolContext<'_>) -> Result<Option<Self>, ServiceError> {
        let ProtocolContext { machine, pools, options, .. } = context;
        let has_volumes = pools.all().values().any(|exports| !exports.volumes.names().is_empty());
        let pools_now = pools.all();
        let can_have_volumes = pools_now.is_empty() || pools_now.values().any(|exports| exports.pool.is_writable());
        let listener = match (has_volumes || options.needs_nbd, can_have_volumes) {
            (false, false) => return Ok(None),
            (true, _) => listen(context, Protocol::Nbd, options.nbd_port).await?,
            // Volumes may be created later.
            (false, true) => match listen(context, Protocol::Nbd, options.nbd_port).await {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!("{error}");
                    return Ok(None);
                }
            },
        };
        let server = Arc::new(weir_nbd::Server::new(Arc::clone(pools) as _).with_tls(options.nbd_tls.clone()));
        let serving = ServingTask::start(context, listener.address(), |stopped| {
            weir_nbd::serve(listener, server.clone(), (*machine).clone(), stopped)
        });
        Ok(Some(NbdServer { server, serving }))
    }
}

impl ProtocolServer for NbdServer {
    fn protocol(&self) -> Protocol {
        Protocol::Nbd
    }

    fn address(&self) -> SocketAddr {
        self.serving.address
    }

    fn add<'a>(&'a self, _: &'a Exports) -> BoxFuture<'a, Result<(), ServiceError>> {
        ready(Ok(())).boxed()
    }

    fn remove(&self, exports: &Exports) {
        exports.volumes.withdraw();
    }

    fn set_options(&self, options: &ServiceOptions) {
        self.server.set_tls(options.nbd_tls.clone());
    }

    fn users(&self, exports: &Exports) -> Vec<String> {
        hosts_that_use(&exports.volumes.shared_names().into_iter().collect(), self.connections())
    }

    fn connections(&self) -> Vec<ClientConnection> {
        self.server.connections()
    }

    fn served_beside_pools(&self) -> RequestTotals {
        self.server.served()
    }

    fn lines(&self, exports: &Exports) -> Vec<String> {
        let address = self.address();
        let port = address.port();
        // qemu takes no URI for TLS.
        let (look, tls) =
            if self.server.tls().is_some() { ("nbdinfo nbds", "-enable-tls ") } else { ("qemu-img info nbd", "") };
        let flag = if exports.pool.is_writable() { "" } else { "-readonly " };
        let names = exports.volumes.shared_names().into_iter().filter(|name| !name.contains('@'));
        let lines = names.flat_map(|name| {
            let uri = format!("{look}://{address}/{}", uri_escaped(&name));
            let attach = format!("nbd-client {tls}{flag}-N {} {} {port} /dev/nbd0", shell_quoted(&name), address.ip());
            [uri, attach]
        });
        lines.collect()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.serving.stop().boxed()
    }
}
