//! Requests of stores as they are sent, and what their answers mean: a server that answers as a script says.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test with a real server on loopback")]

use bytes::Bytes;
use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use weir_object_store::StoreUrl;
use weir_object_store::remote::RemoteStore;
use weir_object_store::store::{Condition, Etag, Store, StoreError};

/// A server for one store, and the requests that it received: the first line and the headers, in lower case.
struct Scripted {
    store: RemoteStore,
    received: Receiver<String>,
}

/// Status with headers, and body.
type Answer = (&'static str, &'static str);

const NOT_FOUND: Answer = ("404 Not Found", "");

/// Starts a server that gives these answers.
fn scripted(url: &str, answers: Vec<Answer>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for (head, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut request = String::new();
            while !request.ends_with("\r\n\r\n") {
                reader.read_line(&mut request).unwrap();
            }
            let request = request.to_ascii_lowercase();
            let bytes = request.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut rest = vec![0; bytes.map_or(0, |bytes| bytes.parse().unwrap())];
            reader.read_exact(&mut rest).unwrap();
            sender.send(request).unwrap();
            let answer =
                format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let variables = move |name: &str| match name {
        "AZURE_STORAGE_ACCOUNT_NAME" => Some("account".to_owned()),
        "AZURE_STORAGE_ACCOUNT_KEY" => Some("c2VjcmV0".to_owned()),
        "AZURE_ENDPOINT" => Some(format!("http://127.0.0.1:{port}/account")),
        "GOOGLE_BEARER_TOKEN" => Some("token".to_owned()),
        "GOOGLE_BASE_URL" => Some(format!("http://127.0.0.1:{port}/")),
        _ => None,
    };
    let url = StoreUrl::parse(url).unwrap();
    Scripted { store: RemoteStore::new(&url, &variables).unwrap(), received }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

impl Scripted {
    fn put(&self, condition: Condition) -> Result<Etag, StoreError> {
        run(self.store.put("k".into(), Bytes::from_static(b"bytes"), condition))
    }

    fn delete(&self, etag: &str) -> Result<(), StoreError> {
        run(self.store.delete("k".into(), Etag::new(etag)))
    }

    /// The next request, which has all of these lines.
    fn saw(&self, lines: &[&str]) -> String {
        let request = self.received.recv().unwrap();
        for line in lines {
            assert!(request.lines().any(|sent| sent == *line), "no '{line}' in\n{request}");
        }
        request
    }
}

fn is(etag: &str) -> Condition {
    Condition::Is(Etag::new(etag))
}

#[test]
fn azure_has_conditions_on_etags() {
    let found = "200 OK\r\nETag: \"0x2\"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT";
    let server = scripted(
        "az://container/a-b/p",
        vec![
            ("201 Created\r\nETag: \"0x1\"", ""),
            ("201 Created\r\nETag: \"0x2\"", ""),
            (found, "bytes"),
            ("202 Accepted", ""),
            NOT_FOUND,
        ],
    );
    assert_eq!(server.put(Condition::Missing), Ok(Etag::new("\"0x1\"")));
    server.saw(&["put /account/container/a-b/p/k http/1.1", "if-none-match: *", "x-ms-blob-type: blockblob"]);
    assert_eq!(server.put(is("\"0x1\"")), Ok(Etag::new("\"0x2\"")));
    server.saw(&["if-match: \"0x1\""]);
    let got = run(server.store.get("k".into(), None)).unwrap().unwrap();
    assert_eq!((&got.bytes[..], got.etag), (&b"bytes"[..], Etag::new("\"0x2\"")));
    let read = server.saw(&["get /account/container/a-b/p/k http/1.1"]);
    assert!(!read.contains("if-match"), "{read}");
    assert_eq!(server.delete("\"0x2\""), Ok(()));
    let deletion = server.saw(&["delete /account/container/a-b/p/k http/1.1", "if-match: \"0x2\""]);
    assert!(deletion.contains("\r\nauthorization: sharedkey account:"), "{deletion}");
    assert_eq!(server.delete("\"0x2\""), Err(StoreError::Precondition));
    assert!(server.store.deletes_late() && server.store.request_life().is_none());
}

#[test]
fn azure_tells_conditions_from_other_conflicts() {
    let exists = ("409 Conflict", "<Error><Code>BlobAlreadyExists</Code></Error>");
    let unmet = ("412 Precondition Failed\r\nx-ms-error-code: ConditionNotMet", "");
    let leased = ("412 Precondition Failed", "<Error><Code>LeaseIdMissing</Code><Message>m</Message></Error>");
    let immutable = ("409 Conflict", "<Error><Code>BlobImmutableDueToPolicy</Code></Error>");
    let without = ("404 Not Found", "<Error><Code>ContainerNotFound</Code><Message>none</Message></Error>");
    let without_body = ("404 Not Found\r\nx-ms-error-code: ContainerNotFound", "");
    let busy = ("503 Server Busy", "<Error><Code>ServerBusy</Code></Error>");
    let server =
        scripted("az://c/p", vec![exists, unmet, leased, immutable, leased, without, without, without_body, busy]);
    assert_eq!(server.put(Condition::Missing), Err(StoreError::Precondition));
    assert_eq!(server.put(is("\"0x1\"")), Err(StoreError::Precondition));
    let refused = |result: Result<(), StoreError>, why: &str| match result {
        Err(StoreError::Refused(text)) => assert!(text.contains(why), "{text}"),
        other => panic!("{other:?} instead of a refusal with {why}"),
    };
    refused(server.put(is("\"0x1\"")).map(drop), "status 412 Precondition Failed: LeaseIdMissing: m");
    refused(server.put(Condition::Missing).map(drop), "BlobImmutableDueToPolicy");
    refused(server.delete("\"0x1\""), "LeaseIdMissing");
    refused(server.put(Condition::Missing).map(drop), "ContainerNotFound");
    refused(run(server.store.get("k".into(), None)).map(drop), "ContainerNotFound: none");
    refused(run(server.store.head("k".into())).map(drop), "ContainerNotFound");
    assert!(server.delete("\"0x1\"").unwrap_err().is_temporary());
}

#[test]
fn google_has_conditions_on_generations() {
    let found = "200 OK\r\nETag: \"e\"\r\nx-goog-generation: 8\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT";
    let unmet = ("412 Precondition Failed", "<Error><Code>PreconditionFailed</Code></Error>");
    let server = scripted(
        "gs://bucket/a/p",
        vec![
            ("200 OK\r\nETag: \"e\"\r\nx-goog-generation: 7", ""),
            ("200 OK\r\nETag: \"e\"\r\nx-goog-generation: 8", ""),
            (found, "bytes"),
            unmet,
            ("204 No Content", ""),
            unmet,
            ("409 Conflict", "<Error><Code>Conflict</Code></Error>"),
            ("429 Too Many Requests", ""),
            ("200 OK\r\nETag: \"e\"", ""),
            NOT_FOUND,
        ],
    );
    assert_eq!(server.put(Condition::Missing), Ok(Etag::new("7")));
    server.saw(&["put /bucket/a%2fp%2fk http/1.1", "x-goog-if-generation-match: 0", "authorization: bearer token"]);
    assert_eq!(server.put(is("7")), Ok(Etag::new("8")));
    server.saw(&["x-goog-if-generation-match: 7"]);
    assert_eq!(run(server.store.get("k".into(), None)).unwrap().unwrap().etag, Etag::new("8"));
    server.saw(&[]);
    assert_eq!(server.delete("7"), Err(StoreError::Precondition));
    let line = "x-goog-if-generation-match: 7";
    server.saw(&["delete /bucket/a%2fp%2fk http/1.1", line, "authorization: bearer token"]);
    assert_eq!(server.delete("8"), Ok(()));
    assert_eq!(server.put(Condition::Missing), Err(StoreError::Precondition));
    // Neither is an answer to the condition: the tag decides.
    assert!(server.put(is("8")).unwrap_err().is_temporary() && server.put(is("8")).unwrap_err().is_temporary());
    assert!(matches!(server.put(is("8")), Err(StoreError::Refused(why)) if why.contains("generation")));
    assert_eq!(run(server.store.head("k".into())), Ok(None));
    assert!(server.store.deletes_late());
    assert!(server.store.request_life().unwrap().as_secs() > 24 * 3600);
}
