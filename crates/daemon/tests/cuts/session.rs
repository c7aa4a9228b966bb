//! A session that is run once without faults, and then with cuts.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use weir_daemon::exports::{Exports, OpenPool};
use weir_daemon::{ExportRules, IdentityMap, Service, ServiceOptions, Sharing, Squash};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{Kind, NewDataset, Setting, VolumeSpec};
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_front::Hosts;
use weir_iscsi::{LunConfig, NoReservations, TargetConfig};
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;
use weir_pool::config::Class;
use weir_sim::{Direction, Recording, Replay, SimStream, SimWorld, Start, Timing};

pub const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const VOLUME_BYTES: u64 = 64 << 10;
const SEED: u64 = 7;
/// Stored value of `sync=disabled`.
const SYNC_DISABLED: u64 = 2;

/// Point of a call at which its connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    BeforeCall,
    InCall,
    AfterCall,
    BeforeReply,
    InReply,
    AfterReply,
}

impl Point {
    pub const ALL: [Point; 6] =
        [Point::BeforeCall, Point::InCall, Point::AfterCall, Point::BeforeReply, Point::InReply, Point::AfterReply];

    /// Lays the cut over a connection on which a call of `len` bytes is sent next.
    fn lay(self, stream: &mut SimStream, len: usize) {
        let len = len as u64;
        match self {
            Point::BeforeCall => stream.cut_after(Direction::ToServer, 0),
            Point::InCall => stream.cut_after(Direction::ToServer, len / 2),
            Point::AfterCall => stream.cut_after(Direction::ToServer, len),
            Point::BeforeReply => stream.cut_after(Direction::ToClient, 0),
            Point::InReply => stream.cut_after(Direction::ToClient, 9),
            Point::AfterReply => {}
        }
    }
}

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    Nothing,
    /// Changes are answered before they are stable (`sync=disabled`).
    AnswersEarly,
}

/// State of what a session changes, as items that become stable independently: the tree of files, or the blocks of a volume.
pub type State = Vec<Vec<u8>>;

/// A protocol with its session.
pub trait Protocol {
    /// Number of steps.
    fn steps(&self) -> usize;
    /// The call of a step.
    fn call(&self, step: usize, memory: &Memory) -> Vec<u8>;
    /// Reads a reply; `None` if the connection ends before. Returns it without what identifies the transmission.
    fn reply<'a>(&self, stream: &'a mut SimStream) -> BoxFuture<'a, Option<Vec<u8>>>;
    /// Whether a step succeeded: its reply says so, or (`repeated`) that it had been executed before.
    fn succeeded(&self, step: usize, reply: &[u8], repeated: bool) -> bool;
    /// Keeps what later steps need of a reply.
    fn remember<'a>(&'a self, step: usize, reply: &'a [u8], client: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()>;
    /// The items that are stable when a step is answered.
    fn stable_items(&self, step: usize, items: usize) -> Vec<usize>;
    /// Address of the server, and of the client of this connection.
    fn addresses(&self, connection: u16) -> (SocketAddr, SocketAddr);
    /// Begins a connection.
    fn begin<'a>(&'a self, stream: &'a mut SimStream) -> BoxFuture<'a, bool>;
    /// The calls before the first step.
    fn first<'a>(&'a self, client: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()>;
    /// The current state.
    fn state<'a>(&'a self, engine: &'a Arc<Engine>) -> LocalBoxFuture<'a, State>;
}

/// Memory of a client: file handles by name.
pub type Memory = std::collections::BTreeMap<&'static str, Vec<u8>>;

/// A client of the session.
pub struct Client<'a> {
    protocol: &'a dyn Protocol,
    world: SimWorld,
    stream: Option<SimStream>,
    connections: u16,
    pub memory: Memory,
}

impl Client<'_> {
    /// Sends a call until it is answered. The first transmission is cut at `point`; `cut` is called at that moment.
    pub async fn exchange(&mut self, call: &[u8], mut point: Option<Point>, mut cut: impl FnMut(bool)) -> Vec<u8> {
        loop {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => {
                    self.connections += 1;
                    let (server, client) = self.protocol.addresses(self.connections);
                    let mut stream = self.world.net().connect(client, server).unwrap();
                    assert!(self.protocol.begin(&mut stream).await, "only calls are cut");
                    stream
                }
            };
            let point = point.take();
            if let Some(point) = point {
                point.lay(&mut stream, call.len());
            }
            let sent = stream.write_all(call).await.is_ok() && !stream.is_cut();
            let reply = if sent { self.protocol.reply(&mut stream).await } else { None };
            if point.is_some() {
                drop(stream);
                cut(reply.is_some());
            } else {
                self.stream = Some(stream);
            }
            if let Some(reply) = reply {
                return reply;
            }
            assert!(point.is_some(), "a connection ended that was not cut");
        }
    }
}

/// A cut connection: the moment of the disks, the step, and for each item the first state that it may have.
pub struct CutAt {
    moment: u64,
    step: usize,
    floors: Vec<usize>,
    memory: Memory,
    was_answered: bool,
}

/// A run of the session.
pub struct Run {
    pub cuts: Vec<CutAt>,
    pub recording: Recording,
}

/// The session of a protocol, with its replies and states without faults.
pub struct Session<'a> {
    protocol: &'a dyn Protocol,
    pool: Start,
    replies: Vec<Vec<u8>>,
    /// The state before each step, and in the end.
    states: Vec<State>,
}

impl<'a> Session<'a> {
    /// Runs the session without faults.
    pub fn of(protocol: &'a dyn Protocol, bug: Bug) -> Self {
        let pool = create_pool(bug);
        let world = pool.world(SEED);
        let machine = world.machine();
        let mut replies = Vec::new();
        let mut states = Vec::new();
        let ran = world.run(async {
            let (engine, _service) = serve(&machine).await;
            let mut client = client(protocol, &world);
            protocol.first(&mut client).await;
            for step in 0..protocol.steps() {
                states.push(protocol.state(&engine).await);
                let call = protocol.call(step, &client.memory);
                let reply = client.exchange(&call, None, |_| {}).await;
                assert!(protocol.succeeded(step, &reply, false), "step {step}: {reply:?}");
                protocol.remember(step, &reply, &mut client).await;
                replies.push(reply);
            }
            states.push(protocol.state(&engine).await);
        });
        ran.unwrap();
        world.power_failure();
        Session { protocol, pool, replies, states }
    }

    pub fn steps(&self) -> usize {
        self.protocol.steps()
    }

    /// Runs the session while the connection of each call is cut at one point. Every reply and every state must be the same
    /// as without cuts.
    pub fn run(&self, point: Point) -> Result<Run, String> {
        let world = self.pool.world(SEED + 1);
        let start = world.record();
        let machine = world.machine();
        let ran = world.run(async {
            let mut cuts = Vec::new();
            let (engine, _service) = serve(&machine).await;
            let mut client = client(self.protocol, &world);
            self.protocol.first(&mut client).await;
            let mut floors = vec![0; self.states[0].len()];
            for (step, wanted) in self.replies.iter().enumerate() {
                let call = self.protocol.call(step, &client.memory);
                let memory = client.memory.clone();
                let before = floors.clone();
                let mut after = floors;
                for item in self.protocol.stable_items(step, after.len()) {
                    after[item] = step + 1;
                }
                let recorded = || world.recorded();
                let reply = client
                    .exchange(&call, Some(point), |was_answered| {
                        let floors = if was_answered { after.clone() } else { before.clone() };
                        cuts.push(CutAt { moment: recorded(), step, floors, memory: memory.clone(), was_answered });
                    })
                    .await;
                floors = after;
                if reply.len() != wanted.len() || !self.protocol.succeeded(step, &reply, false) {
                    return Err(format!("step {step}: the reply is {reply:?}, without a cut {wanted:?}"));
                }
                self.protocol.remember(step, &reply, &mut client).await;
                if self.protocol.state(&engine).await != self.states[step + 1] {
                    return Err(format!("step {step}: another state than without a cut"));
                }
            }
            Ok(cuts)
        });
        let cuts = ran.map_err(|error| error.to_string())?;
        let recording = world.recording(start);
        world.power_failure();
        Ok(Run { cuts: cuts?, recording })
    }

    /// Cuts the power at each of these moments, imports the pool, and goes on with the session. Returns the number of cuts.
    pub fn cut_power(&self, recording: &Recording, cuts: &[CutAt]) -> Result<usize, String> {
        let mut replay = Replay::new(recording);
        for cut in cuts {
            replay.advance(cut.moment);
            let world = replay.cut(SEED + cut.step as u64).world();
            let machine = world.machine();
            let ran = world.run(self.recover(&world, &machine, cut));
            let went_on = ran.map_err(|error| error.to_string()).flatten();
            world.power_failure();
            went_on.map_err(|why| format!("power cut at step {}: {why}", cut.step))?;
        }
        Ok(cuts.len())
    }

    async fn recover(&self, world: &SimWorld, machine: &Machine, cut: &CutAt) -> Result<(), String> {
        let (engine, _service) = serve(machine).await;
        let found = self.protocol.state(&engine).await;
        let last = cut.step + 1;
        for (item, (found, floor)) in found.iter().zip(&cut.floors).enumerate() {
            // A call that was cut may have been executed, or not.
            if !self.states[*floor..=last].iter().any(|state| state[item] == *found) {
                let found = String::from_utf8_lossy(found);
                let stable = String::from_utf8_lossy(&self.states[*floor][item]).into_owned();
                return Err(format!("item {item} is {found:.300}, the stable state {stable:.300}"));
            }
        }
        let mut client = client(self.protocol, world);
        client.memory = cut.memory.clone();
        // The client repeats what may be lost, and goes on.
        let first = cut.floors.iter().copied().min().unwrap_or(0).min(cut.step);
        let next = if cut.was_answered { cut.step } else { cut.step + 1 };
        for step in first..self.steps() {
            let call = self.protocol.call(step, &client.memory);
            let reply = client.exchange(&call, None, |_| {}).await;
            if !self.protocol.succeeded(step, &reply, step <= next) {
                return Err(format!("step {step}, afterwards: {reply:?}"));
            }
            self.protocol.remember(step, &reply, &mut client).await;
        }
        match self.protocol.state(&engine).await == self.states[self.steps()] {
            true => Ok(()),
            false => Err("the session ended in another state".to_string()),
        }
    }
}

fn client<'a>(protocol: &'a dyn Protocol, world: &SimWorld) -> Client<'a> {
    Client { protocol, world: world.clone(), stream: None, connections: 0, memory: Memory::new() }
}

/// A pool with a file system and a volume, exported.
pub fn create_pool(bug: Bug) -> Start {
    let world = SimWorld::new(SEED);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::Chaos);
    let machine = world.machine();
    let created = world.run(async {
        let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
        let mut options = CreateOptions::new("tank", vec![top]);
        options.arc_bytes = 16 << 20;
        let engine = Engine::create(&machine, &options).await.unwrap();
        let kind = Kind::Volume(VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: 4096 });
        engine.create_dataset(NewDataset { name: "tank/vol".into(), kind, properties: Vec::new() }).await.unwrap();
        if bug == Bug::AnswersEarly {
            let disabled = vec![("sync".to_owned(), Setting::Set(Value::Number(SYNC_DISABLED)))];
            engine.properties().set_properties("tank".into(), disabled).await.unwrap();
        }
        engine.export().await.unwrap();
    });
    created.unwrap();
    let start = world.record();
    world.power_failure();
    start
}

/// Imports the pool and serves it.
pub async fn serve(machine: &Machine) -> (Arc<Engine>, (Service, watch::Sender<bool>)) {
    let rq = &Request::internal("test");
    let mut open = OpenOptions::new(vec!["/sim".into()], "tank");
    open.arc_bytes = 16 << 20;
    let engine = Engine::import(machine, &ImportOptions::new(open)).await.unwrap();
    let exports = Arc::new(Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap());
    let identity = IdentityMap { squash: Squash::None, ..IdentityMap::default() };
    let sharing = Sharing::Everything(ExportRules { identity, ..ExportRules::default() });
    let options = ServiceOptions { sharing, ..ServiceOptions::default() };
    let service = Service::start(machine, &exports, &options).await.unwrap();
    let iscsi = Arc::new(weir_iscsi::Server::new(exports.volumes.clone(), Arc::new(NoReservations)));
    iscsi.set_targets([0, 1].map(iscsi_target).into());
    let (stop, stopped) = watch::channel(false);
    let listener = machine.net.listen(SocketAddr::new(HOST, 3260)).await.unwrap();
    drop(machine.tasks.spawn(weir_iscsi::serve(listener, iscsi, machine.clone(), stopped)));
    (engine, (service, stop))
}

/// Targets with the volume: without write cache, and with one.
pub const ISCSI_TARGETS: [&str; 2] = ["iqn.2000-01.org.example:stable", "iqn.2000-01.org.example:cached"];

fn iscsi_target(number: usize) -> TargetConfig {
    TargetConfig {
        iqn: ISCSI_TARGETS[number].into(),
        luns: vec![LunConfig { lun: 0, export: "tank/vol".into(), write_cache: number == 1, read_only: false }],
        initiators: Vec::new(),
        hosts: Hosts::loopback(),
        chap: None,
    }
}

/// Reads this many bytes; `None` if the connection ends before.
pub async fn read(stream: &mut SimStream, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await.ok().map(|_| bytes)
}

/// A boxed future of a value.
pub fn done<'a, T: 'a>(value: T) -> LocalBoxFuture<'a, T> {
    std::future::ready(value).boxed_local()
}
