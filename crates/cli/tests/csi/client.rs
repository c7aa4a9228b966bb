//! A gRPC client for single calls over a Unix socket: HTTP/2 by hyper, a message with its length before it.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::path::Path;

/// A connection to the plugin.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
}

impl Client {
    /// Connects to a socket.
    pub fn connect(socket: &Path) -> Client {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Client { runtime, sender }
    }

    /// Calls the Controller service; the error is the code of gRPC.
    pub fn controller<A: Message + Default>(&mut self, call: &str, request: &impl Message) -> Result<A, i32> {
        self.call("Controller", call, request)
    }

    /// Calls a service; the error is the code of gRPC.
    pub fn call<A: Message + Default>(&mut self, service: &str, call: &str, request: &impl Message) -> Result<A, i32> {
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(u32::try_from(request.encoded_len()).unwrap());
        request.encode(&mut body).unwrap();
        let request = http::Request::post(format!("http://localhost/csi.v1.{service}/{call}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(body.freeze()))
            .unwrap();
        let sent = self.sender.send_request(request);
        self.runtime.block_on(async {
            let answer = sent.await.unwrap();
            let code_in = |headers: &http::HeaderMap| headers.get("grpc-status")?.to_str().ok()?.parse::<i32>().ok();
            let in_headers = code_in(answer.headers());
            let collected = answer.into_body().collect().await.unwrap();
            let code = in_headers.or_else(|| collected.trailers().and_then(code_in)).unwrap();
            let bytes = collected.to_bytes();
            if code == 0 { Ok(A::decode(bytes.slice(5..)).unwrap()) } else { Err(code) }
        })
    }
}
