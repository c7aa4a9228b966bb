//! A store in the simulator: answers are lost, requests arrive late, are refused, or read an earlier version.

use bytes::Bytes;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::lock::Mutex;
use weir_machine::{Clock, Nanos, Tasks};
use weir_object_store::store::{Answer, Condition, Etag, Fetched, Store, StoreError};
use weir_sim::Rng;

/// How a bucket behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Of 100 requests, how many have a fault.
    pub faults: u64,
    /// Tags depend on the bytes alone; otherwise each version has its own.
    pub tags_are_digests: bool,
    /// How late a request may arrive at most.
    pub latest: Duration,
}

#[derive(Clone)]
struct Version {
    bytes: Bytes,
    etag: Etag,
}

#[derive(Default)]
struct Objects {
    now: BTreeMap<String, Version>,
    /// The version before, which reads of that client may see until that time.
    before: BTreeMap<String, (Option<Version>, u64, Nanos)>,
    clients: u64,
    versions: u64,
    /// Every request is answered with 503 until then.
    throttled_until: Nanos,
    faults: Faults,
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Answers that never came: of changes that were executed, and of reads.
    pub lost: u64,
    /// Changes that were executed after their sender had given up.
    pub late: u64,
    /// Requests refused with 503 and not executed.
    pub refused: u64,
    /// Changes answered with 500 that were executed.
    pub refused_but_done: u64,
    /// Requests answered after seconds.
    pub slow: u64,
    /// Requests that the store refused while it throttled all requests.
    pub throttled: u64,
    /// Conditions that were not met.
    pub unmet: u64,
    /// Reads of an earlier version.
    pub stale: u64,
}

impl Faults {
    /// Adds those of another history.
    pub fn add(&mut self, other: &Faults) {
        self.lost += other.lost;
        self.late += other.late;
        self.refused += other.refused;
        self.refused_but_done += other.refused_but_done;
        self.slow += other.slow;
        self.throttled += other.throttled;
        self.unmet += other.unmet;
        self.stale += other.stale;
    }

    /// Panics if a kind of fault did not happen.
    pub fn assert_all_occurred(&self) {
        let Faults { lost, late, refused, refused_but_done, slow, throttled, unmet, stale } = *self;
        let all = [lost, late, refused, refused_but_done, slow, throttled, unmet, stale];
        assert!(all.iter().all(|count| *count > 0), "a kind of fault did not happen: {self:?}");
    }
}

/// A bucket, shared by its clients.
pub struct Bucket {
    objects: Mutex<Objects>,
    rng: Mutex<Rng>,
    behaviour: Behaviour,
    clock: Clock,
    tasks: Tasks,
}

/// Whether a client's requests go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Requests go out.
    Running,
    /// Requests wait: the process is stopped.
    Paused,
    /// The process is dead: no request goes out, and no answer comes back.
    Dead,
}

/// A process's access to a bucket.
pub struct Client {
    number: u64,
    bucket: Arc<Bucket>,
    power: Arc<Mutex<Power>>,
}

/// Fate of a request.
enum Fate {
    Answered,
    AnswerLost,
    Late(Duration),
    Refused,
    RefusedButDone,
    /// The store repeats a change by itself, and answers with the outcome of the second execution.
    Repeated,
    Slow(Duration),
    Throttled,
}

/// Longest time of a slow answer: beyond the limit of a request of these tests, 5 s.
const SLOWEST_MS: u64 = 6000;
/// Longest time for which the store throttles all requests.
const THROTTLED_MS: u64 = 3000;

impl Bucket {
    pub fn new(rng: Rng, behaviour: Behaviour, clock: Clock, tasks: Tasks) -> Arc<Self> {
        Arc::new(Bucket { objects: Mutex::default(), rng: Mutex::new(rng), behaviour, clock, tasks })
    }

    pub fn client(self: &Arc<Self>) -> Client {
        let number = {
            let mut objects = self.objects.lock();
            objects.clients += 1;
            objects.clients
        };
        Client { number, bucket: self.clone(), power: Arc::new(Mutex::new(Power::Running)) }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock())
    }

    /// The faults so far.
    pub fn faults(&self) -> Faults {
        self.objects.lock().faults
    }

    /// The fate of the next request. One fault of a hundred begins a time in which all requests are throttled.
    fn fate(&self) -> Fate {
        let now = self.clock.now();
        let latest_ms = self.behaviour.latest.as_millis() as u64;
        let drawn = self.draw(|rng| match rng.below(100) {
            n if n >= self.behaviour.faults => Fate::Answered,
            _ => match rng.below(7) {
                0 => Fate::AnswerLost,
                1 | 2 => Fate::Late(Duration::from_millis(rng.below(latest_ms))),
                3 => Fate::Refused,
                4 => Fate::Repeated,
                5 => Fate::Slow(Duration::from_millis(1000 + rng.below(SLOWEST_MS - 1000))),
                _ => Fate::RefusedButDone,
            },
        });
        let throttles = self.behaviour.faults > 0 && self.draw(|rng| rng.chance(1, 300));
        let throttled_ms = self.draw(|rng| rng.below(THROTTLED_MS));
        let mut objects = self.objects.lock();
        if throttles {
            objects.throttled_until = now + Duration::from_millis(throttled_ms);
        }
        let fate = if objects.throttled_until > now { Fate::Throttled } else { drawn };
        let faults = &mut objects.faults;
        match fate {
            Fate::Answered | Fate::Late(_) | Fate::Repeated => {}
            Fate::AnswerLost => faults.lost += 1,
            Fate::Refused => faults.refused += 1,
            Fate::RefusedButDone => faults.refused_but_done += 1,
            Fate::Slow(_) => faults.slow += 1,
            Fate::Throttled => faults.throttled += 1,
        }
        fate
    }

    async fn delay(&self) {
        let ms = self.draw(|rng| 1 + rng.below(60));
        self.clock.sleep(Duration::from_millis(ms)).await;
    }

    /// Executes a change: a PUT, or a DELETE without bytes.
    fn change(
        &self,
        client: u64,
        key: &str,
        body: Option<Bytes>,
        condition: &Condition,
    ) -> Result<Option<Etag>, StoreError> {
        let now = self.clock.now();
        let stale_ms = self.draw(|rng| if rng.chance(3, 4) { 200 + rng.below(3000) } else { 0 });
        let mut objects = self.objects.lock();
        let old = objects.now.get(key).cloned();
        let is_met = match condition {
            Condition::Missing => old.is_none(),
            Condition::Is(etag) => old.as_ref().is_some_and(|old| old.etag == *etag),
            Condition::Any => true,
        };
        if !is_met {
            objects.faults.unmet += 1;
            // After a refused condition, reads of the same client may show the version before for a while.
            if let Some((_, of, until)) = objects.before.get_mut(key) {
                *of = client;
                *until = now + Duration::from_millis(stale_ms);
            }
            return Err(StoreError::Precondition);
        }
        objects.versions += 1;
        let number = objects.versions;
        let etag = body.as_ref().map(|bytes| {
            let digest =
                bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |d, b| (d ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
            let unique = if self.behaviour.tags_are_digests { 0 } else { number };
            Etag::new(format!("{digest:x}-{unique}"))
        });
        match (body, &etag) {
            (Some(bytes), Some(etag)) => drop(objects.now.insert(key.into(), Version { bytes, etag: etag.clone() })),
            _ => drop(objects.now.remove(key)),
        }
        objects.before.insert(key.into(), (old, client, now));
        Ok(etag)
    }

    /// Puts an object at once.
    pub fn set(&self, key: &str, bytes: Bytes) {
        self.change(0, key, Some(bytes), &Condition::Any).expect("no condition");
    }

    fn read(&self, client: u64, key: &str) -> Option<Version> {
        let wants_stale = self.draw(|rng| rng.chance(1, 2));
        let mut objects = self.objects.lock();
        let stale = objects
            .before
            .get(key)
            .filter(|(_, of, until)| *of == client && *until > self.clock.now() && key.len() == 16);
        match stale {
            Some((before, ..)) if wants_stale => {
                let before = before.clone();
                objects.faults.stale += 1;
                before
            }
            _ => objects.now.get(key).cloned(),
        }
    }
}

impl Client {
    /// The switch of this client.
    pub fn power(&self) -> Arc<Mutex<Power>> {
        self.power.clone()
    }

    async fn pass(&self) {
        loop {
            let power = *self.power.lock();
            match power {
                Power::Running => return,
                Power::Paused => self.bucket.clock.sleep(Duration::from_millis(100)).await,
                Power::Dead => std::future::pending().await,
            }
        }
    }

    /// Sends a change, which is executed whether its sender waits or not.
    async fn change(&self, key: String, body: Option<Bytes>, condition: Condition) -> Result<Option<Etag>, StoreError> {
        self.pass().await;
        let bucket = self.bucket.clone();
        let client = self.number;
        let fate = bucket.fate();
        let (done, answer) = oneshot::channel();
        drop(self.bucket.tasks.spawn(async move {
            bucket.delay().await;
            let answered = match fate {
                Fate::Answered => Some(bucket.change(client, &key, body, &condition)),
                Fate::AnswerLost => {
                    let _ = bucket.change(client, &key, body, &condition);
                    None
                }
                Fate::Late(delay) => {
                    bucket.clock.sleep(delay).await;
                    if bucket.change(client, &key, body, &condition).is_ok() {
                        bucket.objects.lock().faults.late += 1;
                    }
                    None
                }
                Fate::Repeated => {
                    let _ = bucket.change(client, &key, body.clone(), &condition);
                    Some(bucket.change(client, &key, body, &condition))
                }
                Fate::Slow(delay) => {
                    bucket.clock.sleep(delay).await;
                    Some(bucket.change(client, &key, body, &condition))
                }
                Fate::Refused | Fate::Throttled => Some(Err(StoreError::Unknown("status 503".into()))),
                Fate::RefusedButDone => {
                    let _ = bucket.change(client, &key, body, &condition);
                    Some(Err(StoreError::Unknown("status 500".into())))
                }
            };
            bucket.delay().await;
            match answered {
                Some(answered) => drop(done.send(answered)),
                // The connection stays open without an answer.
                None => {
                    bucket.clock.sleep(Duration::from_secs(1000)).await;
                    drop(done);
                }
            }
        }));
        let answer = answer.await.unwrap_or(Err(StoreError::Unknown("cut".into())));
        self.pass().await;
        answer
    }

    async fn look(&self, key: String) -> Result<Option<Version>, StoreError> {
        self.pass().await;
        self.bucket.delay().await;
        let answer = match self.bucket.fate() {
            Fate::Answered | Fate::Late(_) | Fate::Repeated => Ok(self.bucket.read(self.number, &key)),
            Fate::Slow(delay) => {
                self.bucket.clock.sleep(delay).await;
                Ok(self.bucket.read(self.number, &key))
            }
            Fate::AnswerLost => std::future::pending().await,
            Fate::Refused | Fate::RefusedButDone | Fate::Throttled => Err(StoreError::Unknown("status 503".into())),
        };
        self.pass().await;
        answer
    }
}

impl Store for Client {
    fn place(&self, key: &str) -> String {
        format!("sim://bucket/{key}")
    }

    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag> {
        Box::pin(async move {
            let etag = self.change(key, Some(body), condition).await?;
            etag.ok_or_else(|| StoreError::Unknown("no tag".into()))
        })
    }

    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>> {
        Box::pin(async move {
            let version = self.look(key).await?;
            Ok(version.map(|Version { bytes, etag }| {
                let len = bytes.len() as u64;
                let range = range.unwrap_or(0..len);
                let bytes = bytes.slice(range.start.min(len) as usize..range.end.min(len) as usize);
                Fetched { bytes, etag }
            }))
        })
    }

    fn head(&self, key: String) -> Answer<'_, Option<Etag>> {
        Box::pin(async move { Ok(self.look(key).await?.map(|version| version.etag)) })
    }

    fn delete(&self, key: String, etag: Etag) -> Answer<'_, ()> {
        Box::pin(async move { self.change(key, None, Condition::Is(etag)).await.map(drop) })
    }
}
