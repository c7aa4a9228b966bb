//! Fuzz target of whole lock calls: the lock manager over files in memory, in a simulated world in which no client answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use futures_util::FutureExt;
use weir_daemon::fuzz::{handle_of_file, lock_server};
use weir_machine::MemoryStateFile;
use weir_nfs::wire::Encoder;
use weir_nfs::{Peer, nlm, nsm};
use weir_sim::SimWorld;

use crate::fuzz::Target;

/// Maximum size of a reply in bytes: a status, a cookie and a holder.
const REPLY_BYTES: usize = 4096;
/// The clients.
const HOSTS: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
];
/// Maximum number of calls of one input.
const CALLS: usize = 64;

/// The target.
pub const TARGETS: &[Target] = &[("nlm_call", call_target)];

/// Each call: a byte with the procedure, one with the client, whether a lock of a valid file follows and whether it waits, then
/// arguments; a zero byte, or 255 bytes, end it.
fn call_target(data: &[u8]) {
    let world = SimWorld::new(1);
    let machine = world.machine();
    let (server, _) = lock_server(&machine, &MemoryStateFile::default());
    let file = handle_of_file();
    let ran = world.run(async {
        for (at, input) in data.split(|byte| *byte == 0).enumerate().take(CALLS) {
            let Some((head, rest)) = input.split_first_chunk::<2>() else { continue };
            let (program, version) = if head[0] & 0x40 == 0 { (nlm::PROGRAM, nlm::VERSION) } else { (nsm::PROGRAM, 1) };
            let procedure = u32::from(head[0] % 25);
            let mut call = Encoder::default();
            call.u32(at as u32).u32(0).u32(2).u32(program).u32(version).u32(procedure).u32(0).u32(0).u32(0).u32(0);
            if head[1] & 4 != 0 {
                call.opaque(b"c");
                match procedure {
                    1 | 6 => drop(call.bool(head[1] & 8 != 0)),
                    2 | 3 | 7 | 8 | 22 => drop(call.bool(head[1] & 16 != 0).bool(head[1] & 8 != 0)),
                    _ => {}
                }
                let [offset, len, process] = [0, 1, 2].map(|at| rest.get(at).copied().unwrap_or(0));
                call.opaque(b"host").opaque(&file).opaque(b"o").u32((process % 4).into());
                call.u64((offset % 8).into()).u64((len % 8).into()).u32(0).u32(0);
            } else {
                call.bytes.extend_from_slice(rest);
            }
            let peer = Peer::new(HOSTS[usize::from(head[1] & 3)]);
            let reply = server.answer(&peer, &Bytes::from(call.bytes)).now_or_never();
            assert!(reply.flatten().is_some_and(|reply| reply.body().len() <= REPLY_BYTES));
        }
        // Attempts to reach clients come to an end.
        machine.clock.sleep(std::time::Duration::from_secs(3600)).await;
    });
    assert!(ran.is_ok(), "{:?}", ran.err());
}
