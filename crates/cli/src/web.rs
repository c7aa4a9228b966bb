//! The HTTP server of a process that has pools open: page, API and metrics.

use crate::directories;
use crate::failure::Failure;
use crate::process::PoolProcess;
use std::path::PathBuf;
use std::sync::Arc;
use weir_engine::Engine;
use weir_web::{Pools, Token, TokenError, Web, WebError};

/// Port that the daemon takes if none is configured.
pub const DEFAULT_PORT: u16 = 8420;
/// Name of the token's file in the state directory.
const TOKEN_FILE: &str = "web.token";

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
}

/// Serves the pools of a process on this port of 127.0.0.1, with a token of this run.
///
/// # Errors
/// If the port is taken.
pub async fn start(process: &Arc<PoolProcess>, port: u16) -> Result<Web, Failure> {
    let token = Token::new(&process.machine);
    Ok(Web::start(&process.machine, Arc::new(OpenPools(process.clone())), port, token).await?)
}

/// As [`start`], with the token in the state directory, so that addresses stay valid from one run to the next.
///
/// # Errors
/// If the port is taken, or the token's file cannot be used.
pub async fn start_with_file(process: &Arc<PoolProcess>, port: u16) -> Result<Web, Failure> {
    let path = token_file().ok_or_else(|| Failure::failed("there is no state directory: set HOME"))?;
    let token = Token::in_file(&process.machine, &path)?;
    Ok(Web::start(&process.machine, Arc::new(OpenPools(process.clone())), port, token).await?)
}

/// The file that holds the daemon's token.
pub fn token_file() -> Option<PathBuf> {
    directories::state().map(|folder| folder.join(TOKEN_FILE))
}
