//! Changes of one object: PUT and DELETE until their outcome is known, and the loading of whole objects.

use crate::core::{Bug, Core, key};
use crate::object::{Known, Unanswered};
use crate::requests::Attempts;
use crate::store::{Condition, Etag, Fetched, StoreError};
use bytes::Bytes;
use weir_machine::invariant;

/// Why an operation on an object failed: with its place.
pub(crate) type Failed = String;

/// Result of a look at the store after an unclear answer.
enum Look {
    /// The object has these bytes: the request was executed.
    Done(Etag),
    /// The next request must expect this.
    Expect(Known),
}

impl Core {
    /// Writes what is gathered of an object, and returns when the store has it.
    ///
    /// # Errors
    /// The place and the reason; what was written stays gathered.
    pub(crate) async fn settle(&self, index: u64) -> Result<(), Failed> {
        let turns = self.state().turns(index);
        let _turn = turns.change.lock().await;
        let Ok(_permit) = self.changing.acquire().await else { return Err(self.at(index, "the disk is closed")) };
        let mut attempts = self.requests.attempts(self.settings.deadline);
        let (image, known) = loop {
            {
                let mut state = self.state();
                let object_bytes = self.object_bytes;
                let taken = state.change(index, |object| {
                    object.is_scheduled = false;
                    if object.patches.is_empty() {
                        return Some(None);
                    }
                    let is_whole = object.patches.cover(0, object_bytes as usize);
                    if !is_whole && object.base().is_none() && object.known != Known::Missing {
                        return None;
                    }
                    let image = object.image(object.base(), object_bytes);
                    object.patches = Default::default();
                    object.flying = Some(image.clone());
                    object.version += 1;
                    Some(Some((image, object.known.clone())))
                });
                match taken {
                    Some(None) => return Ok(()),
                    Some(Some(taken)) => break taken,
                    None => {}
                }
            }
            self.load(index).await?;
        };
        invariant!(image.len() as u64 == self.object_bytes, "an object is written with another size");
        match self.put(index, &image, known, &mut attempts).await {
            Ok(etag) => {
                let mut state = self.state();
                state.change(index, |object| {
                    object.flying = None;
                    object.known = Known::Is(etag);
                    object.is_own = true;
                    object.version += 1;
                });
                state.keep(index, image, self.settings.cache_bytes);
                state.shrink(self.clock.now());
                Ok(())
            }
            Err(why) => {
                self.put_back(index, image);
                Err(self.at(index, why))
            }
        }
    }

    /// Puts an object until the store has it.
    async fn put(
        &self,
        index: u64,
        image: &Bytes,
        mut known: Known,
        attempts: &mut Attempts<'_>,
    ) -> Result<Etag, Failed> {
        loop {
            self.may_change(attempts).await?;
            let condition = match &known {
                Known::Unknown | Known::Missing => Condition::Missing,
                Known::Is(etag) => Condition::Is(etag.clone()),
            };
            let error = match self.requests.put(&key(index), image.clone(), condition).await {
                Ok(etag) => match self.outlive(index, &etag, attempts).await? {
                    None => return Ok(etag),
                    Some(changed) => {
                        known = changed;
                        continue;
                    }
                },
                Err(error) => error,
            };
            if self.has(Bug::RetriesWithoutEtag) && error.is_temporary() {
                attempts.again(error).await?;
                match self.requests.put(&key(index), image.clone(), Condition::Any).await {
                    Ok(etag) => return Ok(etag),
                    Err(_) => continue,
                }
            }
            let is_clear = error == StoreError::Precondition && known == Known::Unknown;
            if error.is_temporary() {
                self.remember_unanswered(index, if known == Known::Unknown { Known::Missing } else { known.clone() });
            }
            if is_clear {
                // The first PUT of an object that was never looked at guesses that there is none.
                self.requests.counters.retried();
            } else {
                attempts.again(error).await?;
            }
            match self.look(index, image, &known, attempts).await? {
                Look::Done(etag) => match self.outlive(index, &etag, attempts).await? {
                    None => return Ok(etag),
                    Some(changed) => known = changed,
                },
                Look::Expect(next) => known = next,
            }
        }
    }

    /// Whether the lease permits a change.
    async fn may_change(&self, attempts: &Attempts<'_>) -> Result<(), Failed> {
        let Some(lease) = &self.lease else { return Err("the disk is open for reading only".into()) };
        if self.has(Bug::IgnoresLease) {
            return Ok(());
        }
        lease.valid(attempts.deadline()).await
    }

    fn remember_unanswered(&self, index: u64, base: Known) {
        if self.has(Bug::ForgetsUnanswered) {
            return;
        }
        let life = self.requests.request_life().unwrap_or(self.settings.request_life);
        let until = self.clock.now() + life;
        self.state().change(index, |object| object.unanswered.push(Unanswered { base, until }));
    }

    /// Waits until no unanswered request can change an object with this tag. Returns the state of the object if one has.
    async fn outlive(&self, index: u64, etag: &Etag, attempts: &mut Attempts<'_>) -> Result<Option<Known>, Failed> {
        let now = self.clock.now();
        let is = Known::Is(etag.clone());
        let Some(until) = self.state().change(index, |object| object.threat_to(&is, now)) else { return Ok(None) };
        if until > attempts.deadline() {
            let left = until.since(now).as_secs();
            return Err(format!("an earlier request without an answer may still change the object, for {left} s"));
        }
        self.clock.sleep_until(until).await;
        let found = self.ask(index, attempts).await?;
        Ok((found != is).then_some(found))
    }

    /// Asks for the state of an object until there is an answer.
    async fn ask(&self, index: u64, attempts: &mut Attempts<'_>) -> Result<Known, Failed> {
        loop {
            match self.requests.head(&key(index)).await {
                Ok(etag) => return Ok(etag.map_or(Known::Missing, Known::Is)),
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    /// Looks at an object after a PUT of `image` whose outcome is not known.
    async fn look(
        &self,
        index: u64,
        image: &Bytes,
        known: &Known,
        attempts: &mut Attempts<'_>,
    ) -> Result<Look, Failed> {
        let found = self.ask(index, attempts).await?;
        if found == *known || *known == Known::Unknown {
            return Ok(Look::Expect(found));
        }
        let Some(got) = self.fetch(index, None, attempts).await? else { return Ok(Look::Expect(Known::Missing)) };
        if got.bytes == *image {
            return Ok(Look::Done(got.etag));
        }
        // Others' bytes: a late request, if the disk is still ours.
        if !self.has(Bug::IgnoresLease)
            && let Some(lease) = &self.lease
        {
            lease.confirm().await?;
        }
        tracing::debug!(object = self.requests.place(&key(index)), "an unexpected version is written over");
        Ok(Look::Expect(Known::Is(got.etag)))
    }

    /// Reads an object or a range of it until there is an answer.
    pub(crate) async fn fetch(
        &self,
        index: u64,
        range: Option<std::ops::Range<u64>>,
        attempts: &mut Attempts<'_>,
    ) -> Result<Option<Fetched>, Failed> {
        loop {
            match self.requests.get(&key(index), range.clone()).await {
                Ok(got) => return Ok(got),
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    /// Whether what a read found is what is known. A store that answers with an earlier version is asked again.
    ///
    /// # Errors
    /// The object has another version than this process has written.
    pub(crate) async fn accept(&self, index: u64, found: &Known, attempts: &mut Attempts<'_>) -> Result<bool, Failed> {
        let Some(lease) = &self.lease else { return Ok(true) };
        let (known, is_own) = self.state().change(index, |object| (object.known.clone(), object.is_own));
        if known == Known::Unknown || known == *found {
            return Ok(true);
        }
        let why = "the object has another version than expected";
        match attempts.again(StoreError::Unknown(why.into())).await {
            Ok(()) => Ok(false),
            Err(why) if is_own => Err(why),
            Err(_) => {
                // A late request of a former holder, which changes only what was free.
                lease.confirm().await?;
                self.learn(index, found.clone());
                Ok(true)
            }
        }
    }

    /// Reads a whole object into memory, or learns that there is none.
    ///
    /// # Errors
    /// The place and the reason.
    pub(crate) async fn load(&self, index: u64) -> Result<(), Failed> {
        let turns = self.state().turns(index);
        let _turn = turns.load.lock().await;
        let mut attempts = self.requests.attempts(self.settings.deadline);
        loop {
            let version = {
                let mut state = self.state();
                match state.change(index, |object| {
                    let is_known = object.base().is_some() || (object.known == Known::Missing && self.lease.is_some());
                    (!is_known).then_some(object.version)
                }) {
                    None => return Ok(()),
                    Some(version) => version,
                }
            };
            let got = self.fetch(index, None, &mut attempts).await.map_err(|why| self.at(index, why))?;
            let found = got.as_ref().map_or(Known::Missing, |got| Known::Is(got.etag.clone()));
            if !self.accept(index, &found, &mut attempts).await.map_err(|why| self.at(index, why))? {
                continue;
            }
            let bytes = match got {
                Some(got) if got.bytes.len() as u64 == self.object_bytes => got.bytes,
                Some(got) => {
                    let why = format!("{} bytes instead of {}", got.bytes.len(), self.object_bytes);
                    return Err(self.at(index, why));
                }
                // For a reader, what is missing may be written by another process later.
                None if self.lease.is_none() => Bytes::from(vec![0; self.object_bytes as usize]),
                None => Bytes::new(),
            };
            let mut state = self.state();
            let is_new = state.change(index, |object| {
                let is_new = object.version == version || object.known == found;
                if is_new && self.lease.is_some() {
                    object.is_own &= object.known == found;
                    object.known = found.clone();
                    object.version += 1;
                }
                is_new && object.flying.is_none()
            });
            if is_new {
                if !bytes.is_empty() {
                    state.keep(index, bytes, self.settings.cache_bytes);
                }
                return Ok(());
            }
        }
    }

    /// Deletes an object that was discarded as a whole and not written since. Leaves it if a request for it is unanswered.
    ///
    /// # Errors
    /// The place and the reason.
    pub(crate) async fn remove(&self, index: u64) -> Result<(), Failed> {
        let turns = self.state().turns(index);
        let _turn = turns.change.lock().await;
        let Ok(_permit) = self.changing.acquire().await else { return Err(self.at(index, "the disk is closed")) };
        let mut attempts = self.requests.attempts(self.settings.deadline);
        let object_bytes = self.object_bytes as u32;
        let now = self.clock.now();
        let known = {
            let mut state = self.state();
            let (is_free, known) = state.change(index, |object| {
                let is_free =
                    object.discarded.cover(object_bytes) && object.patches.is_empty() && !object.is_uncertain(now);
                (is_free, object.known.clone())
            });
            if !is_free || known == Known::Missing {
                return Ok(());
            }
            state.forget(index);
            known
        };
        let at = |why: String| self.at(index, why);
        self.may_change(&attempts).await.map_err(at)?;
        let known = match known {
            Known::Unknown => self.ask(index, &mut attempts).await.map_err(at)?,
            known => known,
        };
        let Known::Is(etag) = known else {
            self.learn(index, Known::Missing);
            return Ok(());
        };
        match self.requests.delete(&key(index), etag.clone()).await {
            Ok(()) => self.learn(index, Known::Missing),
            // It is another version, which the next write or trim asks for.
            Err(StoreError::Precondition) => self.learn(index, Known::Unknown),
            Err(error @ (StoreError::Refused(_) | StoreError::PastEnd)) => {
                return Err(self.at(index, error.to_string()));
            }
            Err(StoreError::Unknown(why)) => {
                tracing::debug!(object = self.requests.place(&key(index)), why, "a deletion has no answer");
                self.remember_unanswered(index, Known::Is(etag));
                self.learn(index, Known::Unknown);
            }
        }
        Ok(())
    }
}
