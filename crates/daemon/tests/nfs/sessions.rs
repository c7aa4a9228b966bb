//! NFS sessions over the simulated network: connections are cut at every point of a call, the client reconnects from the
//! same port and sends the call again, as NFS clients do. No call is executed twice with another outcome.

use crate::harness::*;
use crate::writing::{ALICE, open_server, sattr};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use weir_machine::Clock;
use weir_sim::{Rng, SimStream, SimWorld};

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 2049);
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)), 800);
const STEPS: usize = 40;

/// Point at which a connection is cut.
#[derive(Clone, Copy, Debug)]
enum CutPoint {
    /// In the middle of the call.
    InCall,
    /// When the call is sent, at once.
    AfterCall,
    /// When the server has had time to answer.
    BeforeReply,
    /// In the middle of the reply.
    InReply,
}

/// A client that sends each call until it has the reply.
struct Client {
    world: SimWorld,
    clock: Clock,
    rng: Rng,
    stream: Option<SimStream>,
    cuts: usize,
}

impl Client {
    async fn reply_to(&mut self, message: &[u8]) -> Vec<u8> {
        let framed = [&(1 << 31 | message.len() as u32).to_be_bytes()[..], message].concat();
        loop {
            let mut stream = self.stream.take().unwrap_or_else(|| self.world.net().connect(CLIENT, SERVER).unwrap());
            let cut = match self.rng.below(8) {
                0 => Some(CutPoint::InCall),
                1 => Some(CutPoint::AfterCall),
                2 => Some(CutPoint::BeforeReply),
                3 => Some(CutPoint::InReply),
                _ => None,
            };
            if let Ok(Some(reply)) = self.exchange(&mut stream, &framed, cut).await {
                self.stream = Some(stream);
                return reply;
            }
            // The connection is cut: the client waits a little, or not at all, before it connects again.
            self.cuts += 1;
            drop(stream);
            if self.rng.below(2) == 0 {
                self.clock.sleep(Duration::from_millis(self.rng.below(50))).await;
            }
        }
    }

    /// Sends a call and reads its reply; `None` if the caller has to cut the connection.
    async fn exchange(
        &mut self,
        stream: &mut SimStream,
        framed: &[u8],
        cut: Option<CutPoint>,
    ) -> io::Result<Option<Vec<u8>>> {
        if let Some(CutPoint::InCall) = cut {
            let part = self.rng.below(framed.len() as u64) as usize;
            stream.write_all(&framed[..part]).await?;
            return Ok(None);
        }
        stream.write_all(framed).await?;
        match cut {
            Some(CutPoint::AfterCall) => return Ok(None),
            Some(CutPoint::BeforeReply) => {
                self.clock.sleep(Duration::from_millis(10)).await;
                return Ok(None);
            }
            Some(CutPoint::InReply) => {
                stream.read_exact(&mut [0; 9]).await?;
                return Ok(None);
            }
            _ => {}
        }
        let mark = stream.read_u32().await? & !(1 << 31);
        let mut reply = vec![0; mark as usize];
        stream.read_exact(&mut reply).await?;
        assert_eq!(reply[..4], framed[4..8], "the reply is that of the call");
        Ok(Some(reply))
    }

    /// Status of a call that changes names.
    async fn status(&mut self, message: &[u8]) -> u32 {
        let reply = self.reply_to(message).await;
        assert_eq!(accept_status(&reply), 0);
        u32::from_be_bytes(reply[24..28].try_into().unwrap())
    }
}

/// CREATE with mode GUARDED, which fails if the name exists.
fn create(root: &[u8], name: &str) -> Vec<u8> {
    let mut arguments = args(root);
    arguments.opaque(name.as_bytes()).u32(1);
    sattr(&mut arguments, Some(0o644), None);
    call(NFS, 3, 8, ALICE, &arguments)
}

fn remove(root: &[u8], name: &str) -> Vec<u8> {
    call(NFS, 3, 12, ALICE, args(root).opaque(name.as_bytes()))
}

fn rename(root: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut arguments = args(root);
    arguments.opaque(from.as_bytes()).opaque(root).opaque(to.as_bytes());
    call(NFS, 3, 14, ALICE, &arguments)
}

#[test]
fn no_call_is_executed_twice_with_another_outcome() {
    let mut cuts = 0;
    for seed in 1..60 {
        let world = SimWorld::new(seed);
        let machine = world.machine();
        let (server, root) = open_server();
        let server = Arc::new(server.with_clock(&machine.clock));
        let (stop, stopped) = watch::channel(false);
        let judge = server.clone();
        let client =
            Client { clock: machine.clock.clone(), rng: Rng::new(seed), world: world.clone(), stream: None, cuts: 0 };
        let done = world.run(async move {
            let listener = machine.net.listen(SERVER).await.unwrap();
            let serving = weir_nfs::serve(listener, server, machine.clone(), stopped);
            let serving = machine.tasks.spawn(serving);
            let mut client = client;
            for n in 0..STEPS {
                // Each change succeeds the first time, and would fail if it were executed again.
                let old = format!("a{n}");
                let new = format!("b{n}");
                assert_eq!(client.status(&create(&root, &old)).await, 0, "seed {seed}: create {old}");
                assert_eq!(client.status(&rename(&root, &old, &new)).await, 0, "seed {seed}: rename {old}");
                if n % 2 == 0 {
                    assert_eq!(client.status(&remove(&root, &new)).await, 0, "seed {seed}: remove {new}");
                }
                assert_eq!(lookup(&judge, &root, old.as_bytes()), Err(2), "seed {seed}: {old}");
                assert_eq!(lookup(&judge, &root, new.as_bytes()).is_ok(), n % 2 != 0, "seed {seed}: {new}");
            }
            drop(client.stream.take());
            stop.send(true).unwrap();
            serving.await.unwrap();
            client.cuts
        });
        cuts += done.unwrap();
    }
    assert!(cuts > 1000, "{cuts} connections were cut");
}
