//! NFS and NBD sessions over the simulated network on a simulated pool: connections are cut, then the power. Nothing that
//! either protocol acknowledged as stable is lost, and no block holds what no client sent.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_daemon::exports::{Exports, OpenPool};
use weir_daemon::{ExportRules, IdentityMap, Service, ServiceOptions, Sharing, Squash};
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_machine::{Machine, Request};
use weir_nfs::wire::{Decoder, Encoder};
use weir_pool::OpenOptions;
use weir_pool::config::Class;
use weir_sim::{Rng, SimError, SimStream, SimWorld, Timing};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
const NFS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2049);
const NBD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_809);

/// Versions of one block: the last one that was acknowledged as stable, and those that were acknowledged since. A block whose
/// last write was never answered is not written again: the server may execute that write, or not, at any time.
#[derive(Clone, Debug, Default)]
struct Known {
    stable: u64,
    later: Vec<u64>,
    in_doubt: Option<u64>,
}

/// Knowledge of a client about its blocks.
type Model = Arc<Mutex<Vec<Known>>>;

fn model() -> Model {
    Arc::new(Mutex::new(vec![Known::default(); BLOCKS as usize]))
}

fn contents(version: u64) -> Vec<u8> {
    version.to_be_bytes().repeat(BLOCK / 8)
}

/// Marks versions that were acknowledged up to now as stable.
fn promise(model: &Model, block: Option<u64>) {
    for (n, known) in (0..).zip(model.lock().unwrap().iter_mut()) {
        if block.is_none_or(|block| block == n)
            && let Some(last) = known.later.last().copied()
        {
            *known = Known { stable: last, later: Vec::new(), in_doubt: known.in_doubt };
        }
    }
}

/// The blocks that hold neither their stable version nor a later one.
fn wrong(model: &Model, found: &[u8]) -> Vec<String> {
    let known = model.lock().unwrap();
    let mut out = Vec::new();
    for (n, (known, block)) in known.iter().zip(found.chunks(BLOCK)).enumerate() {
        let versions = std::iter::once(known.stable).chain(known.later.iter().copied()).chain(known.in_doubt);
        if !versions.map(contents).any(|possible| possible == block) {
            let version = u64::from_be_bytes(block[..8].try_into().unwrap());
            out.push(format!("block {n} holds {version}, known is {known:?}"));
        }
    }
    out
}

/// A change of a client: a write of a block that is stable when it is answered, one that is not, or a flush.
struct Change {
    block: u64,
    version: u64,
    is_stable: bool,
    is_flush: bool,
}

/// A client's choices and what it knows.
struct Client {
    world: SimWorld,
    rng: Rng,
    model: Model,
    next: u64,
}

impl Client {
    fn new(world: &SimWorld, seed: u64, model: &Model) -> Self {
        Client { world: world.clone(), rng: Rng::new(seed), model: model.clone(), next: 0 }
    }

    fn connect(&self, to: SocketAddr, port: u16) -> io::Result<SimStream> {
        self.world.net().connect(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port), to)
    }

    /// The next change; the version that it writes is in doubt until it is acknowledged.
    fn choose(&mut self) -> Change {
        let mut known = self.model.lock().unwrap();
        let free: Vec<u64> = (0..BLOCKS).filter(|block| known[*block as usize].in_doubt.is_none()).collect();
        let block = free.get(self.rng.below(free.len().max(1) as u64) as usize).copied();
        let is_flush = block.is_none() || self.rng.below(6) == 0;
        let block = block.unwrap_or(0);
        self.next += 1;
        if !is_flush {
            known[block as usize].in_doubt = Some(self.next);
        }
        Change { block, version: self.next, is_stable: self.rng.below(2) == 0, is_flush }
    }

    /// Whether to cut the connection now instead of waiting for the answer.
    fn cuts(&mut self) -> bool {
        self.rng.below(7) == 0
    }

    fn done(&self, change: &Change) {
        if !change.is_flush {
            let known = &mut self.model.lock().unwrap()[change.block as usize];
            let version = known.in_doubt.take();
            known.later.extend(version);
        }
        match change.is_flush {
            true => promise(&self.model, None),
            false if change.is_stable => promise(&self.model, Some(change.block)),
            false => {}
        }
    }

    /// One NBD connection, until it is cut.
    async fn nbd(&mut self, port: u16) -> io::Result<()> {
        let mut stream = self.connect(NBD, port)?;
        stream.read_exact(&mut [0; 18]).await?;
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x08tank/vol").await?;
        stream.read_exact(&mut [0; 10]).await?;
        loop {
            let change = self.choose();
            let kind: u16 = if change.is_flush { 3 } else { 1 };
            let fua = u16::from(change.is_stable && !change.is_flush);
            let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
            request.extend(fua.to_be_bytes());
            request.extend(kind.to_be_bytes());
            request.extend(change.version.to_be_bytes());
            let len = if change.is_flush { 0 } else { BLOCK as u32 };
            request.extend(if change.is_flush { 0 } else { change.block * BLOCK as u64 }.to_be_bytes());
            request.extend(len.to_be_bytes());
            request.extend(contents(change.version).iter().take(len as usize));
            if self.cuts() {
                let part = self.rng.below(request.len() as u64 + 1) as usize;
                return stream.write_all(&request[..part]).await;
            }
            stream.write_all(&request).await?;
            let mut reply = [0; 16];
            stream.read_exact(&mut reply).await?;
            assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "no error");
            self.done(&change);
        }
    }

    /// One NFS connection, until it is cut.
    async fn nfs(&mut self, port: u16, file: &[u8]) -> io::Result<()> {
        let mut stream = self.connect(NFS, port)?;
        loop {
            let change = self.choose();
            let mut arguments = Encoder::default();
            arguments.opaque(file);
            let procedure = if change.is_flush {
                arguments.u64(0).u32(0);
                21
            } else {
                let stable = if change.is_stable { 2 } else { 0 };
                let data = contents(change.version);
                arguments.u64(change.block * BLOCK as u64).u32(BLOCK as u32).u32(stable).opaque(&data);
                7
            };
            let call = call(100_003, procedure, change.version as u32, &arguments);
            if self.cuts() {
                let part = self.rng.below(call.len() as u64 + 1) as usize;
                return stream.write_all(&call[..part]).await;
            }
            let reply = exchange(&mut stream, &call).await?;
            assert_eq!(reply[24..28], [0; 4], "NFS3_OK");
            self.done(&change);
        }
    }
}

/// A call of user 0 with its record mark.
fn call(program: u32, procedure: u32, xid: u32, arguments: &Encoder) -> Vec<u8> {
    let mut out = Encoder::default();
    for word in [xid, 0, 2, program, 3, procedure] {
        out.u32(word);
    }
    let mut credential = Encoder::default();
    credential.u32(0).opaque(b"test").u32(0).u32(0).u32(0);
    out.u32(1).opaque(&credential.bytes).u32(0).u32(0);
    out.bytes.extend_from_slice(&arguments.bytes);
    [&(1 << 31 | out.bytes.len() as u32).to_be_bytes()[..], &out.bytes].concat()
}

async fn exchange(stream: &mut SimStream, call: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(call).await?;
    let mark = stream.read_u32().await? & !(1 << 31);
    let mut reply = vec![0; mark as usize];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

/// Mounts the pool's root file system and creates the file.
async fn create_file(world: &SimWorld) -> Vec<u8> {
    let mut stream = world.net().connect(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 700), NFS).unwrap();
    let mut arguments = Encoder::default();
    arguments.opaque(b"/tank");
    let reply = exchange(&mut stream, &call(100_005, 1, 1, &arguments)).await.unwrap();
    let mut results = Decoder::new(&reply[24..]);
    assert_eq!(results.u32(), Some(0), "mounted");
    let root = results.opaque(64).unwrap().to_vec();
    let mut arguments = Encoder::default();
    // UNCHECKED, mode 0644, no other attribute.
    arguments.opaque(&root).opaque(b"file").u32(0).u32(1).u32(0o644);
    arguments.u32(0).u32(0).u32(0).u32(0).u32(0);
    let reply = exchange(&mut stream, &call(100_003, 8, 2, &arguments)).await.unwrap();
    let mut results = Decoder::new(&reply[24..]);
    assert_eq!((results.u32(), results.u32()), (Some(0), Some(1)), "created");
    results.opaque(64).unwrap().to_vec()
}

fn pool_options() -> CreateOptions {
    let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    options
}

async fn serve(world: SimWorld, machine: Machine, seed: u64, models: [Model; 2]) {
    let rq = &Request::internal("test");
    let engine = Engine::create(&machine, &pool_options()).await.unwrap();
    let kind = Kind::Volume(VolumeSpec { size_bytes: BLOCKS * BLOCK as u64, block_bytes: BLOCK as u32 });
    engine.create_dataset(NewDataset { name: "tank/vol".into(), kind, properties: Vec::new() }).await.unwrap();
    let exports = Arc::new(Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap());
    let identity = IdentityMap { squash: Squash::None, ..IdentityMap::default() };
    let sharing = Sharing::Everything(ExportRules { identity, ..ExportRules::default() });
    let options = ServiceOptions { sharing, ..ServiceOptions::default() };
    let _service = Service::start(&machine, &exports, &options).await.unwrap();
    let file = create_file(&world).await;
    engine.sync().await.unwrap();
    // From here on the power may fail.
    let mut rng = Rng::new(seed);
    world.cut_after(20 + rng.below(400));
    let [nbd, nfs] = models;
    let mut of_nbd = Client::new(&world, seed * 2, &nbd);
    let mut of_nfs = Client::new(&world, seed * 2 + 1, &nfs);
    let blocks = async move {
        for port in 1.. {
            // An error is a connection that was cut.
            let _cut = of_nbd.nbd(port).await;
        }
    };
    let files = async move {
        for port in 1.. {
            let _cut = of_nfs.nfs(port, &file).await;
        }
    };
    futures_util::future::join(machine.tasks.spawn(blocks), files).await.0.unwrap();
}

#[test]
fn nothing_acknowledged_as_stable_is_lost_when_connections_and_the_power_are_cut() {
    let mut promises = 0;
    for seed in 1..40 {
        let world = SimWorld::new(seed);
        world.add_disk("/sim/d0", 64 << 20, 512, if seed % 2 == 0 { Timing::SataSsd } else { Timing::Chaos });
        let models = [model(), model()];
        let ended = world.run(serve(world.clone(), world.machine(), seed, models.clone()));
        assert!(matches!(ended, Err(SimError::PowerCut { .. })), "seed {seed}: {ended:?}");
        world.cancel_cut();
        let machine = world.machine();
        let [nbd, nfs] = models;
        let found = world.run(async move {
            let rq = &Request::internal("test");
            let mut open = OpenOptions::new(vec!["/sim".into()], "tank");
            open.arc_bytes = 16 << 20;
            let engine = Engine::import(&machine, &ImportOptions::new(open)).await.unwrap();
            let volume = engine.volume(rq, "tank/vol").await.unwrap();
            let bytes = BLOCKS as usize * BLOCK;
            let of_volume = volume.read(rq, 0, bytes).await.unwrap().to_vec();
            let files = engine.file_system(rq, "tank").await.unwrap();
            let file = files.directories().lookup(rq, files.root(), b"file").await.unwrap();
            let mut of_file = files.contents().read(rq, file, 0, bytes).await.unwrap().to_vec();
            // What was never written reads as zeros, beyond the end of the file as well.
            of_file.resize(bytes, 0);
            engine.stop().await.unwrap();
            (of_volume, of_file)
        });
        let (of_volume, of_file) = found.unwrap();
        for (protocol, model, found) in [("NBD", &nbd, &of_volume), ("NFS", &nfs, &of_file)] {
            assert_eq!(wrong(model, found), Vec::<String>::new(), "seed {seed}, {protocol}");
            promises += model.lock().unwrap().iter().filter(|known| known.stable > 0).count();
        }
    }
    assert!(promises > 200, "{promises} blocks had a stable version");
}
