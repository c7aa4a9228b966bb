//! `cargo xtask check`: what must pass before a merge, fastest first.

use crate::process::{Outcome, cargo, must};
use crate::{licences, tidy};

/// Formatting, tidy, licences, then clippy with every warning denied.
pub fn run() -> Outcome {
    must("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    println!("== tidy");
    tidy::run()?;
    println!("== licences");
    licences::run()?;
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    must("clippy", &mut clippy)?;
    println!("check: all passed");
    Ok(())
}
