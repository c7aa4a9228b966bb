//! A client of its own against the server with devices in memory: what other people's initiators do not try.
#![allow(clippy::disallowed_methods, reason = "tests bound real time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;

use client::Client;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use weir_front::Hosts;
use weir_front::memory::{MemoryDevice, MemoryExports};
use weir_iscsi::scsi::sense::{code, key};
use weir_iscsi::wire::bhs::{FLAG_FINAL, opcode};
use weir_iscsi::{ChapConfig, Credentials, LunConfig, ReservationStore, Secret, Server, TargetConfig, serve};
use weir_machine::Machine;

const TARGET: &str = "iqn.2000-01.org.example:t";

/// Reservations that outlive a server.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<u64, Vec<u8>>>>);

impl ReservationStore for Store {
    fn load(&self, device: u64) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        ready(Ok(self.0.lock().unwrap().get(&device).cloned().unwrap_or_default())).boxed()
    }

    fn store(&self, device: u64, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        self.0.lock().unwrap().insert(device, bytes);
        ready(Ok(())).boxed()
    }
}

/// A server with a writable device of 1 MiB as unit 0.
struct Running {
    server: Arc<Server>,
    device: Arc<MemoryDevice>,
    address: SocketAddr,
    machine: Machine,
    _stop: watch::Sender<bool>,
}

fn lun(lun: u16, export: &str, write_cache: bool) -> LunConfig {
    LunConfig { lun, export: export.into(), write_cache, read_only: false }
}

fn target(luns: Vec<LunConfig>) -> TargetConfig {
    TargetConfig { iqn: TARGET.into(), luns, initiators: Vec::new(), hosts: Hosts::loopback(), chap: None }
}

fn start(store: Store, write_cache: bool) -> Running {
    let mut exports = MemoryExports::default();
    let device = Arc::new(MemoryDevice::new(vec![0; 1 << 20]).with_writing(true).with_id(5));
    exports.0.insert("disk".into(), device.clone());
    exports.0.insert("other".into(), Arc::new(MemoryDevice::new(vec![9; 4096]).with_id(6)));
    let server = Arc::new(Server::new(Arc::new(exports), Arc::new(store)));
    server.set_targets(vec![target(vec![lun(0, "disk", write_cache)])]);
    let machine = weir_linux::Production::default().build().unwrap();
    let (stop, stopped) = watch::channel(false);
    let address = machine.block_on(async {
        let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let listener = machine.net.listen(loopback).await.unwrap();
        let address = listener.address();
        drop(machine.tasks.spawn(serve(listener, server.clone(), machine.clone(), stopped)));
        address
    });
    Running { server, device, address, machine, _stop: stop }
}

impl Running {
    /// A client that has logged in and taken its first unit attention.
    fn client(&self, name: &str) -> Client {
        let mut client = Client::login(self.address, name, TARGET, &[]).unwrap();
        assert_eq!(client.test_unit_ready().1, Some((key::UNIT_ATTENTION, code::POWER_ON)));
        client
    }
}

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

#[test]
fn without_a_write_cache_each_write_is_stable() {
    for write_cache in [false, true] {
        let running = start(Store::default(), write_cache);
        let mut client = running.client("a");
        assert_eq!(client.command(&WRITE, &[7; 512], 0).0, 0);
        assert_eq!(running.device.bytes()[..512], [7; 512]);
        assert_eq!(running.device.flushed()[0] == 7, !write_cache);
        assert_eq!(client.command(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).0, 0);
        assert_eq!(running.device.flushed()[..512], [7; 512]);
    }
}

#[test]
fn digests_protect_headers_and_data() {
    let running = start(Store::default(), true);
    let keys = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
    let mut client = Client::login(running.address, "a", TARGET, &keys).unwrap();
    client.test_unit_ready();
    assert_eq!(client.command(&WRITE, &[3; 512], 0).0, 0);
    let (status, _, data) = client.command(&READ, &[], 512);
    assert_eq!((status, data), (0, vec![3; 512]));
    client.breaks_data_digest = true;
    let rejected = client.try_command(&WRITE, &[4; 512], 0);
    assert!(rejected.is_none(), "rejected, and the connection closed");
    assert_eq!(running.device.bytes()[..512], [3; 512], "nothing was written");
}

#[test]
fn persistent_reservations_survive_a_restart() {
    let store = Store::default();
    let register = |key: u64, new: u64, persists: u8| {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&new.to_be_bytes());
        list[20] = persists;
        list
    };
    let out = |action: u8, kind: u8| [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    {
        let running = start(store.clone(), true);
        let mut client = running.client("a");
        assert_eq!(client.command(&out(0, 0), &register(0, 0xabc, 1), 0).0, 0);
        assert_eq!(client.command(&out(1, 1), &register(0xabc, 0, 0), 0).0, 0, "write exclusive");
        assert_eq!(running.client("b").command(&WRITE, &[1; 512], 0).0, 0x18, "RESERVATION CONFLICT");
    }
    let running = start(store, true);
    let mut other = running.client("b");
    assert_eq!(other.command(&WRITE, &[1; 512], 0).0, 0x18);
    assert_eq!(other.command(&READ, &[], 512).0, 0);
    let mut client = running.client("a");
    assert_eq!(client.command(&WRITE, &[1; 512], 0).0, 0);
    let (_, _, reservation) = client.command(&[0x5e, 1, 0, 0, 0, 0, 0, 0, 24, 0], &[], 24);
    assert_eq!((reservation[14], reservation[15], reservation[21]), (0xa, 0xbc, 1));
    assert_eq!(client.command(&out(2, 1), &register(0xabc, 0, 0), 0).0, 0);
    assert_eq!(other.command(&WRITE, &[1; 512], 0).0, 0, "released");
}

#[test]
fn sessions_learn_of_changed_targets() {
    let running = start(Store::default(), true);
    let mut client = running.client("a");
    let both = vec![lun(0, "disk", true), lun(1, "other", true)];
    running.server.set_targets(vec![target(both)]);
    assert_eq!(client.test_unit_ready().1, Some((key::UNIT_ATTENTION, code::LUNS_CHANGED)));
    let (status, _, luns) = client.command(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    assert_eq!((status, luns[3]), (0, 16), "two units");
    running.server.set_targets(Vec::new());
    let message = client.unit().unwrap().0;
    assert_eq!((message.opcode(), message.0[36]), (opcode::ASYNC, 1), "logout requested");
    assert!(client.unit().is_none(), "the connection is closed");
    assert!(Client::login(running.address, "a", TARGET, &[]).is_err_and(|status| status == 0x0203));
}

/// A session that began without authentication does not outlive the demand for it.
#[test]
fn a_session_ends_when_its_target_demands_another_authentication() {
    let running = start(Store::default(), true);
    let mut client = running.client("a");
    let credentials = Credentials { user: "bob".into(), secret: Secret::new(b"a secret of bob".to_vec()) };
    let chap = Some(ChapConfig { initiator: credentials, mutual: None });
    running.server.set_targets(vec![TargetConfig { chap, ..target(vec![lun(0, "disk", true)]) }]);
    let message = client.unit().unwrap().0;
    assert_eq!((message.opcode(), message.0[36]), (opcode::ASYNC, 1), "logout requested");
    assert!(client.unit().is_none(), "the connection is closed");
    assert!(Client::login(running.address, "a", TARGET, &[]).is_err());
}

#[test]
fn a_second_login_of_the_same_port_ends_the_first_session() {
    let running = start(Store::default(), true);
    let mut first = running.client("a");
    let mut second = running.client("a");
    // The announcement may arrive before the end.
    let closed = std::iter::from_fn(|| first.unit()).all(|(bhs, _)| bhs.opcode() == opcode::ASYNC);
    assert!(closed, "only the announcement");
    assert_eq!(second.test_unit_ready().0, 0);
    assert_eq!(running.server.sessions(), 1);
}

#[test]
fn resets_end_reserves_and_tell_every_session() {
    let running = start(Store::default(), true);
    let mut one = running.client("a");
    let mut other = running.client("b");
    assert_eq!(one.command(&[0x16, 0, 0, 0, 0, 0], &[], 0).0, 0, "RESERVE");
    assert_eq!(other.test_unit_ready().0, 0x18);
    let reset = one.manage(5);
    assert_eq!(reset, 0);
    for client in [&mut one, &mut other] {
        assert_eq!(client.test_unit_ready().1, Some((key::UNIT_ATTENTION, code::BUS_DEVICE_RESET)));
        assert_eq!(client.test_unit_ready().0, 0);
    }
}

#[test]
fn hostile_clients_leave_a_good_one_alone() {
    let running = start(Store::default(), true);
    let mut good = running.client("good");
    let mut kept = Vec::new();
    for n in 0..60u8 {
        let mut stream = TcpStream::connect(running.address).unwrap();
        let garbage: Vec<u8> = (0..200u8).map(|byte| byte.wrapping_mul(n | 1)).collect();
        let len = match n % 3 {
            0 => 200, // garbage
            1 => 20,  // half a header
            _ => 0,   // nothing
        };
        // The server may have closed it already.
        let _ = stream.write_all(&garbage[..len]);
        kept.push(stream);
    }
    // Commands that announce data which never come.
    for n in 0..4 {
        let mut client = running.client(&format!("announcing-{n}"));
        for _ in 0..8 {
            let cdb = [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0];
            client.send_command(&cdb, &[], 1 << 20, FLAG_FINAL);
        }
        kept.push(client.into_stream());
    }
    for _ in 0..20 {
        assert_eq!(good.command(&WRITE, &[1; 512], 0).0, 0);
        assert_eq!(good.command(&READ, &[], 512).0, 0);
    }
    // Garbage is answered by a refused login or not at all, and the connection is closed.
    let mut first = kept.swap_remove(0);
    let mut rest = Vec::new();
    let _ = first.read_to_end(&mut rest);
    drop(kept);
    assert_eq!(good.command(&READ, &[], 512).0, 0);
    drop(running.machine);
}
