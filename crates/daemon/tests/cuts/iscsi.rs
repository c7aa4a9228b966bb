//! A session with all commands that change something and may be repeated.
//!
//! COMPARE AND WRITE is not among them: repeated, it reports that the blocks differ, as it should.

use crate::session::{Client, HOST, ISCSI_TARGETS, Memory, Protocol, State, VOLUME_BYTES, done, read};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use weir_engine::Engine;
use weir_iscsi::wire::Bhs;
use weir_iscsi::wire::bhs::{FLAG_FINAL, FLAG_WRITE, NO_TAG, opcode};
use weir_machine::Request;
use weir_sim::SimStream;

const BLOCK: u64 = 4096;
/// Logical blocks of one block of the volume.
const LOGICAL: u64 = BLOCK / 512;

/// An initiator.
pub struct Iscsi {
    /// Whether the unit has a write cache.
    pub write_cache: bool,
    /// The step whose command is sent next; its number is the CmdSN.
    pub next: Cell<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write {
        fua: bool,
    },
    /// The data are split: immediate, and a unit that was not asked for.
    SplitWrite,
    Zero,
    Unmap,
    Same,
    Flush,
}

/// Command, and the blocks that it changes.
fn steps() -> Vec<(Kind, Range<u64>)> {
    vec![
        (Kind::Write { fua: false }, 0..1),
        (Kind::Write { fua: true }, 1..2),
        (Kind::Flush, 0..0),
        (Kind::SplitWrite, 2..6),
        (Kind::Unmap, 0..1),
        (Kind::Zero, 2..3),
        (Kind::Flush, 0..0),
        (Kind::Same, 8..10),
        (Kind::Write { fua: false }, 0..1),
        (Kind::Write { fua: true }, 4..8),
        (Kind::Unmap, 1..5),
        (Kind::Flush, 0..0),
        (Kind::SplitWrite, 5..7),
    ]
}

/// A SCSI Command with its data.
fn command(number: usize, cdb: &[u8], data: &[u8], immediate_bytes: usize) -> Vec<u8> {
    let write = if data.is_empty() { 0 } else { FLAG_WRITE };
    let last = if immediate_bytes == data.len() { FLAG_FINAL } else { 0 };
    let mut bhs = Bhs::new(opcode::COMMAND).with_flags(write | last).with_itt(number as u32);
    bhs.set_word(20, data.len() as u32);
    bhs.set_word(24, number as u32);
    bhs.0[32..32 + cdb.len()].copy_from_slice(cdb);
    bhs.set_data_bytes(immediate_bytes);
    let mut bytes = bhs.0.to_vec();
    bytes.extend(&data[..immediate_bytes]);
    if immediate_bytes < data.len() {
        let mut out = Bhs::new(opcode::DATA_OUT).with_itt(number as u32).with_ttt(NO_TAG);
        out.set_word(40, immediate_bytes as u32);
        out.set_data_bytes(data.len() - immediate_bytes);
        bytes.extend(out.0);
        bytes.extend(&data[immediate_bytes..]);
    }
    bytes
}

fn long_cdb(code: u8, flags: u8, blocks: &Range<u64>) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&(blocks.start * LOGICAL).to_be_bytes());
    cdb[10..14].copy_from_slice(&(((blocks.end - blocks.start) * LOGICAL) as u32).to_be_bytes());
    cdb
}

/// Opcode, status and data segment of a unit; `None` if the connection ends before.
async fn unit(stream: &mut SimStream) -> Option<(u8, u8, Vec<u8>)> {
    let bhs = Bhs(read(stream, 48).await?.try_into().ok()?);
    let data = read(stream, bhs.data_bytes().next_multiple_of(4)).await?;
    Some((bhs.opcode(), bhs.0[3], data))
}

impl Protocol for Iscsi {
    fn steps(&self) -> usize {
        steps().len()
    }

    fn call(&self, number: usize, _: &Memory) -> Vec<u8> {
        self.next.set(number);
        let (kind, blocks) = steps()[number].clone();
        let data = vec![number as u8 + 1; ((blocks.end - blocks.start) * BLOCK) as usize];
        match kind {
            Kind::Write { fua } => command(number, &long_cdb(0x8a, u8::from(fua) << 3, &blocks), &data, data.len()),
            Kind::SplitWrite => command(number, &long_cdb(0x8a, 0, &blocks), &data, 512),
            Kind::Zero => command(number, &long_cdb(0x93, 1, &blocks), &[], 0),
            Kind::Same => command(number, &long_cdb(0x93, 0, &blocks), &data[..512], 512),
            Kind::Flush => command(number, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0),
            Kind::Unmap => {
                let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
                list.extend((blocks.start * LOGICAL).to_be_bytes());
                list.extend((((blocks.end - blocks.start) * LOGICAL) as u32).to_be_bytes());
                list.extend([0; 4]);
                command(number, &[0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, list.len())
            }
        }
    }

    fn reply<'a>(&self, stream: &'a mut SimStream) -> BoxFuture<'a, Option<Vec<u8>>> {
        async { unit(stream).await.map(|(opcode, status, data)| [vec![opcode, status], data].concat()) }.boxed()
    }

    fn succeeded(&self, _: usize, reply: &[u8], _: bool) -> bool {
        reply == [opcode::RESPONSE, 0]
    }

    fn remember<'a>(&'a self, _: usize, _: &'a [u8], _: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()> {
        done(())
    }

    /// A flush makes all blocks stable; a write with FUA, or any change without a write cache, those that it changes.
    fn stable_items(&self, number: usize, items: usize) -> Vec<usize> {
        let (kind, blocks) = steps()[number].clone();
        match kind {
            Kind::Flush => (0..items).collect(),
            kind if kind == (Kind::Write { fua: true }) || !self.write_cache => {
                (blocks.start as usize..blocks.end as usize).collect()
            }
            _ => Vec::new(),
        }
    }

    fn addresses(&self, connection: u16) -> (SocketAddr, SocketAddr) {
        (SocketAddr::new(HOST, 3260), SocketAddr::new(HOST, 800 + connection))
    }

    /// Logs in, always as the same initiator port, and takes the unit attention of the new session.
    fn begin<'a>(&'a self, stream: &'a mut SimStream) -> BoxFuture<'a, bool> {
        let number = self.next.get();
        let target = ISCSI_TARGETS[usize::from(self.write_cache)];
        async move {
            let text = format!(
                "InitiatorName=iqn.2000-01.org.example:client\0SessionType=Normal\0TargetName={target}\0InitialR2T=No\0"
            );
            let mut bhs =
                Bhs::new(opcode::LOGIN | 0x40).with_flags(FLAG_FINAL | 1 << 2 | 3).with_word(24, number as u32);
            bhs.0[8] = 0x80;
            bhs.set_data_bytes(text.len());
            let mut login = bhs.0.to_vec();
            login.extend(text.as_bytes());
            login.resize(login.len().next_multiple_of(4), 0);
            if stream.write_all(&login).await.is_err() || unit(stream).await.is_none() {
                return false;
            }
            let mut ready = command(0, &[0; 6], &[], 0);
            ready[0] |= 0x40;
            stream.write_all(&ready).await.is_ok() && unit(stream).await.is_some_and(|(_, status, _)| status == 2)
        }
        .boxed()
    }

    fn first<'a>(&'a self, _: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()> {
        done(())
    }

    /// The blocks.
    fn state<'a>(&'a self, engine: &'a Arc<Engine>) -> LocalBoxFuture<'a, State> {
        async move {
            let rq = &Request::internal("test");
            let volume = engine.volume(rq, "tank/vol").await.unwrap();
            let bytes = volume.read(rq, 0, VOLUME_BYTES as usize).await.unwrap();
            bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect()
        }
        .boxed_local()
    }
}
