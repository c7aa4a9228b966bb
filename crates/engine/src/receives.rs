//! Datasets that are received from streams (OpenZFS `dmu_recv_begin`, `dmu_recv_end`).
//!
//! ```text
//!   begin   sync task: the new dataset, or the clone %recv of the origin; its object set is open for writing
//!   …       the caller applies records to the set, each in transactions of its own
//!   end     sync task: the snapshot with the sender's GUID; the clone takes the dataset's place
//!   abandon sync task: what was received is destroyed
//!   suspend instead: it stays, with the state from which the stream can be continued (-s)
//! ```
//!
//! A process that ends in between leaves an inconsistent dataset. Nothing opens it, and the next stream that is received
//! into the same dataset destroys it first.

use super::closing::{self, close};
use super::datasets::policy_for;
use super::keys::{self, Encryption, KeyPlan};
use super::syncing::TxgSync;
use super::{Receives, open_set};
use std::sync::Arc;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::sync_tasks::receive::{self, CLONE, Receive, Receiving, Resume};
use weir_dsl::sync_tasks::receive_properties::{self, PropertyError, Stage};
use weir_dsl::sync_tasks::{DslError, receive_raw};
use weir_dsl::{Scope, SetKey};
use weir_format::ObjsetId;
use weir_format::zil::ZilHeader;
use weir_machine::Request;
use weir_pool::error::PoolError;
use weir_send::ResumePoints;

/// A dataset that is being received.
pub struct ReceiveSession {
    /// The object set that the stream's records are applied to.
    pub set: Arc<ObjectSet>,
    /// How far the stream is received, if that is kept.
    pub points: Option<Arc<ResumePoints>>,
    receive: Receive,
    receiving: Receiving,
    refused: Vec<PropertyError>,
}

impl ReceiveSession {
    /// Whether the stream makes a dataset.
    pub fn is_new(&self) -> bool {
        self.receiving.is_new
    }

    /// Whether the stream can be continued if it is interrupted.
    pub fn can_resume(&self) -> bool {
        self.receive.resume != Resume::Never
    }
}

impl Receives<'_> {
    /// Checks that a stream may be received, as [`Receives::begin`] does, and changes nothing.
    ///
    /// # Errors
    /// Errors of [`receive::check_begin`].
    pub async fn check(&self, receive: Receive) -> Result<(), PoolError> {
        let checked = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                if let Some(left) = receive::left_behind(&mut syncing.change, &receive).await?
                    && syncing.engine.sets.get(ObjsetId(left.created.dataset.0)).is_none()
                {
                    // It would be destroyed first.
                    return Ok(());
                }
                Ok(receive::check_begin(&mut syncing.change, &receive).await?)
            })
        });
        checked.await
    }

    /// Creates the dataset that a stream is applied to. The caller ends it with [`Receives::end`] or
    /// [`Receives::abandon`].
    ///
    /// # Errors
    /// Errors of [`receive::check_begin`].
    pub async fn begin(
        &self,
        rq: &Request,
        receive: Receive,
        encryption: Encryption,
    ) -> Result<ReceiveSession, PoolError> {
        let wanted = receive.clone();
        let (set, receiving, refused) = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if let Some(left) = receive::left_behind(&mut syncing.change, &wanted).await? {
                        let is_open = syncing.engine.sets.get(ObjsetId(left.created.dataset.0)).is_some();
                        if !is_open {
                            receive::abandon(&mut syncing.change, wanted.names().0, &left).await?;
                        }
                    }
                    receive::check_begin(&mut syncing.change, &wanted).await?;
                    let (key, plan) = key_for(syncing, &wanted, &encryption).await?;
                    let receiving = receive::begin(&mut syncing.change, &wanted).await?;
                    let key = match plan {
                        Some(plan) => Some(keys::encrypt(syncing, receiving.created, &plan).await?),
                        None => key,
                    };
                    if syncing.engine.sets.get(ObjsetId(receiving.created.dataset.0)).is_some() {
                        let name = wanted.names().0;
                        return Err(DslError::busy(name, "another stream is being received").into());
                    }
                    let mut refused = Vec::new();
                    if receiving.is_new && !receiving.continues {
                        let (name, _) = wanted.names();
                        let change = &mut syncing.change;
                        refused = receive_properties::apply(change, name, &wanted.properties, Stage::New).await?;
                    }
                    let set = open(syncing, &wanted, &receiving, key).await?;
                    syncing.add_set(set.clone());
                    Ok((set, receiving, refused))
                })
            })
            .await?;
        let (name, _) = receive.names();
        let at = if receiving.is_new { name.to_owned() } else { format!("{name}/{CLONE}") };
        let mut points = None;
        if receive.resume != Resume::Never {
            let of_set = Arc::new(ResumePoints::default());
            self.engine.sets.update(set.id(), |open| open.received = Some(of_set.clone()));
            points = Some(of_set);
        }
        let session = ReceiveSession { set, points, receive, receiving, refused };
        match self.adopt_properties(rq, &at, &session.set).await {
            Ok(()) => Ok(session),
            Err(error) => {
                self.abandon(session).await?;
                Err(error)
            }
        }
    }

    /// Applies the properties of the dataset to the writing of its blocks.
    async fn adopt_properties(&self, rq: &Request, name: &str, set: &ObjectSet) -> Result<(), PoolError> {
        let _mos_locked = self.engine.lock_mos(rq, name).await;
        let dsl = self.engine.live_dsl(rq, Scope::Path(name)).await?;
        match dsl.dir_named(name) {
            Some(dir) => open_set::renew_policy(rq, &dsl, dir, set).await,
            None => Ok(()),
        }
    }

    /// Makes the received contents those of the dataset, with the stream's snapshot. Returns properties that could not be
    /// set.
    ///
    /// # Errors
    /// Errors of [`receive::check_end`], busy while clients use the dataset; then what was received is destroyed.
    pub async fn end(&self, session: ReceiveSession) -> Result<Vec<PropertyError>, PoolError> {
        let name = session.receive.names().0.to_owned();
        let refused = match self.finish(&session, &name).await {
            Ok(refused) => refused,
            Err(error) => {
                self.abandon(session).await?;
                return Err(error);
            }
        };
        self.engine.changed.note(&name);
        self.engine.changed.note(&session.receive.snapshot);
        let scope = match session.receive.properties.is_empty() {
            true => Scope::Path(&name),
            false => Scope::Subtree(&name),
        };
        self.engine.properties().renew(&Request::internal("receive"), scope).await?;
        Ok(session.refused.into_iter().chain(refused).collect())
    }

    async fn finish(&self, session: &ReceiveSession, name: &str) -> Result<Vec<PropertyError>, PoolError> {
        let ReceiveSession { receive, receiving, set, .. } = session;
        let closing = if receiving.is_new { None } else { Some(closing::begin(self.engine, name).await?) };
        let name = name.to_owned();
        let receiving = *receiving;
        let receive = receive.clone();
        let set = set.clone();
        let done = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                receive::check_end(&mut syncing.change, &receive, &receiving).await?;
                if !receiving.is_new {
                    close(syncing, &name).await?;
                    set.close(true);
                    syncing.engine.sets.remove(set.id());
                }
                receive::end(&mut syncing.change, &receive, &receiving).await?;
                let stage = if receiving.is_new { Stage::NewComplete } else { Stage::Existing };
                let (name, _) = receive.names();
                Ok(receive_properties::apply(&mut syncing.change, name, &receive.properties, stage).await?)
            })
        });
        let done = done.await;
        match closing {
            Some(closing) => closing.end(done),
            None => done,
        }
    }

    /// Keeps what was received so far, so that the stream can be continued; if that is no block, destroys the dataset
    /// (`dmu_recv_cleanup_ds`).
    ///
    /// # Errors
    /// Errors of writing it.
    pub async fn suspend(&self, session: ReceiveSession) -> Result<(), PoolError> {
        // What was received becomes stable with its state, and then nothing changes it.
        self.engine.sync().await?;
        if session.set.pointer().is_hole() {
            return self.abandon(session).await;
        }
        let ReceiveSession { set, .. } = session;
        set.close(true);
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    syncing.engine.sets.remove(set.id());
                    Ok(())
                })
            })
            .await
    }

    /// Destroys what was received of an interrupted stream into the dataset `name` (`zfs receive -A`). Returns whether there
    /// was something; with `of_existing` only the clone of an existing dataset counts.
    ///
    /// # Errors
    /// Errors of finding it; busy while a stream is being received.
    pub async fn discard(&self, name: &str, of_existing: bool) -> Result<bool, PoolError> {
        let of = name.to_owned();
        let is_gone = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let Some(partial) = receive::partial_at(&mut syncing.change, &of).await? else { return Ok(false) };
                if of_existing && partial.is_new {
                    return Ok(false);
                }
                if syncing.engine.sets.get(ObjsetId(partial.created.dataset.0)).is_some() {
                    return Err(DslError::busy(&of, "a stream is being received").into());
                }
                receive::abandon(&mut syncing.change, &of, &partial).await?;
                Ok(true)
            })
        });
        let is_gone = is_gone.await?;
        if is_gone {
            self.engine.changed.note(name);
        }
        Ok(is_gone)
    }

    /// Makes a received dataset an encryption root, or share that of its parent, as it is at the sender.
    ///
    /// # Errors
    /// Errors of [`receive_raw::set_root`].
    pub async fn set_encryption_root(&self, name: &str, is_root: bool) -> Result<(), PoolError> {
        let of = name.to_owned();
        let set = self.engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                receive_raw::set_root(&mut syncing.change, &of, is_root).await?;
                let rq = syncing.change.rq;
                let dsl = syncing.engine.live_dsl(rq, Scope::All).await?;
                syncing.engine.keys.drop_orphaned_roots(rq, &dsl).await
            })
        });
        set.await?;
        self.engine.changed.note(name);
        Ok(())
    }

    /// Destroys what was received so far.
    ///
    /// # Errors
    /// Errors of the sync task.
    pub async fn abandon(&self, session: ReceiveSession) -> Result<(), PoolError> {
        let ReceiveSession { set, receive, receiving, .. } = session;
        set.close(true);
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    syncing.engine.sets.remove(set.id());
                    Ok(receive::abandon(&mut syncing.change, receive.names().0, &receiving).await?)
                })
            })
            .await
    }
}

/// The loaded key that a received dataset shares, or the plan of its own.
async fn key_for(
    syncing: &mut TxgSync<'_>,
    receive: &Receive,
    encryption: &Encryption,
) -> Result<(Option<SetKey>, Option<KeyPlan>), PoolError> {
    if receive.raw.is_some() {
        return Ok((None, None));
    }
    let (name, _) = receive.names();
    if let Some(object) = receive::shared_key(&mut syncing.change, receive).await? {
        let why = "inherited key must be loaded";
        let missing = || DslError::Key { name: name.to_owned(), why };
        let key = syncing.engine.keys.of_object(object).ok_or_else(missing)?;
        return Ok((Some(key), None));
    }
    if !receive.makes_dataset(&mut syncing.change).await? {
        return Ok((None, None));
    }
    Ok((None, keys::plan(syncing, name, encryption).await?))
}

/// Opens the set of a dataset that is being received: empty, or with the contents of its origin without that one's log.
async fn open(
    syncing: &TxgSync<'_>,
    receive: &Receive,
    receiving: &Receiving,
    key: Option<SetKey>,
) -> Result<Arc<ObjectSet>, PoolError> {
    let engine = syncing.engine;
    let id = receiving.created.dataset;
    let gate: Arc<dyn TxAdmission> = engine.gate.clone();
    let policy = policy_for(receive.kind, Policy::default());
    let raw = receive.raw.as_ref().map(|raw| raw.header);
    let opening = Opening { id: ObjsetId(id.0), key, raw, ..Opening::default() };
    let pointer = syncing.change.dataset(id).await?.pointer;
    if !receiving.has_origin && (!receiving.continues || pointer.is_hole()) {
        let set = ObjectSet::make_with(engine.cache.clone(), opening, receive.kind, gate, policy);
        if raw.is_some() {
            // The header is stored even if the stream has no object.
            set.syncing().touch();
        }
        return Ok(set);
    }
    let rq = syncing.change.rq;
    let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, policy).await?;
    if let (Some(raw), Some(meta)) = (raw, set.meta())
        && !raw.fits(&meta.dnode)
    {
        let why = "invalid backup stream: its dnodes are stored in another way than those of the dataset";
        return Err(DslError::stream(receive.names().0, why.into()).into());
    }
    set.syncing().set_zil_header(ZilHeader::default());
    Ok(set)
}
