//! Client of a content in this process: its operations in flight are futures. The worker's thread polls one that is alone;
//! those beside others are tasks of their own, as in a server, so that they use all processors.

use super::{Answer, Content};
use crate::native::network::{Completion, Operation, Pipeline};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, Either, ready, select};
use futures_util::stream::FuturesUnordered;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::Machine;

/// Operations of a worker in flight.
pub struct Client {
    machine: Machine,
    content: Arc<dyn Content>,
    in_flight: FuturesUnordered<BoxFuture<'static, io::Result<Completion>>>,
}

impl Client {
    /// A client without operations.
    pub fn new(machine: Machine, content: Arc<dyn Content>) -> Self {
        Self { machine, content, in_flight: FuturesUnordered::new() }
    }

    fn push(&mut self, operation: impl Future<Output = io::Result<Completion>> + Send + 'static) {
        if self.in_flight.is_empty() {
            return self.in_flight.push(Box::pin(operation));
        }
        let task = self.machine.tasks.spawn(operation);
        self.in_flight.push(Box::pin(async move { task.await.map_err(io::Error::other)? }));
    }
}

impl Pipeline for Client {
    fn submit(&mut self, tag: u32, operation: Operation<'_>) -> io::Result<()> {
        let done = Completion { tag, ..Completion::default() };
        match operation {
            Operation::Read { offset, len, keeps_data } => {
                let read = self.content.read(offset, len);
                self.push(async move {
                    let data = read.await?;
                    if data.len() != len {
                        let text = format!("{} of {len} bytes were read at byte {offset}", data.len());
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                    }
                    Ok(Completion { data: if keeps_data { data.to_vec() } else { Vec::new() }, ..done })
                });
            }
            Operation::Write { offset, data, is_stable } => {
                let written = self.content.write(offset, Bytes::copy_from_slice(data), is_stable);
                self.push(async move {
                    written.await?;
                    Ok(Completion { is_stable, ..done })
                });
            }
            Operation::Flush => {
                let flushed = self.content.flush();
                self.push(async move {
                    flushed.await?;
                    Ok(Completion { is_stable: true, ..done })
                });
            }
        }
        Ok(())
    }

    fn complete(&mut self, within: Duration) -> io::Result<Option<Completion>> {
        let in_flight = &mut self.in_flight;
        self.machine.block_on(async {
            let over = pin!(self.machine.clock.sleep(within));
            match select(in_flight.next(), over).await {
                Either::Left((Some(done), _)) => done.map(Some),
                Either::Left((None, over)) => {
                    over.await;
                    Ok(None)
                }
                Either::Right(_) => Ok(None),
            }
        })
    }
}

/// Answers at once and stores nothing: what is left is the client.
pub struct Nothing(Bytes);

impl Nothing {
    /// A content whose largest operation has `largest_bytes`.
    pub fn new(largest_bytes: u64) -> Self {
        Self(Bytes::from(vec![0; usize::try_from(largest_bytes).unwrap_or_default()]))
    }
}

impl Content for Nothing {
    fn read(&self, _: u64, len: usize) -> Answer<Bytes> {
        Box::pin(ready(Ok(self.0.slice(..len.min(self.0.len())))))
    }

    fn write(&self, _: u64, _: Bytes, _: bool) -> Answer<()> {
        Box::pin(ready(Ok(())))
    }

    fn flush(&self) -> Answer<()> {
        Box::pin(ready(Ok(())))
    }
}
