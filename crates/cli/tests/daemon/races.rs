//! Many commands at the same time: waits that leave the turn to others, and commands that change what others destroy.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use weir_daemon::admin::{Caller, Frame, HEADER_BYTES};

/// Reads a frame of the administration socket.
pub fn read_frame(from: &mut UnixStream) -> Frame {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).unwrap();
    let mut contents = vec![0; Frame::length(header).unwrap()];
    from.read_exact(&mut contents).unwrap();
    Frame::decode(header[0], &contents).unwrap()
}

/// Sends a command line to the daemon.
pub fn call(site: &Site, program: &str, line: &str) -> UnixStream {
    let mut socket = UnixStream::connect(site.path("run/daemon.sock")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let words = line.split_whitespace().map(Into::into).collect();
    let caller = Caller { program: program.into(), words, folder: site.dir.path().into(), ..Caller::default() };
    socket.write_all(&Frame::Call(caller).encode()).unwrap();
    socket
}

#[test]
fn commands_that_wait_leave_the_turn_to_others_and_are_bounded() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    let wait = || {
        let mut socket = call(&site, "zpool", "status one 1000");
        while !matches!(read_frame(&mut socket), Frame::Out(text) if text.ends_with(b"known data errors\n")) {}
        socket
    };
    let mut waiting: Vec<UnixStream> = (0..70).map(|_| wait()).collect();
    // They are more than may run at the same time; others have their turn.
    let mut list = site.command("zpool list -H -o name").stdout(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while list.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            list.kill().unwrap();
            panic!("no turn within 20 s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    waiting.extend((70..256).map(|_| wait()));
    site.ok("zfs create one/a");
    let mut refused = wait();
    let Frame::Err(why) = read_frame(&mut refused) else { panic!("a wait beyond the bound") };
    assert!(text(&why).starts_with("256 commands wait already"), "{}", text(&why));
    assert_eq!(read_frame(&mut refused), Frame::End(1));
    assert!(site.fails("zpool iostat one 1000").contains("256 commands wait already"));
    drop(waiting);
    let ended = || site.command("zpool status one 0.1 2").output().unwrap().status.success();
    site.wait_until("the waits have ended", ended);
}

#[test]
fn a_tree_is_destroyed_although_snapshots_appear_in_it() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    for round in 0..6 {
        site.ok("zfs create one/a");
        for child in 0..4 {
            site.ok(&format!("zfs create one/a/{child}"));
        }
        site.ok("zfs snapshot -r one/a@before");
        let mut snapshots: Vec<Child> = (0..4)
            .map(|n| {
                let line = format!("zfs snapshot -r one/a@{round}-{n}");
                site.command(&line).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        site.ok("zfs destroy -r one/a");
        // A snapshot command fails if its dataset was destroyed before it began.
        snapshots.iter_mut().for_each(|snapshot| assert!(snapshot.wait().is_ok()));
        assert_eq!(site.ok("zfs list -H -t all -o name"), "one\n");
    }
}

/// Clients connect again as soon as a port is open. No answer may say that what they use is gone: they would believe it.
#[test]
fn a_restart_tells_no_client_that_its_files_are_gone() {
    let site = Site::new(1);
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let [nfs, iscsi] = [free(), free()];
    let configuration = super::CONFIGURATION.replace("nfs_port = 0", &format!("nfs_port = {nfs}"));
    site.configure(&configuration.replace("iscsi_port = 0", &format!("iscsi_port = {iscsi}")));
    let mut daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:iscsi=on tank d0");
    for number in 0..40 {
        site.ok(&format!("zfs create tank/f{number}"));
    }
    site.ok("zfs create -V 8M tank/vol");
    let address = format!("127.0.0.1:{nfs}");
    let handle = site.nfs().mount("/tank/f39").unwrap();
    let iqn = site.ok("daemon status").lines().find_map(|line| Some(line.split_once("iqn.")?.1.to_owned()));
    let iqn = format!("iqn.{}", iqn.unwrap().split([' ', ',', '/']).next().unwrap());
    for _ in 0..3 {
        daemon.signal(rustix::process::Signal::KILL);
        daemon.ended();
        let (address, handle, iqn) = (address.clone(), handle.clone(), iqn.clone());
        let client = std::thread::spawn(move || {
            let until_open = |address: &str| {
                while std::net::TcpStream::connect(address).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            until_open(&address);
            let mut client = Nfs::connect(&address);
            let answers = [client.status_of(&handle), client.mount("/tank/f39").map_or_else(|status| status, |_| 0)];
            let iscsi = format!("127.0.0.1:{iscsi}");
            until_open(&iscsi);
            (answers, login_status(&iscsi, &iqn))
        });
        daemon = site.start();
        assert_eq!(client.join().unwrap(), ([0, 0], 0), "{}", site.log());
    }
}

/// Status of a login to a target: its class and detail.
fn login_status(address: &str, iqn: &str) -> u16 {
    let text =
        format!("InitiatorName=iqn.2000-01.org.example:test\0SessionType=Normal\0TargetName={iqn}\0AuthMethod=None\0");
    let mut request = vec![0; 48];
    // Immediate login, with a transit from security negotiation to the operational stage.
    (request[0], request[1]) = (0x43, 0x81);
    request[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
    request[8] = 0x80;
    request.extend_from_slice(text.as_bytes());
    request.resize(request.len().next_multiple_of(4), 0);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    std::io::Write::write_all(&mut stream, &request).unwrap();
    let mut answer = [0; 48];
    std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    assert_eq!(answer[0] & 0x3f, 0x23, "a login response");
    u16::from_be_bytes([answer[36], answer[37]])
}
