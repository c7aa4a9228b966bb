//! `zpool set`.

use super::vdev_properties;
use crate::args::CommandLine;
use crate::cache_file::{self, CachePlace};
use crate::call::Call;
use crate::command_target::CommandTarget;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools::search;
use crate::writable::{WritablePool, WriteIntent, refused};
use clap::Parser;
use weir_admin::{Action, PoolChange};
use weir_engine::PoolProperty;
use weir_format::features;

/// Set a property of a pool or of a vdev.
#[derive(Debug, Parser)]
#[command(name = "zpool set", override_usage = "zpool set [-d DIR]… PROPERTY=VALUE POOL [VDEV]")]
pub struct SetArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Property with its value, the pool, and a vdev by name, path or GUID
    #[arg(value_name = "PROPERTY=VALUE POOL [VDEV]")]
    words: Vec<String>,
}

/// Runs `zpool set`.
pub fn run(call: &Call, args: &SetArgs) -> Result<u8, Failure> {
    if let [pair, pool, vdev] = args.words.as_slice() {
        let pair = pair.split_once('=').ok_or_else(|| SetArgs::misused("missing value in property=value argument"))?;
        return vdev_properties::set(call, &args.places, pair, pool, vdev);
    }
    let [pair, pool]: [String; 2] =
        args.words.clone().try_into().map_err(|_| SetArgs::misused("missing property=value or pool argument"))?;
    let doing = format!("cannot set property for '{pool}'");
    let (property, value) =
        pair.split_once('=').ok_or_else(|| SetArgs::misused("missing value in property=value argument"))?;
    if property == "cachefile" {
        let place = CachePlace::parse(value).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
        return set_place(call, &args.places, &pool, place);
    }
    let wanted = wanted(property, value).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
    CommandTarget::of_pool(call, &args.places, &pool)?
        .with(|target| target.attempt(Action::Pool(wanted))?.map_err(|refusal| refused(&doing, refusal)))?;
    Ok(0)
}

/// Sets the property `cachefile`, which is not stored in the pool.
fn set_place(call: &Call, places: &PoolDirs, pool: &str, place: CachePlace) -> Result<u8, Failure> {
    let search = search(call, &places.dirs)?;
    let intent = WriteIntent { search, pool: pool.to_owned(), ..WriteIntent::default() };
    let opened = WritablePool::of_call(call, &intent)?;
    match (opened.served_pool(), call.process().and_then(|process| process.daemon())) {
        (Some(served_pool), Some(daemon)) => daemon.set_place(served_pool, place)?,
        _ if place == CachePlace::None => cache_file::forget(call, pool),
        _ => cache_file::remember(call, &place, &opened.engine),
    }
    opened.close()?;
    Ok(0)
}

/// The change that `zpool set PROPERTY=VALUE POOL` makes.
///
/// # Errors
/// The reason why the property cannot have this value.
pub fn wanted(property: &str, value: &str) -> Result<PoolChange, String> {
    if property == "compatibility" {
        weir_admin::compatible_features(value).map_err(|why| format!("property '{property}': {why}"))?;
    }
    PoolChange::of_property(property, value)
}

/// The property of a pool that is made or imported with `-o PROPERTY=VALUE`.
///
/// # Errors
/// The reason why the property cannot have this value.
pub fn stored(name: &str, value: &str) -> Result<PoolProperty, String> {
    Ok(match wanted(name, value)? {
        PoolChange::SetComment { text } => PoolProperty::Comment(text),
        PoolChange::SetCompatibility { sets } => PoolProperty::Compatibility(sets),
        PoolChange::SetUser { property, text } => PoolProperty::User { name: property, text },
        PoolChange::SetNumber { property, number } => PoolProperty::Number { property, number },
        PoolChange::EnableFeature { feature } => {
            let found = features::by_name(&feature).ok_or_else(|| format!("invalid feature '{feature}'"))?;
            PoolProperty::Feature(found)
        }
        _ => return Err(format!("property '{name}' cannot be set")),
    })
}
