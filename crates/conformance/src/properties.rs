//! Compares properties: every property of pools and datasets with its source, the tree of `zpool status`, and the
//! history, as Weir's commands print them in JSON, with OpenZFS's output (in each golden's manifest).
//!
//! The manifests were taken from pools imported read-only with another root (`-R /mnt`). A few values cannot be the
//! same; they are left out by name, each with its reason: [`NOT_OF_THE_POOL`], [`NOT_IN_STATUS`], ….

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use crate::JudgeError;
use crate::compare::Findings;
use crate::golden::{Unpacked, chosen};
use crate::process::weir;
use crate::report::{Report, side_by_side};

/// Pool properties that are not compared.
const NOT_OF_THE_POOL: &[&str] = &[
    // OpenZFS does not load the space maps of a pool that it imports read-only: it shows 0, Weir the allocated bytes.
    "allocated",
    "free",
    "capacity",
    "fragmentation",
    // A random number of each import.
    "load_guid",
];
/// Fields of the status that are not compared.
const NOT_IN_STATUS: &[&str] = &[
    // Weir's own text; the identifiers `msgid` and `moreinfo` are compared.
    "status",
    "action",
    // The time of the import.
    "pass_start",
    // Allocated bytes of the vdev: see above.
    "to_reflow",
];
/// Counts of errors since the pool was opened: they come from different reads, for OpenZFS had read next to nothing
/// yet.
const COUNTED_BY_READS: &[&str] = &["read_errors", "checksum_errors", "slow_ios"];
/// Properties of datasets that are not compared: the manifests were taken with the keys loaded.
const NOT_OF_THE_DATASET: &[&str] = &["keystatus"];
/// Fields that we have and a read-only import does not.
const MORE_IN_STATUS: &[&str] = &["txg", "alloc_space"];
/// Goldens made on a machine where a disk of another name took the place of the missing one: OpenZFS found a foreign
/// label there and mixed up the names in its tree. Only health, sums and the message id are compared.
const OTHER_DISK_THERE: &[&str] = &["degraded-raidz1", "degraded-raidz2", "degraded-raidz3-s"];

/// Compares the goldens named, or all.
///
/// # Errors
/// If the folder of goldens cannot be listed.
pub fn run(folder: &Path, wanted: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let chosen = chosen(folder, wanted)?;
    side_by_side(&chosen, |name| case(folder, name), |name, outcome| report.book(name, outcome));
    Ok(())
}

fn case(folder: &Path, name: &str) -> Result<Findings, JudgeError> {
    let path = folder.join(format!("{name}.json"));
    let text = std::fs::read(&path).map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
    let golden: Value =
        serde_json::from_slice(&text).map_err(|source| JudgeError::Manifest { golden: name.to_string(), source })?;
    let manifest = golden.get("manifest").or_else(|| golden.get("manifest_before_replay")).unwrap_or(&Value::Null);
    let unpacked = Unpacked::new(folder, name)?;
    let weir = Weir { devices: unpacked.path() };
    let mut findings = Findings::default();
    let answer = weir.ask(&["zpool", "status", "-p", "-j", "--json-int", "-d"], &[])?;
    let ours = only(&answer, "pools").unwrap_or(&Value::Null);
    pool_properties(&weir, manifest, &mut findings)?;
    dataset_properties(&weir, manifest, special_bytes(ours), &mut findings)?;
    history(&weir, manifest, &mut findings)?;
    let theirs = manifest.get("status").unwrap_or(&Value::Null);
    if OTHER_DISK_THERE.contains(&name) {
        for field in ["name", "state", "pool_guid", "error_count", "msgid"] {
            same(field, theirs.get(field), ours.get(field), &mut findings);
        }
    } else {
        tree("status", theirs, ours, &mut findings);
    }
    Ok(findings)
}

struct Weir<'a> {
    devices: &'a Path,
}

impl Weir<'_> {
    /// The JSON that `before DEVICES after` prints.
    fn ask(&self, before: &[&str], after: &[&str]) -> Result<Value, JudgeError> {
        let out = self.say(before, after)?;
        let command = format!("weir {}", before.join(" "));
        serde_json::from_slice(&out).map_err(|e| JudgeError::Process { command, why: e.to_string() })
    }

    /// Returns the output of `before DEVICES after`.
    fn say(&self, before: &[&str], after: &[&str]) -> Result<Vec<u8>, JudgeError> {
        let binary = weir()?;
        let command = format!("weir {}", before.join(" "));
        let failed = |why: String| JudgeError::Process { command: command.clone(), why };
        let out = Command::new(&binary).args(before).arg(self.devices).args(after).stdin(Stdio::null()).output();
        let out = out.map_err(|e| failed(e.to_string()))?;
        if !out.status.success() {
            return Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_string()));
        }
        Ok(out.stdout)
    }
}

/// The only thing below `key` of an answer.
fn only<'a>(answer: &'a Value, key: &str) -> Option<&'a Value> {
    answer.get(key)?.as_object()?.values().next()
}

/// Value and source as a manifest has them.
fn value_and_source(property: &Value) -> (String, String) {
    let text = |v: Option<&Value>| v.and_then(Value::as_str).unwrap_or_default().to_string();
    let source = property.get("source");
    let data = text(source.and_then(|s| s.get("data")));
    let source = match text(source.and_then(|s| s.get("type"))).as_str() {
        "NONE" => "-".to_string(),
        "INHERITED" => format!("inherited from {data}"),
        other => other.to_lowercase(),
    };
    (text(property.get("value")), source)
}

/// The pool's history, line by line.
fn history(weir: &Weir<'_>, manifest: &Value, findings: &mut Findings) -> Result<(), JudgeError> {
    let text = weir.say(&["zpool", "history", "-d"], &[])?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let found: Vec<&str> = text.lines().skip(1).filter(|line| !line.is_empty()).collect();
    let expected = manifest.get("history").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let expected: Vec<&str> = expected.iter().filter_map(Value::as_str).collect();
    findings.facts += expected.len() as u64;
    for n in 0..expected.len().max(found.len()) {
        if expected.get(n) != found.get(n) {
            findings.differs(format!("history {n}: expected {:?}, found {:?}", expected.get(n), found.get(n)));
        }
    }
    Ok(())
}

fn pool_properties(weir: &Weir<'_>, manifest: &Value, findings: &mut Findings) -> Result<(), JudgeError> {
    let answer = weir.ask(&["zpool", "get", "-p", "-j", "-R", "/mnt", "-d"], &["all"])?;
    let none = Map::new();
    let properties = only(&answer, "pools").and_then(|p| p.get("properties")?.as_object()).unwrap_or(&none);
    let theirs = manifest.get("pool_props").and_then(Value::as_object).unwrap_or(&none);
    for (name, expected) in theirs.iter().filter(|(name, _)| !NOT_OF_THE_POOL.contains(&name.as_str())) {
        findings.facts += 1;
        let word = |i: usize| expected.get(i).and_then(Value::as_str).unwrap_or_default().to_string();
        let expected = (word(0), word(1));
        let found = properties.get(name).map(value_and_source);
        if found.as_ref() != Some(&expected) {
            findings.differs(format!("pool property {name}: expected {expected:?}, found {found:?}"));
        }
    }
    for name in properties.keys().filter(|name| !theirs.contains_key(*name)) {
        findings.differs(format!("pool property {name} is not known to OpenZFS"));
    }
    Ok(())
}

/// Returns the allocated bytes on special vdevs. Datasets may use them, but a read-only import of OpenZFS takes them
/// for 0 (see [`NOT_OF_THE_POOL`]), so Weir has this much more available.
fn special_bytes(status: &Value) -> u64 {
    let vdevs = status.get("special").and_then(Value::as_object);
    vdevs.into_iter().flat_map(Map::values).filter_map(|v| v.get("alloc_space")?.as_u64()).sum()
}

fn dataset_properties(
    weir: &Weir<'_>,
    manifest: &Value,
    special: u64,
    findings: &mut Findings,
) -> Result<(), JudgeError> {
    let answer = weir.ask(&["zfs", "get", "-p", "-j", "-t", "all", "-R", "/mnt", "--dir"], &["all"])?;
    let none = Map::new();
    let ours = answer.get("datasets").and_then(Value::as_object).unwrap_or(&none);
    let all = manifest.get("datasets").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut expected_names = BTreeSet::new();
    for dataset in all {
        let Some(name) = dataset.get("name").and_then(Value::as_str) else { continue };
        expected_names.insert(name);
        let Some(found) = ours.get(name).and_then(|d| d.get("properties")?.as_object()) else {
            findings.differs(format!("{name} is not listed"));
            continue;
        };
        dataset_case(name, dataset, found, special, findings);
    }
    for name in ours.keys().filter(|name| !expected_names.contains(name.as_str())) {
        findings.differs(format!("{name} is listed, but is not there"));
    }
    Ok(())
}

fn dataset_case(name: &str, dataset: &Value, found: &Map<String, Value>, special: u64, findings: &mut Findings) {
    let none = Map::new();
    let object = |key: &str| dataset.get(key).and_then(Value::as_object).unwrap_or(&none);
    let values = object("props");
    let sources = object("prop_sources");
    for (property, value) in values.iter().filter(|(p, _)| !NOT_OF_THE_DATASET.contains(&p.as_str())) {
        findings.facts += 1;
        let value = match value.as_str().unwrap_or_default() {
            bytes if property == "available" => {
                bytes.parse::<u64>().map_or(bytes.into(), |b| (b + special).to_string())
            }
            value => value.to_string(),
        };
        let Some((ours, source)) = found.get(property).map(value_and_source) else {
            findings.differs(format!("{name}: {property} is missing, expected {value:?}"));
            continue;
        };
        if ours != value {
            findings.differs(format!("{name}: {property}: expected {value:?}, found {ours:?}"));
        }
        // A manifest names only the sources that say more than `-` and `default`.
        let expected = sources.get(property).and_then(Value::as_str);
        let silent = matches!(source.as_str(), "-" | "default");
        if expected.is_none() && !silent || expected.is_some_and(|e| e != source) {
            findings.differs(format!("{name}: source of {property}: expected {expected:?}, found {source:?}"));
        }
    }
    for property in found.keys().filter(|p| !values.contains_key(*p)) {
        findings.differs(format!("{name}: {property} is shown, but OpenZFS does not show it"));
    }
}

fn same(at: &str, expected: Option<&Value>, found: Option<&Value>, findings: &mut Findings) {
    findings.facts += 1;
    if expected != found {
        findings.differs(format!("{at}: expected {expected:?}, found {found:?}"));
    }
}

fn tree(at: &str, expected: &Value, found: &Value, findings: &mut Findings) {
    let (Some(theirs), Some(ours)) = (expected.as_object(), found.as_object()) else {
        same(at, Some(expected), Some(found), findings);
        return;
    };
    for (key, value) in theirs {
        match ours.get(key) {
            _ if [NOT_IN_STATUS, COUNTED_BY_READS].concat().contains(&key.as_str()) => {
                same(at, Some(&true.into()), Some(&ours.contains_key(key).into()), findings)
            }
            Some(found) => tree(&format!("{at}.{key}"), value, found, findings),
            None => findings.differs(format!("{at}.{key} is missing, expected {value}")),
        }
    }
    for key in ours.keys().filter(|k| !theirs.contains_key(*k) && !MORE_IN_STATUS.contains(&k.as_str())) {
        findings.differs(format!("{at}.{key} is shown, but OpenZFS does not show it"));
    }
}
