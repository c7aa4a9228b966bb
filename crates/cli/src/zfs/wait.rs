//! `zfs wait`: returns when activities of a file system have ended.
//!
//! Source: OpenZFS `include/sys/fs/zfs.h` (`zfs_wait_activity_t`), `module/zfs/zfs_znode.c`, `man/man8/zfs-wait.8`.

use super::target::{pool_of, words};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::Places;
use crate::pools::{PoolHandle, keys_of, look, search};
use clap::Parser;
use std::time::Duration;
use weir_dmu::Zap;
use weir_dmu::zap;
use weir_format::ObjectId;
use weir_format::znode::master;
use weir_machine::Request;
use weir_pool::{OpenOptions, PoolError};

/// Interval at which the file system is looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// Wait until files that were removed while they were in use have been freed.
#[derive(Debug, Parser)]
#[command(name = "zfs wait", override_usage = "zfs wait [-t deleteq] [--dir DIR]… FILESYSTEM")]
pub struct WaitArgs {
    /// Activities: deleteq, the only one
    #[arg(short = 't', value_name = "ACTIVITY,…")]
    activities: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// File system
    #[arg(value_name = "FILESYSTEM")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &WaitArgs) -> Result<u8, Failure> {
    let name = words::<WaitArgs>(&args.words, 1..=1, "missing 'filesystem' argument")?.remove(0);
    if let Some(unknown) = args.activities.iter().flat_map(|list| list.split(',')).find(|name| *name != "deleteq") {
        return Err(WaitArgs::misused(&format!("invalid activity '{unknown}'")));
    }
    let machine = call.machine()?;
    let search = search(call, &args.places.dirs)?;
    let mut options = OpenOptions::new(search.clone(), pool_of(&name));
    options.keys = keys_of(call, &search, &args.places.keys)?;
    loop {
        let pool = look(call, &options)?;
        let waiting = machine.block_on(removed_files(&pool, &name))?;
        // Nothing is freed in a pool that no process has open.
        if waiting == 0 || matches!(pool, PoolHandle::Closed(_)) || call.is_gone() {
            return Ok(0);
        }
        drop(pool);
        call.waits()?;
        machine.block_on(machine.clock.sleep(INTERVAL));
    }
}

/// Number of removed files that wait to be freed.
async fn removed_files(pool: &PoolHandle, name: &str) -> Result<usize, Failure> {
    let rq = &Request::internal("wait");
    let missing = |_| Failure::failed(format!("cannot open '{name}': dataset does not exist"));
    pool.dataset(rq, name).await.map_err(missing)?;
    let files = pool.file_system(rq, name).await?;
    let set = files.objects();
    let unlinked = zap::lookup_word(rq, set, ObjectId(master::OBJECT), master::UNLINKED_SET).await;
    let Some(queue) = unlinked.map_err(PoolError::from)? else { return Ok(0) };
    let queue = Zap::open(rq, set, ObjectId(queue)).await.map_err(PoolError::from)?;
    // One is enough to wait.
    Ok(queue.entries(rq, 0, 1).await.map_err(PoolError::from)?.len())
}
