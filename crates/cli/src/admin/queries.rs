//! Queries that other processes send, in the process that has pools open.
//!
//! The rows are sent as they are found. The client's end of the connection is watched meanwhile: when it is closed, the query
//! stops at its next row or check.

use super::server::{read_frame, write_frame};
use crate::admin::ServedPool;
use crate::process::PoolProcess;
use futures_util::future::join;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use weir_admin::{Answer, Outcome, PoolQuery, Query, Refusal, RefusalKind, Row, RowReceiver, Rows};
use weir_daemon::admin::{Frame, MAX_BYTES};
use weir_engine::Engine;
use weir_pool::OpenOptions;

/// Whether a query goes on until its client ends it, or for as long as its samples take or pools are being opened.
pub fn goes_on(json: &[u8]) -> bool {
    match Query::from_json(json) {
        Ok(Query::Iostat(query)) => query.interval_ns.is_some() && query.samples != Some(1),
        Ok(Query::Pool { query: PoolQuery::Events(events), .. }) => events.follow,
        Ok(Query::Opened { .. }) => true,
        _ => false,
    }
}

/// Answers a query, which is JSON: rows in parts, then how it ended.
pub async fn answer(
    process: &Arc<PoolProcess>,
    json: Vec<u8>,
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (rows, received) = Rows::channel();
    let process = process.clone();
    // On a thread of its own, as other commands: it waits for disks that it scans.
    let query = tokio::task::spawn_blocking(move || process.machine.block_on(carry_out(&process, &json, rows)));
    let query = async { query.await.unwrap_or_else(|_| Err(Refusal::new(RefusalKind::Pool, "the query failed"))) };
    send(query, received, read, write).await
}

/// Sends the rows of a query until it ends or the client goes away, and how it ended.
async fn send(
    query: impl Future<Output = Result<(), Refusal>>,
    received: RowReceiver,
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (done, sent) = join(query, send_rows(read, write, received)).await;
    sent?;
    let answer = Answer::from(done.map(|()| Outcome::Rows));
    write_frame(write, &Frame::Answer(answer.to_json().map_err(io::Error::other)?)).await
}

/// Sends rows until there are no more. An error drops the receiver, which stops the query.
async fn send_rows(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    mut rows: RowReceiver,
) -> io::Result<()> {
    let mut unasked = pin!(read_frame(read));
    loop {
        let row = tokio::select! {
            row = rows.next() => row,
            // A client sends nothing after its query, so the frame is invalid or the client disconnected.
            frame = &mut unasked => return Err(frame.err().unwrap_or(io::ErrorKind::InvalidData.into())),
        };
        let Some(row) = row else { return Ok(()) };
        let mut lines = row.to_line().map_err(io::Error::other)?;
        while lines.len() < MAX_BYTES
            && let Some(row) = rows.at_hand()
        {
            lines.extend(row.to_line().map_err(io::Error::other)?);
        }
        for frame in Frame::chunks(&lines, Frame::Part) {
            write_frame(write, &frame).await?;
        }
    }
}

async fn carry_out(process: &PoolProcess, json: &[u8], mut rows: Rows) -> Result<(), Refusal> {
    let not_known = |error| Refusal::new(RefusalKind::Name, format!("not a query of this version: {error}"));
    match Query::from_json(json).map_err(not_known)? {
        Query::Pools => {
            for pool in process.all() {
                rows.add(Row::Pool(pool.open_pool())).await?;
            }
            Ok(())
        }
        Query::Opened { pools } => match process.daemon() {
            Some(daemon) => {
                let wait = daemon.until_all_opened(&pools).await;
                wait.map_err(|why| Refusal::new(RefusalKind::Pool, why))
            }
            None => Ok(()),
        },
        Query::Iostat(query) => {
            let pools = query.pools.iter().map(|name| served_pool(process, name));
            let pools = pools.collect::<Result<Vec<_>, _>>()?;
            let engines: Vec<&Engine> = pools.iter().map(|pool| &*pool.engine).collect();
            query.run(&engines, rows).await
        }
        Query::Pool { name, query } => {
            let served_pool = served_pool(process, &name)?;
            let options = OpenOptions::new(served_pool.device_paths(), name.as_str());
            query.run_open(&served_pool.engine, &options, &served_pool.mounts.mounted(), rows).await
        }
    }
}

/// The open pool of that name or GUID.
fn served_pool(process: &PoolProcess, name: &str) -> Result<Arc<ServedPool>, Refusal> {
    let why = || format!("process {} does not have pool '{name}' open", std::process::id());
    process.named(name).ok_or_else(|| Refusal::new(RefusalKind::OtherPool, why()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::UnixStream;
    use weir_admin::{Hold, RowDecoder};

    fn row(n: u64) -> Row {
        Row::Hold(Hold { snapshot: format!("p@{n}"), tag: "t".repeat(500), time_s: n })
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        #[allow(clippy::disallowed_methods, reason = "a real socket, in real time")]
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), future).await }).unwrap()
    }

    /// Serves a query on one end of a socket, while `client` uses the other end.
    fn serve<T>(
        query: impl AsyncFnOnce(Rows) -> Result<(), Refusal>,
        client: impl AsyncFnOnce(UnixStream) -> T,
    ) -> (io::Result<()>, T) {
        block_on(async {
            let (theirs, ours) = UnixStream::pair().unwrap();
            let (mut read, mut write) = ours.into_split();
            let (rows, received) = Rows::channel();
            join(send(query(rows), received, &mut read, &mut write), client(theirs)).await
        })
    }

    #[test]
    fn rows_arrive_in_their_order_before_the_answer() {
        let query = async |mut rows: Rows| {
            for n in 0..1000 {
                rows.add(row(n)).await?;
            }
            Err(Refusal::missing())
        };
        let (sent, (received, answer)) = serve(query, async |mut client| {
            let mut decoder = RowDecoder::default();
            let mut received = Vec::new();
            loop {
                match read_frame(&mut client).await.unwrap() {
                    Frame::Part(piece) => received.extend(decoder.push(&piece).unwrap()),
                    Frame::Answer(json) => return (received, Answer::from_json(&json).unwrap()),
                    other => panic!("{other:?}"),
                }
            }
        });
        sent.unwrap();
        assert_eq!(received, (0..1000).map(row).collect::<Vec<_>>());
        assert_eq!(answer, Answer::Refused(Refusal::missing()));
    }

    #[test]
    fn a_client_that_goes_away_stops_its_query() {
        // One query finds rows without end, the other finds none.
        let (sent, left) = serve(
            async |mut rows: Rows| {
                loop {
                    rows.add(row(0)).await?;
                }
            },
            async |mut client| read_frame(&mut client).await.map(drop),
        );
        assert!(sent.is_err() && left.is_ok());
        let (sent, ()) = serve(
            async |rows: Rows| {
                loop {
                    rows.check()?;
                    tokio::task::yield_now().await;
                }
            },
            async |client| drop(client),
        );
        assert!(sent.is_err());
    }
}
