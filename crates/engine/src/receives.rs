//! Datasets that are received from streams (OpenZFS `dmu_recv_begin`, `dmu_recv_end`).
//!
//! ```text
//!   begin   sync task: the new dataset, or the clone %recv of the origin; its object set is open for writing
//!   …       the caller applies records to the set, each in transactions of its own
//!   end     sync task: the snapshot with the sender's GUID; the clone takes the dataset's place
//!   abandon sync task: what was received is destroyed
//! ```
//!
//! A process that ends in between leaves an inconsistent dataset. Nothing opens it, and the next stream that is received
//! into the same dataset destroys it first.

use super::closing::{self, close};
use super::datasets::policy_for;
use super::syncing::TxgSync;
use super::{Receives, open_set};
use std::sync::Arc;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::Scope;
use weir_dsl::sync_tasks::receive::{self, CLONE, Receive, Receiving};
use weir_dsl::sync_tasks::receive_properties::{self, PropertyError, Stage};
use weir_format::ObjsetId;
use weir_format::zil::ZilHeader;
use weir_machine::Request;
use weir_pool::error::PoolError;

/// A dataset that is being received.
pub struct ReceiveSession {
    /// The object set that the stream's records are applied to.
    pub set: Arc<ObjectSet>,
    receive: Receive,
    receiving: Receiving,
    refused: Vec<PropertyError>,
}

impl ReceiveSession {
    /// Whether the stream makes a dataset.
    pub fn is_new(&self) -> bool {
        self.receiving.is_new
    }
}

impl Receives<'_> {
    /// Creates the dataset that a stream is applied to. The caller ends it with [`Receives::end`] or
    /// [`Receives::abandon`].
    ///
    /// # Errors
    /// Errors of [`receive::check_begin`].
    pub async fn begin(&self, rq: &Request, receive: Receive) -> Result<ReceiveSession, PoolError> {
        let wanted = receive.clone();
        let (set, receiving, refused) = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if let Some(left) = receive::left_behind(&mut syncing.change, &wanted).await? {
                        let is_open = syncing.engine.sets.get(ObjsetId(left.created.dataset.0)).is_some();
                        if !is_open {
                            receive::abandon(&mut syncing.change, &wanted, &left).await?;
                        }
                    }
                    let receiving = receive::begin(&mut syncing.change, &wanted).await?;
                    let mut refused = Vec::new();
                    if receiving.is_new {
                        let (name, _) = wanted.names();
                        let change = &mut syncing.change;
                        refused = receive_properties::apply(change, name, &wanted.properties, Stage::New).await?;
                    }
                    let set = open(syncing, &wanted, &receiving).await?;
                    syncing.add_set(set.clone());
                    Ok((set, receiving, refused))
                })
            })
            .await?;
        let (name, _) = receive.names();
        let at = if receiving.is_new { name.to_owned() } else { format!("{name}/{CLONE}") };
        let session = ReceiveSession { set, receive, receiving, refused };
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
        let _steady = self.engine.mos_sync_lock.lock().await;
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
                    Ok(receive::abandon(&mut syncing.change, &receive, &receiving).await?)
                })
            })
            .await
    }
}

/// Opens the set of a dataset that is being received: empty, or with the contents of its origin without that one's log.
async fn open(syncing: &TxgSync<'_>, receive: &Receive, receiving: &Receiving) -> Result<Arc<ObjectSet>, PoolError> {
    let engine = syncing.engine;
    let id = receiving.created.dataset;
    let gate: Arc<dyn TxAdmission> = engine.gate.clone();
    let policy = policy_for(receive.kind, Policy::default());
    let opening = Opening { id: ObjsetId(id.0), ..Opening::default() };
    if !receiving.has_origin {
        return Ok(ObjectSet::make_with(engine.cache.clone(), opening, receive.kind, gate, policy));
    }
    let pointer = syncing.change.dataset(id).await?.pointer;
    let rq = syncing.change.rq;
    let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, policy).await?;
    set.syncing().set_zil_header(ZilHeader::default());
    Ok(set)
}
