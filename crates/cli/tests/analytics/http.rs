//! A client of HTTP that sends any request line and headers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[derive(Clone)]
pub struct Http {
    address: String,
    host: String,
    pub token: String,
}

/// An answer that goes on.
pub struct Stream(BufReader<TcpStream>);

impl Stream {
    /// The next event's data.
    pub fn event(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap() > 0 {
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }
}

impl Http {
    /// The server of `http://ADDRESS/?token=TOKEN`.
    pub fn of(url: &str) -> Http {
        let (address, token) = url.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
        Http { address: address.to_owned(), host: address.to_owned(), token: token.to_owned() }
    }

    pub fn with_token(self, token: &str) -> Http {
        Http { token: token.to_owned(), ..self }
    }

    pub fn with_host(self, host: &str) -> Http {
        Http { host: host.to_owned(), ..self }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    #[allow(dead_code, reason = "used by the tests of the page")]
    /// Sends a request line and headers.
    pub fn send(&self, line: &str, more: &str) -> TcpStream {
        let mut stream = self.connect();
        let bearer =
            if self.token.is_empty() { String::new() } else { format!("Authorization: Bearer {}\r\n", self.token) };
        // The server may close before it has read all.
        let _sent = write!(stream, "{line}\r\nHost: {}\r\n{bearer}{more}\r\n", self.host);
        stream
    }

    #[allow(dead_code, reason = "used by the tests of the page")]
    /// Status and body of the answer to a POST with these header lines, beside the token, and this body.
    pub fn post(&self, path: &str, headers: &str, body: &str) -> (u16, String) {
        self.post_bytes(path, headers, body.as_bytes())
    }

    #[allow(dead_code, reason = "used by the tests of the page")]
    /// The same, with any bytes.
    pub fn post_bytes(&self, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let more = format!("Connection: close\r\nContent-Length: {}\r\n{headers}", body.len());
        let mut stream = self.send(&format!("POST {path} HTTP/1.1"), &more);
        // The server may refuse a body before it has read all.
        let _sent = stream.write_all(body);
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        parsed(&String::from_utf8_lossy(&answer))
    }

    #[allow(dead_code, reason = "used by the tests of the page")]
    /// Head and bytes of the body of an answer to GET.
    pub fn get_bytes(&self, path: &str) -> (String, Vec<u8>) {
        let mut answer = Vec::new();
        let _reset = self.send(&format!("GET {path} HTTP/1.0"), "").read_to_end(&mut answer);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(answer.len());
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        (head, answer.get(end + 4..).unwrap_or_default().to_vec())
    }

    /// The whole answer to a request line.
    pub fn raw(&self, line: &str) -> String {
        let mut answer = Vec::new();
        let _reset = self.send(line, "Connection: close\r\n").read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Status and body.
    pub fn method(&self, method: &str, path: &str) -> (u16, String) {
        parsed(&self.raw(&format!("{method} {path} HTTP/1.0")))
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.method("GET", path)
    }

    /// A request whose answer is a stream.
    pub fn open(&self, path: &str) -> Stream {
        Stream(BufReader::new(self.send(&format!("GET {path} HTTP/1.1"), "")))
    }
}

/// Status and body of an answer.
fn parsed(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, body.to_owned())
}
