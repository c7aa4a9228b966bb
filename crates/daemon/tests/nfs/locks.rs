//! The lock manager with hand-made calls; its calls to clients go over the simulated network.

use crate::harness::*;
use bytes::Bytes;
use futures_util::FutureExt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_daemon::fuzz::lock_server;
use weir_machine::{Machine, MemoryStateFile};
use weir_nfs::wire::{Decoder, Encoder};
use weir_nfs::{Peer, Server};
use weir_sim::SimWorld;

pub const NLM: u32 = 100_021;
pub const NSM: u32 = 100_024;
const GRANTED: u32 = 0;
const DENIED: u32 = 1;
const BLOCKED: u32 = 3;
const GRACE: u32 = 4;
const DEADLOCK: u32 = 5;
const FAILED: u32 = 9;
const ALICE: &str = "10.0.0.7";
const BOB: &str = "10.0.0.8";

/// A lock as a client asks for it.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub host: &'a str,
    pub user: u32,
    pub process: u32,
    pub file: &'a [u8],
    pub offset: u64,
    pub len: u64,
    pub exclusive: bool,
    pub blocks: bool,
    pub reclaims: bool,
}

impl<'a> Ask<'a> {
    pub fn new(host: &'a str, process: u32, file: &'a [u8], (offset, len): (u64, u64)) -> Self {
        Ask { host, user: 0, process, file, offset, len, exclusive: true, blocks: false, reclaims: false }
    }

    fn put(&self, out: &mut Encoder) {
        out.opaque(self.host.as_bytes()).opaque(self.file).opaque(b"owner").u32(self.process);
        out.u64(self.offset).u64(self.len);
    }

    fn arguments(&self, procedure: u32) -> Encoder {
        let mut out = Encoder::default();
        out.opaque(b"cookie");
        match procedure {
            1 | 6 => drop(out.bool(self.exclusive)),
            2 | 3 | 7 | 8 | 22 => drop(out.bool(self.blocks).bool(self.exclusive)),
            _ => {}
        }
        self.put(&mut out);
        if matches!(procedure, 2 | 7 | 22) {
            out.bool(self.reclaims).u32(1);
        }
        out
    }

    /// Calls a procedure, and returns the results after the cookie.
    pub fn call(&self, server: &Server, procedure: u32) -> Vec<u8> {
        let message = Bytes::from(call(NLM, 4, procedure, self.user, &self.arguments(procedure)));
        let reply =
            server.answer(&Peer::new(self.host.parse().unwrap()), &message).now_or_never().unwrap().unwrap().body();
        assert_eq!(accept_status(&reply), 0, "accepted");
        let mut input = Decoder::new(&reply[24..]);
        if !(6..=15).contains(&procedure) {
            assert_eq!(input.opaque(9), Some(&b"cookie"[..]));
        }
        input.rest().to_vec()
    }

    pub fn status(&self, server: &Server, procedure: u32) -> u32 {
        Decoder::new(&self.call(server, procedure)).u32().unwrap()
    }

    pub fn lock(&self, server: &Server) -> u32 {
        self.status(server, 2)
    }

    pub fn unlock(&self, server: &Server) -> u32 {
        self.status(server, 4)
    }
}

fn served(world: &SimWorld, record: &MemoryStateFile) -> (Arc<Server>, Vec<u8>, Machine) {
    let machine = world.machine();
    let (server, _) = lock_server(&machine, record);
    let root = mount(&server, "/p").unwrap();
    let file = lookup(&server, &root, b"file").unwrap();
    (Arc::new(server), file, machine)
}

#[test]
fn locks_of_clients_exclude_each_other() {
    let world = SimWorld::new(1);
    let (server, file, _machine) = served(&world, &MemoryStateFile::default());
    let done = world.run(async {
        let alice = Ask::new(ALICE, 1, &file, (10, 10));
        let bob = Ask::new(BOB, 1, &file, (15, 0));
        assert_eq!((alice.lock(&server), bob.lock(&server)), (GRANTED, DENIED));
        let mut holder = Encoder::default();
        holder.u32(DENIED).bool(true).u32(1).opaque(b"owner").u64(10).u64(10);
        assert_eq!(bob.call(&server, 1), holder.bytes, "TEST tells who is in the way");
        assert_eq!(alice.status(&server, 1), GRANTED, "an owner is not in its own way");
        assert_eq!(Ask { offset: 15, ..alice }.unlock(&server), GRANTED);
        assert_eq!((bob.lock(&server), bob.status(&server, 22)), (GRANTED, GRANTED));
        assert_eq!(Ask { process: 2, ..alice }.lock(&server), DENIED, "another process of the same host");
        // FREE_ALL, and NOTIFY of a restarted client: from its own address only.
        let gone = |peer: &str, program, version, procedure| {
            let mut arguments = Encoder::default();
            arguments.opaque(ALICE.as_bytes()).u32(3);
            let message = Bytes::from(call(program, version, procedure, 0, &arguments));
            server.answer(&Peer::new(peer.parse().unwrap()), &message).now_or_never().unwrap().unwrap();
        };
        gone(BOB, NLM, 4, 23);
        assert_eq!(bob.status(&server, 1), GRANTED, "the locks of the caller are released, whatever name it says");
        gone(BOB, NSM, 1, 6);
        assert_eq!(Ask { len: 1, ..bob }.lock(&server), GRANTED);
        gone(BOB, NSM, 1, 6);
        assert_eq!(Ask { offset: 10, len: 5, ..bob }.lock(&server), DENIED, "Alice has not restarted");
        gone(ALICE, NSM, 1, 6);
        assert_eq!(Ask { offset: 10, len: 5, ..bob }.lock(&server), GRANTED);
    });
    done.unwrap();
}

#[test]
fn handles_permissions_and_arguments_are_checked() {
    let world = SimWorld::new(1);
    let (server, file, _machine) = served(&world, &MemoryStateFile::default());
    let root = mount(&server, "/p").unwrap();
    let secret = lookup(&server, &root, b"secret").unwrap();
    let old = mount(&server, "/p/c/.zfs/snapshot/s").unwrap();
    let old = lookup(&server, &old, b"old").unwrap();
    let ask = |file| Ask::new(ALICE, 1, file, (0, 0));
    assert_eq!(ask(b"no handle").lock(&server), 7, "a stale handle");
    assert_eq!(Ask { user: 1000, ..ask(&secret) }.lock(&server), FAILED, "no permission");
    let reader = Ask { user: 1000, exclusive: false, ..ask(&file) };
    assert_eq!((reader.lock(&server), Ask { exclusive: true, ..reader }.lock(&server)), (GRANTED, FAILED));
    assert_eq!(reader.unlock(&server), GRANTED);
    assert_eq!(ask(&root).lock(&server), FAILED, "a directory");
    assert_eq!(ask(&old).lock(&server), 6, "exclusive in a snapshot");
    assert_eq!(Ask { exclusive: false, ..ask(&old) }.lock(&server), GRANTED);
    assert_eq!(Ask { reclaims: true, ..ask(&file) }.lock(&server), GRACE, "nothing to reclaim now");
    assert_eq!(accept_status(&answer(&server, &call(NLM, 4, 2, 0, &Encoder::default()))), 4);
    assert_eq!(accept_status(&answer(&server, &call(NLM, 3, 0, 0, &Encoder::default()))), 2);
    assert_eq!(accept_status(&answer(&server, &call(NLM, 4, 16, 0, &Encoder::default()))), 3);
    assert_eq!(accept_status(&answer(&server, &call(NSM, 1, 0, 0, &Encoder::default()))), 0);
}

/// A client host: its rpcbind and its lock manager or status monitor, which record the calls that they get.
async fn client_host(machine: &Machine, host: &str, answer: Vec<u8>) -> Arc<Mutex<Vec<(u32, u32, Vec<u8>)>>> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let ip: IpAddr = host.parse().unwrap();
    for port in [111, 900] {
        let listener = machine.net.listen(SocketAddr::new(ip, port)).await.unwrap();
        let answer = answer.clone();
        let calls = calls.clone();
        machine.tasks.start(async move {
            while let Ok(mut accepted) = listener.accept().await {
                let len = accepted.reader.read_u32().await.unwrap() & !(1 << 31);
                let mut message = vec![0; len as usize];
                accepted.reader.read_exact(&mut message).await.unwrap();
                let weir_nfs::rpc::Message::Call(call) = weir_nfs::rpc::read(&message) else { panic!("a call") };
                let mut reply = weir_nfs::rpc::accepted(call.xid, weir_nfs::rpc::Accept::Success);
                if port == 111 {
                    reply.u32(900);
                } else {
                    calls.lock().unwrap().push((call.program, call.procedure, call.arguments.to_vec()));
                    reply.bytes.extend_from_slice(&answer);
                }
                accepted.writer.write_u32(1 << 31 | reply.bytes.len() as u32).await.unwrap();
                accepted.writer.write_all(&reply.bytes).await.unwrap();
                accepted.writer.shutdown().await.unwrap();
            }
        });
    }
    calls
}

/// Waits until a condition holds, at most a minute of the world's time.
async fn until(machine: &Machine, what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        machine.clock.sleep(Duration::from_millis(10)).await;
    }
    panic!("not within a minute: {what}");
}

fn result(status: u32) -> Vec<u8> {
    let mut out = Encoder::default();
    out.opaque(b"").u32(status);
    out.bytes
}

#[test]
fn a_client_that_waits_is_called_when_it_holds_the_lock() {
    let world = SimWorld::new(2);
    let (server, file, machine) = served(&world, &MemoryStateFile::default());
    let done = world.run(async move {
        let calls = client_host(&machine, BOB, result(GRANTED)).await;
        let alice = Ask::new(ALICE, 1, &file, (0, 0));
        let bob = Ask { blocks: true, ..Ask::new(BOB, 9, &file, (5, 5)) };
        assert_eq!((alice.lock(&server), bob.lock(&server), bob.lock(&server)), (GRANTED, BLOCKED, BLOCKED));
        let back = Ask { blocks: true, ..Ask::new(ALICE, 1, &file, (5, 5)) };
        assert_eq!(back.lock(&server), GRANTED, "it holds the bytes already");
        assert_eq!(alice.unlock(&server), GRANTED);
        until(&machine, "the client is called", || !calls.lock().unwrap().is_empty()).await;
        let (program, procedure, arguments) = calls.lock().unwrap().remove(0);
        let mut wanted = Encoder::default();
        wanted.bool(true).opaque(b"weir.example").opaque(&file).opaque(b"owner").u32(9).u64(5).u64(5);
        assert_eq!((program, procedure, &arguments[12..]), (NLM, 5, &wanted.bytes[..]), "GRANTED, after the cookie");
        assert_eq!(alice.lock(&server), DENIED);
        machine.clock.sleep(Duration::from_secs(100)).await;
        assert!(calls.lock().unwrap().is_empty(), "it is called once");
        assert_eq!(alice.lock(&server), DENIED, "it keeps the lock");
    });
    done.unwrap();
}

#[test]
fn a_lock_that_its_client_does_not_take_is_released() {
    // It refuses; it cannot be reached; it cancels; it asks again and so knows.
    for case in 0..4 {
        let world = SimWorld::new(3);
        let (server, file, machine) = served(&world, &MemoryStateFile::default());
        let done = world.run(async move {
            if case == 0 {
                client_host(&machine, BOB, result(DENIED)).await;
            }
            let alice = Ask::new(ALICE, 1, &file, (0, 0));
            let bob = Ask { blocks: true, ..Ask::new(BOB, 9, &file, (0, 0)) };
            assert_eq!((alice.lock(&server), bob.lock(&server), alice.unlock(&server)), (GRANTED, BLOCKED, GRANTED));
            match case {
                2 => assert_eq!(bob.status(&server, 3), GRANTED),
                3 => assert_eq!(bob.lock(&server), GRANTED),
                _ => {}
            }
            machine.clock.sleep(Duration::from_secs(100)).await;
            assert_eq!(alice.lock(&server), if case == 3 { DENIED } else { GRANTED }, "case {case}");
        });
        done.unwrap();
    }
}

#[test]
fn messages_are_answered_by_calls() {
    let world = SimWorld::new(4);
    let (server, file, machine) = served(&world, &MemoryStateFile::default());
    let done = world.run(async move {
        let calls = client_host(&machine, ALICE, Vec::new()).await;
        let alice = Ask { blocks: true, ..Ask::new(ALICE, 1, &file, (0, 9)) };
        let bob = Ask::new(BOB, 1, &file, (0, 9));
        assert_eq!(bob.lock(&server), GRANTED);
        assert!(alice.call(&server, 7).is_empty());
        until(&machine, "LOCK_RES", || calls.lock().unwrap().len() == 1).await;
        let mut blocked = Encoder::default();
        blocked.opaque(b"cookie").u32(BLOCKED);
        assert_eq!(calls.lock().unwrap().remove(0), (NLM, 12, blocked.bytes));
        assert_eq!(bob.unlock(&server), GRANTED);
        until(&machine, "GRANTED_MSG", || calls.lock().unwrap().len() == 1).await;
        let (_, procedure, arguments) = calls.lock().unwrap().remove(0);
        let cookie = Decoder::new(&arguments).opaque(8).unwrap().to_vec();
        assert_eq!(procedure, 10);
        // Another host cannot answer for the client; the client refuses.
        let mut denied = Encoder::default();
        denied.opaque(&cookie).u32(DENIED);
        for (host, holds) in [(BOB, true), (ALICE, false)] {
            let message = Bytes::from(call(NLM, 4, 15, 0, &denied));
            server.answer(&Peer::new(host.parse().unwrap()), &message).now_or_never().unwrap().unwrap();
            assert_eq!(bob.status(&server, 1), if holds { DENIED } else { GRANTED }, "{host}");
        }
        assert!(alice.call(&server, 6).is_empty());
        until(&machine, "TEST_RES", || calls.lock().unwrap().iter().any(|(_, number, _)| *number == 11)).await;
    });
    done.unwrap();
}

#[test]
fn a_restart_is_announced_and_clients_reclaim_in_the_grace_period() {
    let world = SimWorld::new(5);
    let record = MemoryStateFile::default();
    let (server, file, machine) = served(&world, &record);
    let done = world.run(async move {
        let calls = client_host(&machine, ALICE, Vec::new()).await;
        let alice = Ask::new(ALICE, 1, &file, (0, 9));
        let bob = Ask::new(BOB, 1, &file, (0, 9));
        assert_eq!(bob.status(&server, 22), GRANTED, "NM_LOCK: not monitored");
        assert_eq!((bob.unlock(&server), alice.lock(&server)), (GRANTED, GRANTED));
        drop(server);
        let (server, _) = lock_server(&machine, &record);
        assert_eq!((bob.lock(&server), bob.status(&server, 1), bob.unlock(&server)), (GRACE, GRACE, GRACE));
        assert_eq!(Ask { reclaims: true, ..alice }.lock(&server), GRANTED);
        until(&machine, "NOTIFY by both names", || calls.lock().unwrap().len() == 2).await;
        let calls = std::mem::take(&mut *calls.lock().unwrap());
        let own = IpAddr::V4(Ipv4Addr::LOCALHOST).to_string();
        for ((program, procedure, arguments), name) in calls.iter().zip(["weir.example", &own]) {
            let mut wanted = Encoder::default();
            wanted.opaque(name.as_bytes()).u32(3);
            assert_eq!((*program, *procedure, arguments), (NSM, 6, &wanted.bytes));
        }
        machine.clock.sleep(Duration::from_secs(46)).await;
        assert_eq!((bob.lock(&server), Ask { reclaims: true, ..alice }.lock(&server)), (DENIED, GRACE));
        assert_eq!((alice.unlock(&server), bob.lock(&server)), (GRANTED, GRANTED));
    });
    done.unwrap();
    let (server, file, _machine) = served(&SimWorld::new(6), &MemoryStateFile::default());
    assert_eq!(Ask::new(BOB, 1, &file, (0, 9)).lock(&server), GRANTED, "no grace period without clients to reclaim");
}

#[test]
fn a_circle_of_waiting_clients_is_refused() {
    let world = SimWorld::new(7);
    let (server, file, _machine) = served(&world, &MemoryStateFile::default());
    let done = world.run(async {
        let ask = |host, at| Ask { blocks: true, ..Ask::new(host, 1, &file, (at, 1)) };
        assert_eq!((ask(ALICE, 0).lock(&server), ask(BOB, 1).lock(&server)), (GRANTED, GRANTED));
        assert_eq!((ask(ALICE, 1).lock(&server), ask(BOB, 0).lock(&server)), (BLOCKED, DEADLOCK));
    });
    done.unwrap();
}

#[test]
fn share_reservations_exclude_what_they_deny() {
    let world = SimWorld::new(8);
    let (server, file, _machine) = served(&world, &MemoryStateFile::default());
    let done = world.run(async {
        let share = |host: &str, procedure, deny, access| {
            let mut out = Encoder::default();
            out.opaque(b"c").opaque(host.as_bytes()).opaque(&file).opaque(b"o").u32(deny).u32(access).bool(false);
            let message = Bytes::from(call(NLM, 4, procedure, 0, &out));
            let reply =
                server.answer(&Peer::new(host.parse().unwrap()), &message).now_or_never().unwrap().unwrap().body();
            let mut input = Decoder::new(&reply[24..]);
            assert_eq!(input.opaque(9), Some(&b"c"[..]));
            let status = input.u32().unwrap();
            assert_eq!((input.u32(), input.rest().len()), (Some(0), 0), "a sequence number");
            status
        };
        assert_eq!((share(ALICE, 20, 2, 1), share(BOB, 20, 0, 2), share(BOB, 20, 0, 1)), (GRANTED, DENIED, GRANTED));
        assert_eq!((share(ALICE, 21, 2, 1), share(BOB, 20, 0, 3)), (GRANTED, GRANTED));
    });
    done.unwrap();
}
