//! Serves devices in memory over iSCSI, to try initiators without a pool: `memory PORT MIB [USER SECRET]`.
//!
//! The target `iqn.2000-01.org.example:memory` has units 0 (writable) and 1 (read-only).

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use weir_front::Hosts;
use weir_front::memory::{MemoryDevice, MemoryExports};
use weir_iscsi::{ChapConfig, Credentials, LunConfig, NoReservations, Secret, Server, TargetConfig, serve};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |word| word.parse());
    let port = u16::try_from(number(0, 3260)?)?;
    let mib = number(1, 64)?;
    let mut exports = MemoryExports::default();
    let device = |id, mib: usize| MemoryDevice::new(vec![0; mib << 20]).with_id(id);
    exports.0.insert("disk".into(), Arc::new(device(1, mib).with_writing(true)));
    exports.0.insert("read-only".into(), Arc::new(device(2, 1)));
    let server = Arc::new(Server::new(Arc::new(exports), Arc::new(NoReservations)));
    let lun = |lun, export: &str| LunConfig { lun, export: export.into(), write_cache: true, read_only: false };
    let chap = arguments.get(2).zip(arguments.get(3)).map(|(user, secret)| ChapConfig {
        initiator: Credentials { user: user.clone(), secret: Secret::new(secret.clone()) },
        mutual: None,
    });
    server.set_targets(vec![TargetConfig {
        iqn: "iqn.2000-01.org.example:memory".into(),
        luns: vec![lun(0, "disk"), lun(1, "read-only")],
        initiators: Vec::new(),
        hosts: Hosts::loopback(),
        chap,
    }]);
    let machine = weir_linux::Production::default().build()?;
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    machine.tasks.block_on(async {
        let listener = machine.net.listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)).await?;
        println!("iscsi://{}/iqn.2000-01.org.example:memory/0", listener.address());
        serve(listener, server, machine.clone(), stopped).await;
        Ok(())
    })
}
