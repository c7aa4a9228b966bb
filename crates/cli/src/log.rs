//! The log of a program that keeps a pool open (`serve`, `mount`, `demo`): lines with a time stamp on standard error.
//!
//! `WEIR_LOG` selects what is logged, in the syntax of `tracing_subscriber::EnvFilter`: a level (`error`, `warn`,
//! `info`, `debug`, `trace`) or levels of single crates, such as `warn,weir_nfs=debug`. The default is `warn`.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Environment variable that selects what is logged.
const FILTER_VARIABLE: &str = "WEIR_LOG";

/// Starts logging to standard error. Later calls change nothing.
pub fn start() {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new("warn"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Fails only if logging was started before.
    let _started = lines.with_ansi(std::io::stderr().is_terminal()).try_init();
}
