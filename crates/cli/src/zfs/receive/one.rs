//! Receives the stream of one snapshot (OpenZFS `lib/libzfs/libzfs_sendrecv.c`, `zfs_receive_one`).

use super::destination::find_guid;
use super::overrides::{Receiver, kind_of, moves_mounts, without_key_location};
use super::{ReceiveError, Receiving, failed};
use crate::call::outln;
use crate::failure::Failure;
use crate::secrets::{EncryptionArgs, KeyPrompt};
use crate::writable::refused;
use weir_admin::{Change, HeldSnapshot, Host, MountChange, MountEffect};
use weir_dmu::ObjectError;
use weir_dsl::props::{ZfsProp, human_size};
use weir_dsl::redaction::redaction_of;
use weir_dsl::resume::resume_state;
use weir_dsl::sync_tasks::receive::{Receive, Resume};
use weir_dsl::sync_tasks::receive_properties::PropertyError;
use weir_dsl::sync_tasks::{DslError, Setting};
use weir_dsl::{RawKey, ResumeState, StreamForms};
use weir_engine::receives::ReceiveSession;
use weir_engine::{Crypt, Encryption};
use weir_format::stream::{Begin, Record, feature};
use weir_format::{NvList, ObjectId, ObjsetKind};
use weir_machine::Request;
use weir_pool::PoolError;
use weir_send::package::{Index, PackagedDataset, PackagedSnapshot};
use weir_send::plan::{IGNORES_CASE, IS_CLONE, KEY_DATA, RESUME_OBJECT, RESUME_OFFSET};
use weir_send::{Applier, StreamInput};

/// Facts about a stream that are known before its first record is applied.
struct Known {
    doing: &'static str,
    /// Whether the stream makes a dataset.
    is_new: bool,
    sent: String,
    kind: ObjsetKind,
    receive: Receive,
    dataset: Option<PackagedDataset>,
    snapshot: Option<PackagedSnapshot>,
    /// Bytes of the stream that were received before it was interrupted.
    bytes_before: u64,
}

impl Receiving<'_> {
    /// Receives the stream that `begin` began.
    pub(super) async fn one(&mut self, begin: Begin, list: &[u8], input: &mut StreamInput<'_>) -> Result<(), Failure> {
        let known = self.known(&begin, list).await?;
        let doing = known.doing;
        if self.args.dry_run && !self.check_destination(&known).await? {
            return skip(input).await.map_err(|error| failed(doing, error));
        }
        if self.args.verbose {
            let how = if self.args.dry_run { "would receive" } else { "receiving" };
            let what = if begin.from_guid == 0 { "full" } else { "incremental" };
            outln!(self.call, "{how} {what} stream of {} into {}", known.sent, known.receive.snapshot);
        }
        let (name, _) = known.receive.names();
        self.top.get_or_insert_with(|| name.to_owned());
        if self.args.dry_run {
            return skip(input).await.map_err(|error| failed(doing, error));
        }
        let started = self.pool.machine.clock.now();
        let bytes_before = input.total_bytes();
        let engine = self.pool.engine.clone();
        let encryption = self.encryption(&known).await?;
        let session = match engine.receives().begin(&self.rq, known.receive.clone(), encryption).await {
            Ok(session) => session,
            Err(error) => {
                if self.is_there_already(&error, &known.receive).await? {
                    if self.args.verbose {
                        outln!(self.call, "snap {} already exists; ignoring", known.receive.snapshot);
                    }
                    return skip(input).await.map_err(|error| failed(doing, error));
                }
                return Err(refused(doing, error));
            }
        };
        let applier = Applier::new(session.set.clone(), begin);
        let mut applier = applier.noting(session.points.clone(), known.bytes_before);
        if let Err(error) = apply(&self.rq, &mut applier, input).await {
            let error = of_destination(error, known.receive.names().0);
            if session.can_resume() {
                engine.receives().suspend(session).await.map_err(|error| refused(doing, error))?;
                return Err(self.interrupted(&known, error).await);
            }
            engine.receives().abandon(session).await.map_err(|error| refused(doing, error))?;
            return Err(failed(doing, error));
        }
        let not_set = self.end(&known, session).await?;
        self.report(&known, not_set);
        self.finish_snapshot(&known).await?;
        self.record()?;
        if self.args.verbose {
            let seconds = self.pool.machine.clock.now().since(started).as_secs_f64().max(1e-9);
            let bytes = input.total_bytes() - bytes_before;
            let rate = human_size((bytes as f64 / seconds) as u64);
            outln!(self.call, "received {} stream in {seconds:.2} seconds ({rate}/sec)", human_size(bytes));
        }
        Ok(())
    }

    /// Makes the checks of the destination in a dry run, as far as an earlier stream of the package would not change it. Returns
    /// whether the stream would be received: not one whose snapshot is there already.
    async fn check_destination(&mut self, known: &Known) -> Result<bool, Failure> {
        let (name, _) = known.receive.names();
        let is_below = |top: &str| name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let follows = self.package.is_recursive && self.package.from.is_some();
        if follows || self.dry_run.has_above(name) {
            self.dry_run.add(&known.receive.snapshot, known.receive.to_guid);
            return Ok(true);
        }
        let makes_parents = self.args.without_pool && known.is_new && is_below(self.target);
        match self.pool.engine.receives().check(known.receive.clone()).await {
            Ok(()) => {}
            Err(PoolError::Dsl(DslError::NoParent { .. })) if makes_parents => {}
            Err(error) => {
                if !self.is_there_already(&error, &known.receive).await? {
                    return Err(refused(known.doing, error));
                }
                self.say(&format!("snap {} already exists; ignoring", known.receive.snapshot));
                return Ok(false);
            }
        }
        self.dry_run.add(&known.receive.snapshot, known.receive.to_guid);
        Ok(true)
    }

    /// Finds the destination and the properties of a stream.
    async fn known(&mut self, begin: &Begin, list: &[u8]) -> Result<Known, Failure> {
        let resume = self.resume(begin, list)?;
        let continues = matches!(resume, Resume::Continue { .. });
        let has_origin = self.overrides.origin.is_some() || begin.flags & IS_CLONE != 0;
        let is_new = (begin.from_guid == 0 || has_origin) && !continues;
        let doing = match (continues, is_new) {
            (true, _) => "cannot receive resume stream",
            (false, true) => "cannot receive new filesystem stream",
            (false, false) => "cannot receive incremental stream",
        };
        let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
        let index = Index::new(&self.package.datasets);
        let packaged = index.get(begin.to_guid).map(|(dataset, snapshot)| (dataset.clone(), snapshot.clone()));
        let (dataset, snapshot) = packaged.unzip();
        let mut place = self.destination(&sent)?;
        let is_top = sent.split('@').next() == self.sent_top.as_deref();
        if is_new {
            let parent_from_guid = dataset.as_ref().map_or(0, |dataset| dataset.parent_from_guid);
            place = self.place_of_new(place, parent_from_guid).await?;
        } else if self.args.is_prefix() || !is_top {
            place = self.place_of_existing(place, begin.from_guid).await?;
        }
        let invalid = || {
            let why = format!("invalid record type: {:#x}", begin.objset_type);
            failed(doing, ReceiveError::Invalid(why))
        };
        let (kind, dataset_kind) = kind_of(begin.objset_type).ok_or_else(invalid)?;
        let origin = if continues { None } else { self.origin(begin, doing, &place).await? };
        let name = place.split('@').next().unwrap_or_default().to_owned();
        if self.args.without_pool && is_new && !self.args.dry_run {
            self.make_parents(&name).await?;
        }
        let stored = self.datasets(async |rq, dsl| match dsl.dir_named(&name) {
            Some(dir) => Ok(Some(dsl.stored(rq, dir).await?)),
            None => Ok(None),
        });
        let stored = stored.await?;
        let receiver = Receiver {
            name: &name,
            kind: dataset_kind,
            is_top: self.top.as_ref().is_none_or(|top| *top == name),
            is_recursive: self.has_list && self.package.is_recursive,
            stored: stored.as_deref(),
        };
        let of_stream = dataset.as_ref().and_then(|dataset| dataset.properties.as_deref()).map(without_key_location);
        let properties = self.overrides.apply(&receiver, of_stream, |line| self.warn(line))?;
        let receive = Receive {
            snapshot: place,
            to_guid: begin.to_guid,
            from_guid: begin.from_guid,
            creation_time_s: begin.creation_time_s,
            ignores_case: begin.flags & IGNORES_CASE != 0,
            kind,
            origin,
            force: self.args.force,
            properties,
            resume,
            raw: self.raw_key(begin, list, doing)?,
            features: weir_send::check::needed_features(begin),
            redaction: weir_send::check::redaction_of(begin, list).map_err(|error| failed(doing, error))?,
        };
        let bytes_before = self.bytes_before(&receive).await?;
        Ok(Known { doing, is_new, sent, kind, receive, dataset, snapshot, bytes_before })
    }

    /// The encryption of a new dataset: as the command line says; else none for a stream with properties, since that of an
    /// encrypted dataset would be raw, and the parent must have none; else that of the parent (OpenZFS `zfs_receive_one`).
    async fn encryption(&self, known: &Known) -> Result<Encryption, Failure> {
        let wanted = &self.overrides.encryption;
        let (name, _) = known.receive.names();
        let is_given = *wanted != EncryptionArgs::default();
        let is_top = self.top.as_deref() == Some(name);
        let makes_dataset = known.is_new && known.receive.origin.is_none();
        if is_given && !makes_dataset && !(self.has_list && self.package.is_recursive) {
            let why = "encryption properties cannot be set for incremental streams.";
            return Err(Failure::failed(format!("{}: {why}", known.doing)));
        }
        if is_given && makes_dataset && is_top {
            if wanted.reads_standard_input() {
                let why = "the stream is on standard input; give a keylocation of file://PATH";
                return Err(Failure::failed(format!("{}: {why}", known.doing)));
            }
            let encryption = wanted.encryption(KeyPrompt::Caller(self.call), &self.pool.machine, name).await;
            return encryption.map_err(|failure| Failure::failed(format!("{}: {failure}", known.doing)));
        }
        let is_raw = known.receive.raw.is_some();
        let is_plain =
            !is_raw && known.receive.properties.received.is_some() && !is_given && !self.overrides.inherits_encryption;
        let crypt = if is_plain { Crypt::Off } else { Crypt::Inherit };
        Ok(Encryption { crypt, root: None })
    }

    /// The key of a raw stream.
    fn raw_key(&self, begin: &Begin, list: &[u8], doing: &str) -> Result<Option<RawKey>, Failure> {
        if begin.features & feature::RAW == 0 {
            return Ok(None);
        }
        if self.overrides.encryption != EncryptionArgs::default() || self.overrides.inherits_encryption {
            let why = "encryption properties cannot be set or excluded for raw streams.";
            return Err(Failure::failed(format!("{doing}: {why}")));
        }
        let invalid = |why: String| failed(doing, ReceiveError::Invalid(why));
        let list = NvList::decode(list).map_err(|_| invalid("invalid stream (malformed nvlist)".into()))?;
        let key = list.get_list(KEY_DATA).ok_or_else(|| invalid("a raw stream without its key".into()))?;
        let key = RawKey::from_list(key);
        key.map(Some).map_err(|field| invalid(format!("the field {field} of the stream's key is not valid")))
    }

    /// Whether a stream is continued, or can be.
    fn resume(&self, begin: &Begin, list: &[u8]) -> Result<Resume, Failure> {
        if begin.features & feature::RESUMING == 0 {
            let forms = forms_of(begin.features);
            let sent_name = String::from_utf8_lossy(&begin.to_name).into_owned();
            return Ok(if self.args.resumable { Resume::Save { sent_name, forms } } else { Resume::Never });
        }
        let invalid = || failed("cannot receive resume stream", ReceiveError::Invalid("no point to resume at".into()));
        let list = NvList::decode(list).map_err(|_| invalid())?;
        match (list.get_u64(RESUME_OBJECT), list.get_u64(RESUME_OFFSET)) {
            (Some(object), Some(offset)) => Ok(Resume::Continue { object: ObjectId(object), offset }),
            _ => Err(invalid()),
        }
    }

    /// The state of an interrupted stream into a dataset.
    async fn state(&self, name: &str) -> Result<Option<ResumeState>, Failure> {
        self.datasets(async |rq, dsl| match dsl.dir_named(name) {
            Some(dir) => Ok(resume_state(dsl, rq, dir, &dsl.head(rq, dir).await?).await?.map(|(state, _)| state)),
            None => Ok(None),
        })
        .await
    }

    async fn bytes_before(&self, receive: &Receive) -> Result<u64, Failure> {
        match receive.resume {
            Resume::Continue { .. } => Ok(self.state(receive.names().0).await?.map_or(0, |state| state.bytes)),
            _ => Ok(0),
        }
    }

    /// The failure of a stream that can be continued.
    async fn interrupted(&self, known: &Known, error: ReceiveError) -> Failure {
        let failure = failed(known.doing, error);
        match self.state(known.receive.names().0).await {
            Ok(Some(state)) => {
                let line = format!(
                    "{failure}\nPartially received snapshot is saved.\nA resuming stream can be generated on the sending system by running:\n    zfs send -t {}",
                    state.to_token()
                );
                failure.saying(line)
            }
            _ => failure,
        }
    }

    /// The snapshot that a new dataset is a clone of.
    async fn origin(&self, begin: &Begin, doing: &str, place: &str) -> Result<Option<String>, Failure> {
        if let Some(origin) = &self.overrides.origin {
            if self.args.verbose {
                outln!(self.call, "using provided clone origin {origin}");
            }
            return Ok(Some(origin.clone()));
        }
        if begin.flags & IS_CLONE == 0 {
            return Ok(None);
        }
        let name = place.split('@').next().unwrap_or_default();
        let found = match self.dry_run.snapshot(begin.from_guid) {
            Some(snapshot) => Some(snapshot.clone()),
            None => self.datasets(async |rq, dsl| find_guid(rq, dsl, name, begin.from_guid).await).await?,
        };
        let why = || Failure::failed(format!("{doing}: local origin for clone {place} does not exist"));
        let found = found.ok_or_else(why)?;
        if self.args.verbose {
            outln!(self.call, "found clone origin {found}");
        }
        Ok(Some(found))
    }

    /// Whether a stream is refused because its snapshot exists.
    async fn is_there_already(&self, error: &PoolError, receive: &Receive) -> Result<bool, Failure> {
        if !matches!(error, PoolError::Dsl(DslError::Exists { .. } | DslError::Missing { .. })) {
            return Ok(false);
        }
        let (name, _) = receive.names();
        self.datasets(async |rq, dsl| match dsl.dir_named(name) {
            Some(dir) => {
                let list = dsl.snapshots(rq, dir).await?;
                Ok(list.snapshots.iter().any(|snapshot| snapshot.phys.guid == receive.to_guid))
            }
            None => Ok(false),
        })
        .await
    }

    /// Makes the received contents those of the dataset. Returns properties that could not be set.
    async fn end(&self, known: &Known, session: ReceiveSession) -> Result<Vec<PropertyError>, Failure> {
        let is_redacted = known.receive.redaction.redacted_for.is_some();
        let change = match (known.kind, session.is_new()) {
            // Redacted file systems are not mounted, unless they were redacted and mounted before.
            (ObjsetKind::Zfs, true) if is_redacted => None,
            (ObjsetKind::Zfs, false) if is_redacted && !self.was_redacted(known).await? => Some(MountChange::Forbidden),
            // It is mounted when the whole stream is received.
            (ObjsetKind::Zfs, true) => self.args.no_mount.then_some(MountChange::New),
            (ObjsetKind::Zfs, false) if moves_mounts(&known.receive.properties) => {
                Some(MountChange::Moved { to: None })
            }
            _ => None,
        };
        let doing = known.doing;
        let (name, _) = known.receive.names();
        let effect = change.map(|change| {
            let force = change == MountChange::Forbidden;
            MountEffect { name: name.to_owned(), recursive: false, change, force }
        });
        let leaves = self.args.no_mount;
        let suspended = match &effect {
            Some(effect) => {
                self.pool.prepare_mounts(effect, leaves).await.map_err(|refusal| refused(doing, refusal))?
            }
            None => Vec::new(),
        };
        let done = self.pool.engine.receives().end(session).await.map_err(|error| refused(doing, error));
        if let Some(effect) = &effect {
            let settled = self.pool.settle_mounts(effect, leaves, suspended).await;
            settled.map_err(|refusal| refused(doing, refusal))?;
        }
        done
    }

    /// Whether the destination is redacted before the stream is complete.
    async fn was_redacted(&self, known: &Known) -> Result<bool, Failure> {
        let (name, _) = known.receive.names();
        self.datasets(async |rq, dsl| match dsl.dir_named(name) {
            Some(dir) => Ok(redaction_of(dsl, rq, &dsl.head(rq, dir).await?).await?.is_some()),
            None => Ok(false),
        })
        .await
    }

    /// Says which properties could not be set; a quota that an earlier snapshot exceeds is not yet missed.
    fn report(&self, known: &Known, not_set: Vec<PropertyError>) {
        let (name, short) = known.receive.names();
        let is_last = !self.has_list || short == self.package.to;
        for (property, error) in not_set {
            if is_last || property != ZfsProp::RefQuota.name() {
                self.warn(&refused(&format!("cannot receive {property} property on {name}"), error).to_string());
            }
        }
    }

    /// Sets the properties and the holds of a received snapshot.
    async fn finish_snapshot(&mut self, known: &Known) -> Result<(), Failure> {
        let Some(packaged) = &known.snapshot else { return Ok(()) };
        debug_assert!(known.dataset.is_some(), "a snapshot of the package belongs to a dataset of it");
        let snapshot = &known.receive.snapshot;
        if let Some(values) = packaged.properties.as_ref().filter(|values| !values.is_empty()) {
            let settings: Vec<(String, Setting)> =
                values.iter().map(|(name, value)| (name.clone(), Setting::Received(value.clone()))).collect();
            let change = Change::Set { name: snapshot.clone(), settings, recursive: false };
            if let Err(refusal) = self.change(change).await {
                self.warn(&refused(&format!("cannot receive properties of {snapshot}"), refusal).to_string());
            }
        }
        if self.takes_holds {
            let tags = packaged.holds.iter().flatten();
            let holds: Vec<HeldSnapshot> =
                tags.map(|(tag, _)| HeldSnapshot { snapshot: snapshot.clone(), tag: tag.clone() }).collect();
            if !holds.is_empty()
                && let Err(refusal) = self.change(Change::Hold { holds, recursive: false }).await
            {
                self.warn(&refused(&format!("cannot receive holds of {snapshot}"), refusal).to_string());
            }
        }
        Ok(())
    }
}

/// Forms of blocks in a stream with these features.
fn forms_of(features: u64) -> StreamForms {
    StreamForms {
        large_blocks: features & feature::LARGE_BLOCKS != 0,
        embedded: features & feature::EMBED_DATA != 0,
        compressed: features & feature::COMPRESSED != 0,
        raw: features & feature::RAW != 0,
    }
}

/// The error in the words of those who know the destination by its name.
fn of_destination(error: ReceiveError, name: &str) -> ReceiveError {
    match error {
        ReceiveError::Object(ObjectError::Quota { .. }) => {
            ReceiveError::Unsupported(format!("destination {name} space quota exceeded"))
        }
        other => other,
    }
}

/// Applies records until END.
async fn apply(rq: &Request, applier: &mut Applier, input: &mut StreamInput<'_>) -> Result<(), ReceiveError> {
    loop {
        let received = input.next().await?.ok_or(ReceiveError::Truncated)?;
        if let Record::End { .. } = received.record {
            return Ok(());
        }
        applier.apply(rq, &received.record, received.payload).await?;
    }
}

/// Reads records until END.
async fn skip(input: &mut StreamInput<'_>) -> Result<(), ReceiveError> {
    loop {
        if let Record::End { .. } = input.next().await?.ok_or(ReceiveError::Truncated)?.record {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_that_of_the_destination() {
        let quota = ObjectError::Quota { objset: weir_format::ObjsetId(53), bytes: 4096 };
        let said = of_destination(quota.into(), "p/to").to_string();
        assert_eq!(said, "destination p/to space quota exceeded");
        assert_eq!(of_destination(ReceiveError::Truncated, "p/to").to_string(), "incomplete stream");
    }
}
