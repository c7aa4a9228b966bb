//! The HTTP server of a process that has pools open: page, API, metrics and administration.

mod administration;
mod certificate;
mod disks;

use administration::ProcessAdministration;
pub use certificate::{CertificateFiles, PageAddress};

use crate::admin::ServingHost;
use crate::directories;
use crate::failure::Failure;
use crate::process::PoolProcess;
use futures_util::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use weir_analytics::PoolObservation;
use weir_analytics::metrics::ServiceState;
use weir_engine::Engine;
use weir_machine::Machine;
use weir_web::{Access, Administrator, Audit, Pools, Recorder, Store, Token, TokenError, Web, WebError, WebOptions};

/// Port that the daemon takes if none is configured.
pub const DEFAULT_PORT: u16 = 8420;
/// Name of the token's file in the state directory.
const TOKEN_FILE: &str = "web.token";
/// Name of the file with named tokens in the state directory.
const TOKENS_FILE: &str = "web.tokens";
/// Name of the audit log in the state directory.
const AUDIT_FILE: &str = "audit.log";
/// Name of the directory with histories in the state directory.
const HISTORY_DIRECTORY: &str = "history";

impl From<WebError> for Failure {
    fn from(error: WebError) -> Self {
        Failure::failed(error.to_string())
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        Failure::failed(error.to_string())
    }
}

/// The pools that a process has open.
struct OpenPools(Arc<PoolProcess>);

impl Pools for OpenPools {
    fn engines(&self) -> Vec<Arc<Engine>> {
        self.0.all().iter().map(|pool| pool.engine.clone()).collect()
    }

    fn service(&self) -> ServiceState {
        self.0.daemon().map(|daemon| daemon.service_state()).unwrap_or_default()
    }

    fn observe<'a>(&'a self, pool: &'a str, seconds: u64) -> BoxFuture<'a, Option<Result<PoolObservation, String>>> {
        Box::pin(async move {
            let pool = self.0.all().into_iter().find(|open| open.engine.name() == pool)?;
            let observed = weir_admin::observe(&ServingHost(pool), seconds).await;
            Some(observed.map_err(|refusal| refusal.why))
        })
    }
}

/// Begins to record what the pools of a process do, with their history in a store or in memory only.
pub fn record(process: &Arc<PoolProcess>, store: Option<Store>) -> Recorder {
    Recorder::start(&process.machine, Arc::new(OpenPools(process.clone())), store)
}

/// A server whose history ends with it.
pub struct PassingWeb {
    web: Web,
    _recorder: Recorder,
}

impl PassingWeb {
    /// Serves the pools of a process on this port of 127.0.0.1, to those who know the token.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn start(process: &Arc<PoolProcess>, port: u16, token: Token) -> Result<Self, Failure> {
        let recorder = record(process, None);
        let access = Arc::new(Access::of_token(token));
        // The log of the process has the lines of the audit log.
        let administrator = administrator(process, Audit::default());
        let options = WebOptions::loopback(port);
        let web = Web::start(&process.machine, &recorder, options, access, Some(administrator)).await?;
        Ok(PassingWeb { web, _recorder: recorder })
    }

    /// Address of the page, with the token: a secret.
    pub fn url(&self) -> String {
        self.web.url()
    }
}

/// Administration of a process.
pub fn administrator(process: &Arc<PoolProcess>, audit: Audit) -> Arc<Administrator> {
    Administrator::new(&process.machine, Arc::new(ProcessAdministration::new(process.clone())), audit)
}

/// The audit log in the state directory.
pub fn audit() -> Audit {
    directories::in_state(AUDIT_FILE).map(Audit::in_file).unwrap_or_default()
}

/// The tokens in the state directory, so that addresses stay valid from one run of the daemon to the next.
///
/// # Errors
/// If there is no state directory, or a file cannot be used.
pub fn stored_access(machine: &Machine) -> Result<Access, Failure> {
    let none = || Failure::failed("there is no state directory: set HOME");
    let own = Token::in_file(machine, &token_file().ok_or_else(none)?)?;
    Ok(Access::with_file(own, directories::in_state(TOKENS_FILE).ok_or_else(none)?)?)
}

/// The file that holds the daemon's token.
pub fn token_file() -> Option<PathBuf> {
    directories::state().map(|folder| folder.join(TOKEN_FILE))
}

/// Histories in the state directory; `None` if there is no such directory.
pub fn history_store(max_bytes: u64) -> Option<Store> {
    directories::state().map(|folder| Store::new(folder.join(HISTORY_DIRECTORY), max_bytes))
}
