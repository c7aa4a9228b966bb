//! `zfs set` and `zfs inherit`: properties of datasets.

use super::identity;
use super::property_list;
use super::target::{self, words};
use super::values::{self, When};
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::command_target::CommandTarget;
use crate::failure::{FAILED, Failure};
use crate::options::{Places, once};
use crate::writable::refused;
use clap::Parser;
use weir_admin::{Action, Change, Outcome};
use weir_dsl::props::{DatasetKind, Value};
use weir_dsl::sync_tasks::Setting;

/// Set properties of datasets.
#[derive(Debug, Parser)]
#[command(name = "zfs set", override_usage = "zfs set [-u] [--dir DIR]… PROPERTY=VALUE… FILESYSTEM|VOLUME|SNAPSHOT…")]
pub struct SetArgs {
    /// Do not mount, unmount or remount file systems
    #[arg(short = 'u')]
    no_mount: bool,
    #[command(flatten)]
    places: Places,
    /// Properties with their values, then datasets
    #[arg(value_name = "PROPERTY=VALUE DATASET")]
    words: Vec<String>,
}

/// Clear properties of datasets, so that they are inherited or have their default.
#[derive(Debug, Parser)]
#[command(name = "zfs inherit", override_usage = "zfs inherit [-rS] [--dir DIR]… PROPERTY FILESYSTEM|VOLUME|SNAPSHOT…")]
pub struct InheritArgs {
    /// Clear the property of all datasets below as well
    #[arg(short)]
    recursive: bool,
    /// Revert to the received value if there is one
    #[arg(short = 'S')]
    received: bool,
    #[command(flatten)]
    places: Places,
    /// Property, then datasets
    #[arg(value_name = "PROPERTY DATASET")]
    words: Vec<String>,
}

/// Runs `zfs set`.
pub fn run(call: &Call, args: &SetArgs) -> Result<u8, Failure> {
    if args.words.is_empty() {
        return Err(property_list::after(SetArgs::misused("missing property=value argument(s)")));
    }
    let words = words::<SetArgs>(&args.words, 2..=usize::MAX, "missing property=value or dataset argument")?;
    let (pairs, names): (Vec<String>, Vec<String>) = words.into_iter().partition(|word| word.contains('='));
    if pairs.is_empty() {
        return Err(SetArgs::misused("missing property=value argument(s)"));
    }
    if names.is_empty() {
        return Err(SetArgs::misused("missing dataset name(s)"));
    }
    once(&pairs).map_err(Failure::failed)?;
    each(call, &names, |name| {
        let doing = format!("cannot set property for '{name}'");
        target::with(call, &args.places, name, |target| set(target, name, &pairs, &doing, args.no_mount))
    })
}

/// Runs `change` for each dataset. If it fails for some, it prints why, goes on with the others and returns exit code 1; a
/// single failure is returned.
fn each(call: &Call, names: &[String], change: impl Fn(&str) -> Result<(), Failure>) -> Result<u8, Failure> {
    if let [name] = names {
        return change(name).map(|()| 0);
    }
    let mut code = 0;
    for name in names {
        if let Err(failure) = change(name) {
            errln!(call, "{failure}");
            code = FAILED;
        }
    }
    Ok(code)
}

fn set(
    target: &CommandTarget<'_>,
    name: &str,
    pairs: &[String],
    doing: &str,
    leaves_mounts: bool,
) -> Result<(), Failure> {
    let kind = kind_of(target, name)?;
    let mut settings = Vec::new();
    for pair in pairs {
        let split = pair.split_once('=');
        if let Some(quota) = split.and_then(|(property, value)| identity::parse_quota(property, value)) {
            let (of, limit) = quota.map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
            let id = Some(of.id);
            let change = Change::SetQuota { name: name.to_owned(), principal: of.who, kind: of.what, id, limit };
            target.change(doing, change)?;
            continue;
        }
        if pair == "refreservation=auto" && kind == DatasetKind::Volume {
            target.change(doing, Change::ReserveVolume { name: name.to_owned() })?;
            continue;
        }
        if let Some(("version", version)) = pair.split_once('=') {
            let version = values::version(version).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
            target.change(doing, Change::Upgrade { name: name.to_owned(), version })?;
            continue;
        }
        let user = pair.split('=').next().is_some_and(|p| p.contains(':'));
        let as_kind = if user { DatasetKind::Filesystem } else { kind };
        let (property, value) =
            values::parse(pair, as_kind, When::Later).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
        if let (Some((principal, kind)), Value::Number(limit)) = (identity::usual(&property), &value) {
            let change = Change::SetQuota { name: name.to_owned(), principal, kind, id: None, limit: *limit };
            target.change(doing, change)?;
            continue;
        }
        settings.push((property, value));
    }
    let volsize = settings.iter().position(|(property, _)| property == "volsize").map(|at| settings.remove(at).1);
    if let Some(Value::Number(size_bytes)) = volsize {
        let keep_reservation = settings.iter().any(|(property, _)| property == "refreservation");
        let change = Change::Resize { name: name.to_owned(), size_bytes, keep_reservation };
        target.change(doing, change)?;
    }
    if settings.is_empty() {
        return Ok(());
    }
    let settings = settings.into_iter().map(|(property, value)| (property, Setting::Set(value))).collect();
    let change = Change::Set { name: name.to_owned(), settings, recursive: false };
    target.change(doing, target::action(change, leaves_mounts))
}

/// Returns the kind of a dataset.
fn kind_of(target: &CommandTarget<'_>, name: &str) -> Result<DatasetKind, Failure> {
    match target.attempt(Action::Kind { name: name.to_owned() })? {
        Ok(Outcome::Kind(kind)) => Ok(kind),
        Ok(_) => Err(Failure::failed(format!("cannot open '{name}': the answer is not a kind of dataset"))),
        Err(refusal) => Err(refused(&format!("cannot open '{name}'"), refusal)),
    }
}

/// Runs `zfs inherit`.
pub fn inherit(call: &Call, args: &InheritArgs) -> Result<u8, Failure> {
    if args.words.is_empty() {
        return Err(property_list::after(InheritArgs::misused("missing property argument")));
    }
    let words = words::<InheritArgs>(&args.words, 2..=usize::MAX, "missing property or dataset argument")?;
    let Some((property, names)) = words.split_first() else {
        return Err(InheritArgs::misused("missing property argument"));
    };
    let property = values::inheritable(property, args.received)?;
    let setting = if args.received { Setting::Revert } else { Setting::Inherit };
    each(call, names, |name| {
        let doing = format!("cannot inherit {property} for '{name}'");
        let change = Change::Set {
            name: name.to_owned(),
            settings: vec![(property.clone(), setting.clone())],
            recursive: args.recursive,
        };
        target::once(call, &args.places, name, &doing, change).map(drop)
    })
}
