//! Hostile clients in the simulator: idle ones, ones that stop in the middle of a message, ones that do not read. A good
//! client is served all the same, from another host at once and from the same host after a few seconds.
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use weir_front::{Connection, FrontEnd, HostBudget, Limits};
use weir_machine::{Clock, Machine};
use weir_sim::{SimStream, SimWorld};

/// The server of the test: a message is its length in four bytes and as many bytes; the answer is the same bytes.
const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 2049);
const EVIL: [u8; 4] = [10, 0, 0, 66];
const GOOD: [u8; 4] = [10, 0, 0, 7];
const LIMITS: Limits = Limits::new(64);
/// A quarter of the budget is one host's: four messages of the largest size.
const BUDGET_BYTES: usize = 16 << 20;
const MESSAGE_BYTES: usize = 1 << 20;

fn address((ip, port): ([u8; 4], u16)) -> SocketAddr {
    SocketAddr::new(IpAddr::from(ip), port)
}

/// First byte of messages that the server answers after [`SLOW_ANSWER`].
const SLOW: u8 = 9;
/// Longer than a client may stall.
const SLOW_ANSWER: Duration = Duration::from_secs(12);

async fn echo(connection: Connection, budget: Arc<HostBudget>, clock: Clock) -> io::Result<()> {
    let Connection { mut reader, mut writer, handle } = connection;
    loop {
        let Ok(len) = reader.read_u32().await else { return Ok(()) };
        handle.set_in_message(true);
        let _memory = handle.acquire(&budget, len as usize).await;
        let mut message = vec![0; len as usize];
        reader.read_exact(&mut message).await?;
        handle.set_in_message(false);
        let call = handle.begin_call();
        if message.first() == Some(&SLOW) {
            clock.sleep(SLOW_ANSWER).await;
        }
        drop(call);
        writer.write_all(&message).await?;
    }
}

/// Runs `clients` against a server, and returns the number of connections that are left.
fn with_server<F>(seed: u64, clients: impl FnOnce(SimWorld, Machine) -> F) -> usize
where
    F: Future<Output = ()>,
{
    let world = SimWorld::new(seed);
    let machine = world.machine();
    let budget = Arc::new(HostBudget::new(BUDGET_BYTES));
    let front = FrontEnd::new(machine.clock.clone(), machine.tasks.clone(), LIMITS, vec![budget.clone()]);
    let (stop, stopped) = watch::channel(false);
    let running = world.clone();
    let done = world.run(async move {
        let listener = machine.net.listen(address(SERVER)).await.unwrap();
        let clock = machine.clock.clone();
        let session = move |connection| echo(connection, budget.clone(), clock.clone());
        let serving = machine.tasks.spawn(weir_front::serve(front.clone(), listener, stopped, session));
        clients(running, machine.clone()).await;
        let left = front.len();
        stop.send(true).unwrap();
        serving.await.unwrap();
        left
    });
    done.unwrap()
}

fn connect(world: &SimWorld, from: [u8; 4], port: u16) -> SimStream {
    world.net().connect(address((from, port)), address(SERVER)).unwrap()
}

/// One call of a good client, which reconnects if its connection is closed. Returns the time that it took.
async fn call(world: &SimWorld, machine: &Machine, from: [u8; 4], len: usize) -> Duration {
    let begun = machine.clock.now();
    let message = vec![7; len];
    for port in 1.. {
        let mut stream = connect(world, from, port);
        if let Ok(answer) = exchange(&mut stream, &message).await {
            assert_eq!(answer.len(), len);
            assert!(answer == message);
            break;
        }
    }
    machine.clock.now().since(begun)
}

#[test]
fn b2_idle_connections_keep_no_client_out() {
    for seed in 1..20 {
        let left = with_server(seed, async |world, machine| {
            let alone = call(&world, &machine, GOOD, 4096).await;
            let idle: Vec<_> = (0..512).map(|port| connect(&world, EVIL, port)).collect();
            machine.clock.sleep(Duration::from_millis(1)).await;
            assert!(call(&world, &machine, GOOD, 4096).await <= alone * 2, "seed {seed}: another host");
            assert!(call(&world, &machine, EVIL, 4096).await <= alone * 2, "seed {seed}: the same host");
            drop(idle);
        });
        assert!(left <= LIMITS.connections, "seed {seed}: {left} connections");
    }
}

#[test]
fn b2_clients_that_stop_in_a_message_keep_no_client_out() {
    for seed in 1..20 {
        with_server(seed, async |world, machine| {
            let alone = call(&world, &machine, GOOD, MESSAGE_BYTES).await;
            let mut half = Vec::new();
            for port in 0..32 {
                let mut stream = connect(&world, EVIL, port);
                stream.write_u32(MESSAGE_BYTES as u32).await.unwrap();
                stream.write_all(&[7; 9000]).await.unwrap();
                half.push(stream);
            }
            machine.clock.sleep(Duration::from_millis(1)).await;
            assert!(call(&world, &machine, GOOD, MESSAGE_BYTES).await <= alone * 2, "seed {seed}: another host");
            let took = call(&world, &machine, EVIL, MESSAGE_BYTES).await;
            assert!(took <= Duration::from_secs(30), "seed {seed}: the same host waited {took:?}");
            drop(half);
        });
    }
}

#[test]
fn b2_clients_that_do_not_read_keep_no_client_out() {
    for seed in 1..20 {
        with_server(seed, async |world, machine| {
            let alone = call(&world, &machine, GOOD, MESSAGE_BYTES).await;
            for port in 0..8 {
                let mut stream = connect(&world, EVIL, port);
                drop(machine.tasks.spawn(async move {
                    // The server closes the connection when the answer is not read.
                    let _ = stream.write_u32(MESSAGE_BYTES as u32).await;
                    let _ = stream.write_all(&vec![7; MESSAGE_BYTES]).await;
                    std::future::pending::<()>().await;
                    drop(stream);
                }));
            }
            machine.clock.sleep(Duration::from_millis(1)).await;
            assert!(call(&world, &machine, GOOD, MESSAGE_BYTES).await <= alone * 2, "seed {seed}: another host");
            let took = call(&world, &machine, EVIL, MESSAGE_BYTES).await;
            assert!(took <= Duration::from_secs(30), "seed {seed}: the same host waited {took:?}");
        });
    }
}

/// Sends a message, and reads its answer.
async fn exchange(stream: &mut SimStream, message: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_u32(message.len() as u32).await?;
    let mut answer = vec![0; message.len()];
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (sent, read) = futures_util::future::join(writer.write_all(message), reader.read_exact(&mut answer)).await;
    sent?;
    read?;
    Ok(answer)
}

#[test]
fn a_client_that_waits_for_memory_of_a_slow_server_keeps_its_connection() {
    for seed in 1..20 {
        with_server(seed, async |world, machine| {
            let message = Arc::new(vec![SLOW; MESSAGE_BYTES]);
            // Twice as many calls as their host's share of the memory.
            let calls = (0..8).map(|port| {
                let (message, mut stream) = (message.clone(), connect(&world, GOOD, port));
                machine
                    .tasks
                    .spawn(async move { exchange(&mut stream, &message).await.map(|answer| answer == *message) })
            });
            for call in calls.collect::<Vec<_>>() {
                assert!(call.await.unwrap().unwrap(), "seed {seed}");
            }
        });
    }
}

#[test]
fn idle_connections_end_and_busy_ones_stay() {
    let left = with_server(3, async |world, machine| {
        let idle = connect(&world, GOOD, 1);
        let mut busy = connect(&world, GOOD, 2);
        for _ in 0..10 {
            machine.clock.sleep(LIMITS.idle / 4).await;
            busy.write_all(&[0, 0, 0, 1, 9]).await.unwrap();
            assert_eq!(busy.read_u8().await.unwrap(), 9);
        }
        drop(idle);
    });
    assert_eq!(left, 1);
}
