//! Test of a store when a disk is created: it must have conditional writes, since all that keeps old bytes away is built on
//! them. Some servers accept the conditions and ignore them.

use crate::requests::Requests;
use crate::store::{Condition, Etag, Fetched, StoreError};
use bytes::Bytes;
use std::time::Duration;

/// Abilities of a store beyond those that each must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The store deletes an object only with the tag that the request names, and no DELETE can meet later bytes: it is refused
    /// when it is late, or tags do not come back.
    pub conditional_delete: bool,
}

/// Limit of each step, with its repetitions.
const LIMIT: Duration = Duration::from_secs(30);

/// Tests the store with an object of its own, which is deleted again.
///
/// # Errors
/// One line: what the store lacks, or the failure.
pub async fn probe(requests: &Requests, nonce: u64) -> Result<Abilities, String> {
    let key = format!("weir-probe-{nonce:016x}");
    let place = requests.place(&key);
    let lacks = |what: &str| {
        let needs = "a disk needs PUT with If-None-Match and If-Match, and strong reads";
        format!("{place}: the store {what}; {needs}: docs/object-store.md lists servers that have them")
    };
    let failed = |error: StoreError| format!("{place}: {error}");
    let first = Bytes::from_static(b"first version");
    let second = Bytes::from_static(b"the second version");

    let etag = put(requests, &key, &first, Condition::Missing).await.map_err(failed)?;
    match put(requests, &key, &second, Condition::Missing).await {
        Err(StoreError::Precondition) => {}
        Ok(_) => return Err(lacks("ignores If-None-Match: it wrote over an object")),
        Err(error) => return Err(failed(error)),
    }
    match put(requests, &key, &second, Condition::Is(requests.never())).await {
        Err(StoreError::Precondition) => {}
        Ok(_) => return Err(lacks("ignores If-Match: it wrote over another version")),
        Err(error) => return Err(failed(error)),
    }
    let Some(got) = get(requests, &key, None).await.map_err(failed)? else {
        return Err(lacks("does not find an object that it has just written"));
    };
    if got.bytes != first || got.etag != etag || requests.head(&key).await.map_err(failed)? != Some(etag.clone()) {
        return Err(lacks("answers GET or HEAD with another tag or other bytes than PUT"));
    }
    let part = get(requests, &key, Some(6..13)).await.map_err(failed)?;
    if part.is_none_or(|part| part.bytes != first.slice(6..13) || part.etag != etag) {
        return Err(lacks("does not read ranges of objects"));
    }
    let newer = put(requests, &key, &second, Condition::Is(etag.clone())).await.map_err(failed)?;
    if newer == etag || get(requests, &key, None).await.map_err(failed)?.is_none_or(|got| got.etag != newer) {
        return Err(lacks("has the same tag for two versions"));
    }
    let deleted = requests.delete(&key, etag.clone()).await;
    let is_there = requests.head(&key).await.map_err(failed)? == Some(newer.clone());
    let mut last = newer;
    let mut conditional_delete = deleted == Err(StoreError::Precondition) && is_there;
    if conditional_delete && requests.deletes_late() {
        last = put(requests, &key, &first, Condition::Is(last)).await.map_err(failed)?;
        conditional_delete = last != etag;
        if !conditional_delete {
            tracing::warn!(
                place,
                "the store gives equal bytes the same tag: a late DELETE could meet them, so objects stay"
            );
        }
    }
    if is_there && let Err(error) = requests.delete(&key, last).await {
        tracing::warn!(place, %error, "the object of the test could not be deleted");
    }
    Ok(Abilities { conditional_delete })
}

/// A PUT that is repeated after an answer such as 503. The object is of this test alone, so one that is there already has its bytes.
async fn put(requests: &Requests, key: &str, body: &Bytes, condition: Condition) -> Result<Etag, StoreError> {
    let mut attempts = requests.attempts(LIMIT);
    loop {
        match requests.put(key, body.clone(), condition.clone()).await {
            Err(StoreError::Unknown(why)) => {
                attempts.again(StoreError::Unknown(why)).await.map_err(StoreError::Refused)?;
                if let Some(got) = get(requests, key, None).await?
                    && got.bytes == *body
                {
                    return Ok(got.etag);
                }
            }
            answer => return answer,
        }
    }
}

async fn get(
    requests: &Requests,
    key: &str,
    range: Option<std::ops::Range<u64>>,
) -> Result<Option<Fetched>, StoreError> {
    let mut attempts = requests.attempts(LIMIT);
    loop {
        match requests.get(key, range.clone()).await {
            Err(StoreError::Unknown(why)) => {
                attempts.again(StoreError::Unknown(why)).await.map_err(StoreError::Refused)?;
            }
            answer => return answer,
        }
    }
}
