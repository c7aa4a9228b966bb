//! A process that has a pool on a store open: its machine, and how it is killed or stopped.

use crate::bucket::{Bucket, Power};
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, select};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_machine::tasks::Spawner;
use weir_machine::{Access, BufPool, Disk, DiskError, Disks, Machine, Tasks};
use weir_object_store::io::StoreDisk;
use weir_object_store::lease::LeaseTimes;
use weir_object_store::record::Holder;
use weir_object_store::requests::Requests;
use weir_object_store::{Bug, Core, Settings, open_writer};

/// Bytes of an object.
pub const OBJECT_BYTES: u64 = 64 << 10;
/// Limit of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// "No such file or directory".
const ENOENT: i32 = 2;

/// Tasks of one process.
struct ProcessTasks {
    tasks: Tasks,
    killed: Shared<oneshot::Receiver<()>>,
}

impl Spawner for ProcessTasks {
    fn spawn(&self, _: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        let killed = self.killed.clone();
        drop(self.tasks.spawn(async move { drop(select(task, killed).await) }));
    }

    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        self.tasks.block_on(task);
    }
}

/// Disks of one process: one for each bucket.
struct ProcessDisks(BTreeMap<PathBuf, Arc<Core>>, BufPool);

impl Disks for ProcessDisks {
    fn scan(&self, _: &Path) -> Result<Vec<PathBuf>, DiskError> {
        Ok(self.0.keys().cloned().collect())
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        let core = self.0.get(path).ok_or(DiskError::Open { path: path.into(), errno: ENOENT })?;
        Ok(Arc::new(StoreDisk::new(core.clone(), access, self.1.clone(), None)))
    }
}

/// A process.
pub struct Process {
    /// Machine on which its engine runs.
    pub machine: Machine,
    /// Another process has taken its disks.
    pub has_lost: Slot<bool>,
    power: Vec<Arc<weir_machine::lock::Mutex<Power>>>,
    kill: oneshot::Sender<()>,
}

impl Process {
    /// A process that has taken all disks; `None` if the store's faults prevented it.
    pub async fn start(base: &Machine, buckets: &[Arc<Bucket>], settings: &Settings, nonce: u64) -> Option<Process> {
        let (kill, killed) = oneshot::channel();
        let tasks = Tasks::new(Arc::new(ProcessTasks { tasks: base.tasks.clone(), killed: killed.shared() }));
        let mut process = Process {
            machine: Machine { tasks: tasks.clone(), ..base.clone() },
            has_lost: Slot::default(),
            power: Vec::new(),
            kill,
        };
        let mut disks = BTreeMap::new();
        for (number, bucket) in buckets.iter().enumerate() {
            let client = bucket.client();
            process.power.push(client.power());
            let pid = nonce as u32;
            let holder = Holder { host: "h".into(), boot: "b".into(), pid, started: 0, nonce, renewal: 0 };
            let requests = Arc::new(Requests::new(Arc::new(client), base.clock.clone(), TIMEOUT));
            match open_writer(requests, tasks.clone(), settings.clone(), holder, None).await {
                Ok(core) => drop(disks.insert(PathBuf::from(format!("{}/d{number}", crate::world::SEARCH)), core)),
                Err(_) => {
                    process.kill();
                    return None;
                }
            }
        }
        process.machine.disks = Arc::new(ProcessDisks(disks, process.machine.read_buffers.clone()));
        Some(process)
    }

    fn set(&self, power: Power) {
        self.power.iter().for_each(|own| *own.lock() = power);
    }

    /// Stops its requests; those on the way are executed.
    pub fn stop(&self) {
        self.set(Power::Paused);
    }

    /// Sends its requests again.
    pub fn go_on(&self) {
        self.set(Power::Running);
    }

    /// Ends its tasks; its requests on the way are executed, and no further one is sent.
    pub fn kill(self) {
        self.set(Power::Dead);
        // All tasks may have ended.
        let _ = self.kill.send(());
    }
}

/// Settings of disks in a store whose changes are late by at most `latest`.
pub fn settings(latest: Duration, bug: Option<Bug>) -> Settings {
    Settings {
        parallel: 8,
        gather_bytes: 32 * OBJECT_BYTES,
        cache_bytes: 64 * OBJECT_BYTES,
        deadline: Duration::from_secs(200),
        request_life: latest + Duration::from_secs(2),
        lease: LeaseTimes::default(),
        bug,
    }
}

/// A value that tasks share.
pub type Slot<T> = Arc<Mutex<T>>;
