//! A session with all requests that change something.

use crate::session::{Client, HOST, Memory, Protocol, State, VOLUME_BYTES, done, read};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use weir_engine::Engine;
use weir_machine::Request;
use weir_nbd::wire::{COMMAND_FLAG_FUA, COMMAND_FLAG_NO_HOLE, RequestHeader, command};
use weir_sim::SimStream;

const BLOCK: u64 = 4096;

/// A client of the volume.
pub struct Nbd;

/// Command, flags, and the blocks that it changes.
type Step = (u16, u16, Range<u64>);

fn steps() -> Vec<Step> {
    vec![
        (command::WRITE, 0, 0..1),
        (command::WRITE, COMMAND_FLAG_FUA, 1..2),
        (command::FLUSH, 0, 0..0),
        (command::WRITE, 0, 2..6),
        (command::TRIM, COMMAND_FLAG_FUA, 0..1),
        (command::WRITE_ZEROES, 0, 2..3),
        (command::WRITE_ZEROES, COMMAND_FLAG_NO_HOLE | COMMAND_FLAG_FUA, 3..4),
        (command::WRITE, 0, 0..1),
        (command::FLUSH, 0, 0..0),
        (command::WRITE, COMMAND_FLAG_FUA, 4..8),
        (command::TRIM, 0, 1..5),
        (command::WRITE_ZEROES, COMMAND_FLAG_FUA, 6..7),
        (command::FLUSH, 0, 0..0),
    ]
}

impl Protocol for Nbd {
    fn steps(&self) -> usize {
        steps().len()
    }

    fn call(&self, number: usize, _: &Memory) -> Vec<u8> {
        let (command, flags, blocks) = steps()[number].clone();
        let length = (blocks.end - blocks.start) * BLOCK;
        let offset = blocks.start * BLOCK;
        let header = RequestHeader { flags, command, cookie: number as u64, offset, length: length as u32 };
        let mut bytes = header.encode().to_vec();
        if command == command::WRITE {
            bytes.extend(vec![number as u8 + 1; length as usize]);
        }
        bytes
    }

    fn reply<'a>(&self, stream: &'a mut SimStream) -> BoxFuture<'a, Option<Vec<u8>>> {
        read(stream, 16).boxed()
    }

    fn succeeded(&self, number: usize, reply: &[u8], _: bool) -> bool {
        reply[..8] == [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0] && reply[8..] == (number as u64).to_be_bytes()
    }

    fn remember<'a>(&'a self, _: usize, _: &'a [u8], _: &'a mut Client<'_>) -> LocalBoxFuture<'a, ()> {
        done(())
    }

    /// A flush makes all blocks stable, a request with FUA those that it changes.
    fn stable_items(&self, number: usize, items: usize) -> Vec<usize> {
        let (command, flags, blocks) = steps()[number].clone();
        match command {
            command::FLUSH => (0..items).collect(),
            _ if flags & COMMAND_FLAG_FUA != 0 => (blocks.start as usize..blocks.end as usize).collect(),
            _ => Vec::new(),
        }
    }

    fn addresses(&self, connection: u16) -> (SocketAddr, SocketAddr) {
        (SocketAddr::new(HOST, 10_809), SocketAddr::new(HOST, 700 + connection))
    }

    fn begin<'a>(&'a self, stream: &'a mut SimStream) -> BoxFuture<'a, bool> {
        async move {
            let greeted = read(stream, 18).await.is_some();
            let option = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x08tank/vol";
            greeted && stream.write_all(option).await.is_ok() && read(stream, 10).await.is_some()
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
