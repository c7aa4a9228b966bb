//! `zpool export`, `destroy`, `sync`, `labelclear`: what is done to pools as a whole.

use super::opened::words;
use crate::args::{Args, Spec};
use crate::call::Call;
use crate::failure::Failure;
use crate::locks::lock;
use crate::pools::{names, search};
use crate::writable::{WritablePool, WriteIntent};
use std::ffi::OsString;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use weir_pool::assemble::state;

const EXPORT: Spec =
    Spec { command: "zpool export", letters: "afd:", long: &[], usage: "zpool export [-af] [-d DIR]… POOL…" };
const DESTROY: Spec =
    Spec { command: "zpool destroy", letters: "fd:", long: &[], usage: "zpool destroy [-f] [-d DIR]… POOL" };
const SYNC: Spec = Spec { command: "zpool sync", letters: "d:", long: &[], usage: "zpool sync [-d DIR]… [POOL]…" };
const LABELCLEAR: Spec =
    Spec { command: "zpool labelclear", letters: "f", long: &[], usage: "zpool labelclear [-f] DEVICE" };
/// A label, in bytes; there are two in front and two at the end.
const LABEL_BYTES: u64 = 256 << 10;

/// Opens a pool for changes.
fn open(call: &Call, args: &Args, pool: &str) -> Result<WritablePool, Failure> {
    let intent =
        WriteIntent { search: search(call, args.values('d'))?, pool: pool.to_owned(), ..WriteIntent::default() };
    WritablePool::of_call(call, &intent)
}

/// Runs `zpool export`.
pub fn export(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = EXPORT.parse(line)?;
    let mut pools = words(&args);
    if args.has('a') {
        if !pools.is_empty() {
            return Err(EXPORT.misused("too many arguments"));
        }
        pools = names(call, &search(call, args.values('d'))?)?;
    } else if pools.is_empty() {
        return Err(EXPORT.misused("missing pool argument"));
    }
    for pool in pools {
        let writable = open(call, &args, &pool)?;
        let done = writable.end(false, args.has('f'));
        done.map_err(|why| Failure::failed(format!("cannot export '{pool}': {why}")))?;
    }
    Ok(0)
}

/// Runs `zpool destroy`.
pub fn destroy(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = DESTROY.parse(line)?;
    let [pool] = words(&args).try_into().map_err(|_| DESTROY.misused("missing pool argument"))?;
    let writable = open(call, &args, &pool)?;
    let done = writable.end(true, args.has('f'));
    done.map_err(|why| Failure::failed(format!("cannot destroy '{pool}': {why}")))?;
    Ok(0)
}

/// Runs `zpool sync`: what was changed is on stable storage. A pool that no process has open is already; opening and
/// closing it proves it.
pub fn sync(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SYNC.parse(line)?;
    let mut pools = words(&args);
    if pools.is_empty() {
        pools = names(call, &search(call, args.values('d'))?)?;
    }
    for pool in pools {
        open(call, &args, &pool)?.with(async |engine| Ok(engine.sync().await?))?;
    }
    Ok(0)
}

/// Runs `zpool labelclear`.
pub fn labelclear(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = LABELCLEAR.parse(line)?;
    let [device] = words(&args).try_into().map_err(|_| LABELCLEAR.misused("name one device"))?;
    let path = call.path(&device);
    let machine = call.machine()?;
    let failed = |why: String| Failure::failed(format!("failed to clear label for {device}: {why}"));
    let found = machine.block_on(weir_pool::scan::probe(machine, &path)).map_err(|error| failed(error.to_string()))?;
    let config = found.iter().find_map(|device| device.config());
    if found.is_empty() && !args.has('f') {
        return Err(failed("no label found".into()));
    }
    if let Some(config) = config.filter(|_| !args.has('f')) {
        let pool = config.get_str("name").unwrap_or("unknown").to_owned();
        let member = match config.get_u64("state") {
            Some(state::ACTIVE) => Some("potentially active"),
            Some(state::EXPORTED) => Some("exported"),
            _ => None,
        };
        if let Some(member) = member {
            return Err(Failure::failed(format!(
                "use '-f' to override the following error:\n{device} is a member of {member} pool \"{pool}\""
            )));
        }
    }
    let _locks = lock(&device, vec![path.clone()])?;
    clear(&path).map_err(|error| failed(error.to_string()))?;
    Ok(0)
}

/// Overwrites all four labels.
fn clear(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::options().write(true).open(path)?;
    let size = file.seek(SeekFrom::End(0))? / LABEL_BYTES * LABEL_BYTES;
    let zeros = vec![0; LABEL_BYTES as usize];
    let places = [0, LABEL_BYTES, size.saturating_sub(2 * LABEL_BYTES), size.saturating_sub(LABEL_BYTES)];
    for place in places.into_iter().filter(|place| place + LABEL_BYTES <= size) {
        file.seek(SeekFrom::Start(place))?;
        file.write_all(&zeros)?;
    }
    file.sync_all()
}
