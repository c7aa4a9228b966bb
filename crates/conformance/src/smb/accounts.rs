//! Operations of SMB clients in the accounts of a pool, which this process serves.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use weir_daemon::smb::{Directories, Options, SmbService};
use weir_daemon::{Exports, OpenPool};
use weir_engine::{Engine, ImportOptions};
use weir_machine::{Machine, Protocol, Request};
use weir_pool::OpenOptions;

use super::server::{PASSWORD, SHARE, USER};
use super::{Verdict, verdict};
use crate::JudgeError;
use crate::kill::failed;
use crate::suites::program;
use crate::zdb::output;

const BYTES: usize = 3_000_000;

/// Writes and reads a file over SMB, and looks for both in the accounts of the client. `served` has the state of the server
/// that served the pool before, with its user.
pub fn accounts(machine: &Machine, served: &Path, devices: &Path, folder: &Path) -> Verdict {
    machine.block_on(async {
        let rq = &Request::internal("judge");
        let open = OpenOptions::new(vec![devices.to_owned()], SHARE);
        let options = ImportOptions { force: true, ..ImportOptions::new(open) };
        let engine = Engine::import(machine, &options).await.map_err(|e| failed("import", e))?;
        let pool = OpenPool::Engine(engine.clone());
        let exports = Exports::open(rq, &pool).await.map_err(|e| failed("exports", e))?;
        let directories = Directories { state: served.join("state/smb"), runtime: served.join("run/accounts") };
        let options = Options { listen: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 0, directories };
        let service = SmbService::start(machine, options).await.map_err(|e| failed("smbd", e))?;
        let found = transfer(rq, &service, &exports, &pool, folder).await;
        service.stop().await;
        let rows = engine.cache.accounts().datasets();
        drop(exports);
        drop(pool);
        engine.export().await.map_err(|e| failed("export", e))?;
        let mut wrong = found?;
        let client = format!("{USER}@127.0.0.1");
        let mine: Vec<_> = rows.iter().filter(|row| row.protocol == Protocol::Smb && row.client == client).collect();
        let written: u64 = mine.iter().map(|row| row.written_bytes).sum();
        let read: u64 = mine.iter().map(|row| row.answered_bytes).sum();
        if written < BYTES as u64 {
            wrong.push(format!("{written} bytes written by {client}, of {BYTES}; the accounts: {rows:?}"));
        }
        verdict(format!("{client}: {written} bytes written, {read} read"), wrong)
    })
}

async fn transfer(
    rq: &Request,
    service: &SmbService,
    exports: &Exports,
    pool: &OpenPool,
    folder: &Path,
) -> Result<Vec<String>, JudgeError> {
    service.mount_pool(exports).map_err(|e| failed("a mount", e))?;
    let share = service.share(rq, pool, SHARE, SHARE).await.map_err(|e| failed("a share", e))?;
    service.samba().set_shares(vec![share]).await.map_err(|e| failed("smb.conf", e))?;
    let sent = folder.join("accounted");
    let got = folder.join("accounted-got");
    let bytes: Vec<u8> = (0..BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    std::fs::write(&sent, &bytes).map_err(|e| failed("a file", e))?;
    let mut command = Command::new(program("WEIR_SMBCLIENT", "smbclient")?);
    command.args(["-p", &service.samba().address.port().to_string(), "-U", &format!("{USER}%{PASSWORD}")]);
    command.arg(format!("//127.0.0.1/{SHARE}"));
    command.arg("-c").arg(format!("put {} acc; get acc {}", sent.display(), got.display()));
    let said = output(&mut command)?;
    let same = std::fs::read(&got).ok().is_some_and(|got| got == bytes);
    let text = String::from_utf8_lossy(&[&said.stdout[..], &said.stderr[..]].concat()).into_owned();
    Ok(if same { Vec::new() } else { vec![format!("what was read is not what was written: {text}")] })
}
