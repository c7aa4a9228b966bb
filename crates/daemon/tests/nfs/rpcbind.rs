//! Registration with a real rpcbind, in namespaces of its own: this program runs itself again in them. Skipped without root,
//! `unshare` or `rpcbind`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use weir_daemon::fuzz::lock_server;
use weir_linux::Production;
use weir_machine::net::Datagrams;
use weir_machine::{Machine, MemoryStateFile};
use weir_nfs::rpcbind::{RegisterError, Registration, Service};
use weir_nfs::{mount, nfs3, nlm, nsm, serve, serve_datagrams};

/// Set in the namespaces.
const INSIDE: &str = "WEIR_TEST_NAMESPACES";
const SOCKET: &str = "/run/rpcbind.sock";

/// Ends a process when it goes out of scope.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output of a program that must succeed.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program}: {text}");
    text
}

#[test]
fn services_are_registered_with_rpcbind() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let has =
        |program: &str| ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|dir| Path::new(dir).join(program).exists());
    if !rustix::process::geteuid().is_root() || !["rpcbind", "unshare", "rpcinfo"].iter().all(|program| has(program)) {
        return eprintln!("skipped: needs root, rpcbind, rpcinfo and unshare");
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "rpcbind::services_are_registered_with_rpcbind", "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if text.contains("Operation not permitted") {
        return eprintln!("skipped: no namespaces: {text}");
    }
    assert!(output.status.success(), "{text}");
}

/// The lines of `rpcinfo -p` as program, version, transport, port.
fn registered() -> Vec<(u32, u32, String, u16)> {
    let text = output("rpcinfo", &["-p", "127.0.0.1"]);
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program, version, transport, port, ..] = words[..] else { return None };
        Some((program.parse().ok()?, version.parse().ok()?, transport.to_owned(), port.parse().ok()?))
    };
    text.lines().filter_map(line).filter(|(program, ..)| *program != 100_000).collect()
}

fn start_rpcbind() -> Running {
    let running = Running(Command::new("rpcbind").args(["-f", "-w"]).spawn().unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !Command::new("rpcinfo").args(["-p", "127.0.0.1"]).output().unwrap().status.success() {
        assert!(std::time::Instant::now() < deadline, "rpcbind does not answer");
        std::thread::yield_now();
    }
    running
}

/// The lists of MOUNT, read by showmount(8) where it is installed.
fn showmount() {
    if Command::new("showmount").arg("--version").output().is_ok() {
        let text = output("showmount", &["-e", "127.0.0.1"]);
        assert!(text.contains("/p/c"), "{text}");
        output("showmount", &["-a", "127.0.0.1"]);
    }
}

fn inside() {
    output("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
    output("ip", &["link", "set", "lo", "up"]);
    let machine = Production::default().build().unwrap();
    let register = |machine: &Machine| machine.block_on(Registration::begin(machine, SOCKET.into()));
    assert!(matches!(register(&machine), Err(RegisterError::NoRpcbind { .. })), "no rpcbind runs");
    let rpcbind = start_rpcbind();
    let (server, _) = lock_server(&machine, &MemoryStateFile::default());
    let server = Arc::new(server);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let (tcp, udp) = machine.block_on(async {
        let listener = machine.net.listen(any).await.unwrap();
        let tcp = listener.address();
        let datagrams: Arc<dyn Datagrams> = machine.net.datagrams(tcp).await.unwrap();
        let udp = datagrams.address();
        machine.tasks.start(serve(listener, server.clone(), machine.clone(), stopped.clone()));
        machine.tasks.start(serve_datagrams(datagrams, server, machine.clone(), stopped));
        (tcp, udp)
    });
    let service = |name, program, version, udp| Service { name, program, version, tcp, udp };
    let services = [
        service("NFS", nfs3::PROGRAM, 3, None),
        service("MOUNT", mount::PROGRAM, 3, None),
        service("MOUNT", mount::PROGRAM, 1, None),
        service("locks", nlm::PROGRAM, 4, Some(udp)),
        service("monitor", nsm::PROGRAM, 1, Some(udp)),
    ];
    // Over the socket in the file system, then over loopback from a reserved port.
    for is_local in [true, false] {
        let socket = if is_local { SOCKET } else { "/run/no.sock" };
        let mut registration = machine.block_on(Registration::begin(&machine, socket.into())).unwrap();
        for service in services {
            machine.block_on(registration.add(service)).unwrap();
        }
        let port = tcp.port();
        let tcp_of = |program, version| (program, version, "tcp".to_owned(), port);
        let udp_of = |program, version| (program, version, "udp".to_owned(), port);
        let mut found = registered();
        found.sort();
        let wanted = [
            tcp_of(100_003, 3),
            tcp_of(100_005, 1),
            tcp_of(100_005, 3),
            tcp_of(100_021, 4),
            udp_of(100_021, 4),
            tcp_of(100_024, 1),
            udp_of(100_024, 1),
        ];
        assert_eq!(found, wanted);
        for (flag, program, version) in [
            ("-t", "100003", "3"),
            ("-t", "100005", "3"),
            ("-t", "100021", "4"),
            ("-u", "100021", "4"),
            ("-u", "100024", "1"),
        ] {
            let text = output("rpcinfo", &[flag, "127.0.0.1", program, version]);
            assert!(text.contains("ready and waiting"), "{text}");
        }
        showmount();
        // A living server keeps its registration; that of a dead one is replaced.
        let other = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port - 1);
        let mut second = machine.block_on(Registration::begin(&machine, socket.into())).unwrap();
        let taken = machine.block_on(second.add(Service { tcp: other, ..services[0] }));
        assert!(matches!(taken, Err(RegisterError::Taken { port: of, .. }) if of == port), "{taken:?}");
        machine.block_on(registration.end());
        assert_eq!(registered(), []);
        machine.block_on(second.add(Service { tcp: other, ..services[0] })).unwrap();
        machine.block_on(registration.add(services[0])).unwrap();
        assert_eq!(registered(), [tcp_of(100_003, 3)], "no server answered at the other port");
        machine.block_on(registration.end());
        assert_eq!(registered(), []);
    }
    stop.send(true).unwrap();
    drop(rpcbind);
}
