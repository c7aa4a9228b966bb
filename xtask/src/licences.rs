//! Checks the licence of every dependency against the allow-list in `deny.toml`.
//!
//! cargo-deny reads the same file and checks more (advisories, sources); it runs if it is installed. This check needs
//! only `cargo metadata`, so it always runs: an SPDX expression passes if the allow-list satisfies it; `OR` (or the
//! old `/`) is a choice, `AND` requires both.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::process::{Outcome, cargo, must, on_path, top};

/// Checks every package of the lock file.
pub fn run() -> Outcome {
    let allowed = allow_list()?;
    let metadata = metadata(false)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut refused = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or("?");
        match package["license"].as_str() {
            Some(expression) if satisfied(expression, &allowed) => {}
            Some(expression) => refused.push(format!("{name}: {expression}")),
            None => refused.push(format!("{name}: no licence named")),
        }
    }
    if !refused.is_empty() {
        return Err(format!("licences outside deny.toml's allow-list:\n  {}", refused.join("\n  ")));
    }
    println!("licences: {} packages within the allow-list", packages.len());
    if on_path("cargo-deny") {
        must("cargo-deny", &mut cargo(&["deny", "check", "licenses", "bans", "sources"]))?;
    } else {
        println!("cargo-deny is not installed: advisories and sources not checked");
    }
    Ok(())
}

/// Output of `cargo metadata` as JSON, for the workspace's packages only or for all.
pub fn metadata(own_only: bool) -> Result<Value, String> {
    let mut command = cargo(&["metadata", "--format-version", "1", "--locked"]);
    if own_only {
        command.arg("--no-deps");
    }
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The quoted names in `allow = [ … ]` of section `[licenses]`.
fn allow_list() -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(top().join("deny.toml")).map_err(|error| format!("deny.toml: {error}"))?;
    let section = text.split("[licenses]").nth(1).ok_or("deny.toml has no [licenses]")?;
    let list = section.split("allow = [").nth(1).ok_or("deny.toml allows no licence")?;
    let list = list.split(']').next().unwrap_or_default();
    Ok(list.split('"').skip(1).step_by(2).map(str::to_string).collect())
}

/// Whether the allow-list satisfies an SPDX expression.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    either(&mut rest, allowed) && rest.is_empty()
}

fn either(rest: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut holds = both(rest, allowed);
    while let [first, tail @ ..] = rest
        && *first == "OR"
    {
        *rest = tail;
        holds |= both(rest, allowed);
    }
    holds
}

fn both(rest: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut holds = one(rest, allowed);
    while let [first, tail @ ..] = rest
        && *first == "AND"
    {
        *rest = tail;
        holds &= one(rest, allowed);
    }
    holds
}

fn one(rest: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let holds = either(rest, allowed);
            if let [")", tail @ ..] = *rest {
                *rest = tail;
            }
            holds
        }
        [name, "WITH", exception, tail @ ..] => {
            *rest = tail;
            allowed.contains(&format!("{name} WITH {exception}"))
        }
        [name, tail @ ..] => {
            *rest = tail;
            allowed.contains(*name)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spdx_expressions_are_evaluated() {
        let allowed: BTreeSet<String> =
            ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_string).into();
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR AGPL-3.0) AND MIT", "MIT WITH Odd-exception", ""] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }
}
