//! A client of a store in a process of its own, as its environment has the credentials.
//!
//! ```text
//!   object-child abilities URL      prints for each condition of a request whether the store obeys it
//!   object-child count URL          prints the number of objects of a disk
//!   object-child lay URL FILE       writes the objects of a disk into a sparse file, at their offsets
//! ```

use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::Arc;
use weir_object_store::core::key;
use weir_object_store::record::{KEY, Record};
use weir_object_store::store::{Condition, Store, StoreError};
use weir_object_store::{StoreUrl, open_store};

/// Entry point of the client.
pub fn main(words: &[String]) -> ExitCode {
    let done = weir_linux::machine().map_err(|error| error.to_string()).and_then(|machine| {
        machine.block_on(async {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["abilities", url] => abilities(&*open(url, &machine)?).await,
                ["count", url] => count(&*open(url, &machine)?).await,
                ["lay", url, file] => lay(&*open(url, &machine)?, file).await,
                _ => Err("takes abilities URL, count URL or lay URL FILE".to_owned()),
            }
        })
    });
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn open(url: &str, machine: &weir_machine::Machine) -> Result<Arc<dyn Store>, String> {
    let url = StoreUrl::parse(url).map_err(|error| error.to_string())?;
    open_store(&url, machine.compute.clone())
}

fn text(error: StoreError) -> String {
    error.to_string()
}

/// Whether a request whose condition is not met was refused.
fn verdict<T>(what: &str, answer: Result<T, StoreError>) -> Result<String, String> {
    match answer {
        Err(StoreError::Precondition) => Ok(format!("{what}: obeyed")),
        Ok(_) => Ok(format!("{what}: ignored")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

async fn abilities(store: &dyn Store) -> Result<String, String> {
    let put = |name: &'static str, body: &'static str, condition| {
        store.put(name.to_owned(), Bytes::from_static(body.as_bytes()), condition)
    };
    let never = || store.never();
    let first = put("a", "first", Condition::Missing).await.map_err(text)?;
    let mut lines = vec![
        verdict("PUT If-None-Match", put("a", "second", Condition::Missing).await)?,
        verdict("PUT If-Match", put("a", "second", Condition::Is(never())).await)?,
        verdict("PUT If-Match of a missing object", put("b", "second", Condition::Is(never())).await)?,
    ];
    let same = put("c", "first", Condition::Missing).await.map_err(text)? == first;
    let newer = put("a", "second", Condition::Is(first.clone())).await.map_err(text)?;
    lines.push(verdict("DELETE If-Match", store.delete("a".into(), first).await)?);
    let there = store.head("a".into()).await.map_err(text)? == Some(newer);
    lines.push(format!("ETag: {}", if same { "of the bytes" } else { "of the version" }));
    if !there && lines.iter().any(|line| line == "DELETE If-Match: obeyed") {
        return Err("DELETE If-Match was refused, but the object is gone".into());
    }
    Ok(lines.join("\n"))
}

async fn record(store: &dyn Store) -> Result<Record, String> {
    let got = store.get(KEY.into(), None).await.map_err(text)?.ok_or("there is no disk")?;
    Record::decode(&got.bytes)
}

async fn count(store: &dyn Store) -> Result<String, String> {
    let record = record(store).await?;
    let mut found = 0;
    for index in 0..record.size_bytes / record.object_bytes {
        found += u64::from(store.head(key(index)).await.map_err(text)?.is_some());
    }
    Ok(found.to_string())
}

async fn lay(store: &dyn Store, path: &str) -> Result<String, String> {
    let record = record(store).await?;
    let file = std::fs::File::create(path).map_err(|error| format!("{path}: {error}"))?;
    file.set_len(record.size_bytes).map_err(|error| format!("{path}: {error}"))?;
    let mut found = 0;
    for index in 0..record.size_bytes / record.object_bytes {
        if let Some(got) = store.get(key(index), None).await.map_err(text)? {
            let at = index * record.object_bytes;
            file.write_all_at(&got.bytes, at).map_err(|error| format!("{path}: {error}"))?;
            found += 1;
        }
    }
    Ok(found.to_string())
}
