//! Datasets that a stream makes (OpenZFS `dmu_recv_begin_sync`, `dmu_recv_end_sync`).
//!
//! ```text
//!   new dataset   begin: the dataset, marked as inconsistent       end: its snapshot, with the GUID of the sender's
//!   existing one  begin: a clone NAME/%recv of the origin          end: head and clone exchange their contents,
//!                                                                       the snapshot, and the clone is destroyed
//! ```
//!
//! A dataset that is being received is inconsistent: nothing opens it. If the process ends before, the next stream
//! that is received into the same dataset destroys it first; unless it has the state of a stream that can be continued
//! (`-s`), which is written in the same txgs as the blocks.

use super::names::{Found, FoundDir};
use super::receive_properties::ReceivedProperties;
use super::receive_redacted::StreamRedaction;
use super::{
    Created, DslError, DslSyncContext, branch, create, destroy, destroy_head, features, history, lists, names,
    receive_raw, receive_redacted, rollback, snapshot,
};
use crate::{RawKey, StreamForms};
use weir_dmu::zap::Value;
use weir_dmu::{ObjectSet, Opening};
use weir_format::dsl::{dataset_field, dir_field};
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjectId, ObjsetKind};
use weir_machine::invariant;

/// Name of the clone that an existing dataset is received into.
pub const CLONE: &str = "%recv";

/// Description of a received stream: names, GUIDs, kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Full name of the snapshot that the stream makes.
    pub snapshot: String,
    /// GUID of the snapshot.
    pub to_guid: u64,
    /// GUID of the origin of an incremental stream; 0 for a full one.
    pub from_guid: u64,
    /// Creation time of the snapshot, in seconds since 1970.
    pub creation_time_s: u64,
    /// Whether names ignore case.
    pub ignores_case: bool,
    /// Kind of the dataset.
    pub kind: ObjsetKind,
    /// Full name of the snapshot that a new dataset is a clone of.
    pub origin: Option<String>,
    /// Whether later changes and snapshots are discarded (`-F`).
    pub force: bool,
    /// Properties of the dataset.
    pub properties: ReceivedProperties,
    /// Whether an interrupted stream can be continued.
    pub resume: Resume,
    /// The key of a raw stream.
    pub raw: Option<RawKey>,
    /// Pool features that the stream's blocks need: they are stored as they come.
    pub features: Vec<&'static Feature>,
    /// Blocks that the stream leaves out, as snapshots that it is redacted for.
    pub redaction: StreamRedaction,
}

/// How a stream treats the state of an interrupted one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// An interrupted stream leaves nothing.
    #[default]
    Never,
    /// An interrupted stream leaves its state (`-s`).
    Save {
        /// Name of the snapshot at the sender's.
        sent_name: String,
        /// Forms of blocks in the stream.
        forms: StreamForms,
    },
    /// The stream continues an interrupted one from this object and offset.
    Continue {
        /// Object.
        object: ObjectId,
        /// Offset in the object.
        offset: u64,
    },
}

/// The last block of a stream that was written in a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Object.
    pub object: ObjectId,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes of the stream up to the block.
    pub bytes: u64,
}

impl Receive {
    /// Names of the dataset and, after the `@`, of the snapshot.
    pub fn names(&self) -> (&str, &str) {
        self.snapshot.split_once('@').unwrap_or((&self.snapshot, ""))
    }

    /// Whether the stream makes a dataset that is no clone.
    ///
    /// # Errors
    /// Errors of finding the dataset.
    pub async fn makes_dataset(&self, cx: &mut DslSyncContext<'_>) -> Result<bool, DslError> {
        match names::find_head(cx, self.names().0).await {
            Ok(_) => Ok(false),
            Err(DslError::Missing { .. }) => Ok(self.origin.is_none()),
            Err(error) => Err(error),
        }
    }
}

/// A dataset that a stream is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// Directory and dataset: the new one, or the clone.
    pub created: Created,
    /// Whether the dataset is new.
    pub is_new: bool,
    /// Whether it began with the contents of a snapshot.
    pub has_origin: bool,
    /// Whether it has the contents of an interrupted stream.
    pub continues: bool,
}

/// Checks that a stream may be received.
///
/// # Errors
/// [`DslError::Exists`], [`DslError::Missing`], [`DslError::Stream`] with OpenZFS's message, and those of
/// [`create::check_create`](super::create::check_create).
pub async fn check_begin(cx: &mut DslSyncContext<'_>, receive: &Receive) -> Result<(), DslError> {
    names::check_name(&receive.snapshot)?;
    for feature in &receive.features {
        if !features::is_enabled(cx, feature).await? {
            let why = format!("pool must be upgraded to receive this stream: feature@{} is not enabled.", feature.name);
            return Err(DslError::stream(receive.names().0, why));
        }
    }
    if let Resume::Continue { object, offset } = receive.resume {
        return interrupted(cx, receive, (object, offset)).await.map(drop);
    }
    let (name, short) = receive.names();
    let head = match names::find_head(cx, name).await {
        Err(DslError::Missing { .. }) => None,
        other => Some(other?),
    };
    let Some(head) = head else {
        if receive.from_guid != 0 && receive.origin.is_none() {
            return Err(DslError::stream(name, format!("destination '{name}' does not exist")));
        }
        let parent = create::check_place(cx, name).await?;
        for field in [dir_field::FILESYSTEM_COUNT, dir_field::SNAPSHOT_COUNT] {
            create::check_count_limit(cx, parent, field, 1, ObjectId(0)).await?;
        }
        create::check_new_properties(cx, name, parent, &[], 0).await?;
        let mut found = None;
        if let Some(origin) = &receive.origin {
            let origin = names::find_snapshot(cx, origin).await?;
            if receive.from_guid != 0 && origin.phys.guid != receive.from_guid {
                return Err(not_matching(name));
            }
            found = Some(origin);
        }
        if let Some(raw) = &receive.raw {
            receive_raw::check_new(cx, receive, raw, found.as_ref()).await?;
        }
        if let Some(origin) = found {
            receive_redacted::check_origin(cx, receive, origin.id).await?;
        }
        return Ok(());
    };
    if partial(cx, &head).await?.is_some_and(|partial| partial.can_resume) {
        let why = format!("destination {name} contains partially-complete state from \"zfs receive -s\".");
        return Err(DslError::stream(name, why));
    }
    if receive.origin.is_some() {
        return Err(DslError::stream(name, format!("destination '{name}' exists\nmust specify -F to overwrite it")));
    }
    if cx.word(head.at.dir.children, CLONE).await?.is_some() {
        return Err(DslError::busy(name, "another stream is being received"));
    }
    if receive.from_guid == 0 {
        overwritable(cx, &head, receive).await?;
    } else if let Some(raw) = &receive.raw {
        receive_raw::check_existing(cx, name, head.at.id, raw).await?;
    }
    if names::snapshot_named(cx, &head.phys, short).await?.is_some() {
        return Err(DslError::exists(&receive.snapshot));
    }
    create::check_count_limit(cx, head.at.id, dir_field::SNAPSHOT_COUNT, 1, ObjectId(0)).await?;
    if create::kind_of(cx, &head.phys, head.id).await? != receive.kind {
        return Err(DslError::stream(name, format!("destination '{name}' is of another type")));
    }
    lists::check_lists(cx, head.id).await?;
    if receive.from_guid == 0 {
        return Ok(());
    }
    let source = source_of(cx, &head, receive).await?;
    receive_redacted::check_origin(cx, receive, source).await
}

/// The key object of the dataset that a stream is received into, if it shares that of an existing dataset: of itself, or of
/// its origin. `None` if it is not encrypted, or gets a key of its own.
///
/// # Errors
/// Errors of finding the datasets.
pub async fn shared_key(cx: &mut DslSyncContext<'_>, receive: &Receive) -> Result<Option<ObjectId>, DslError> {
    let dir = match (names::find_head(cx, receive.names().0).await, &receive.origin) {
        (Ok(head), _) => head.at.id,
        (Err(_), Some(origin)) => names::find_snapshot(cx, origin).await?.at.id,
        (Err(_), None) => return Ok(None),
    };
    Ok(create::dir_word(cx, dir, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId))
}

fn not_matching(name: &str) -> DslError {
    DslError::stream(name, format!("most recent snapshot of {name} does not\nmatch incremental source"))
}

/// Whether a full stream may replace a dataset.
async fn overwritable(cx: &mut DslSyncContext<'_>, head: &Found, receive: &Receive) -> Result<(), DslError> {
    let name = &head.name;
    if !receive.force {
        return Err(DslError::stream(name, format!("destination '{name}' exists\nmust specify -F to overwrite it")));
    }
    if receive.raw.is_some() || create::dir_word(cx, head.at.id, dir_field::CRYPTO_KEY_OBJ).await?.is_some() {
        let why = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an encrypted one";
        return Err(DslError::stream(name, why.to_owned()));
    }
    if let Some((snapshot, _)) = names::snapshots_of(cx, &head.phys).await?.first() {
        let why = format!("destination has snapshots (eg. {name}@{snapshot})\nmust destroy them to overwrite it");
        return Err(DslError::stream(name, why));
    }
    if head.at.dir.origin.0 != 0 && create::empty_origin(cx).await? != Some(head.at.dir.origin) {
        let why = format!("destination '{name}' is a clone\nmust destroy it to overwrite it");
        return Err(DslError::stream(name, why));
    }
    Ok(())
}

/// The snapshot of an existing dataset that an incremental stream is relative to.
async fn source_of(cx: &mut DslSyncContext<'_>, head: &Found, receive: &Receive) -> Result<ObjectId, DslError> {
    let name = &head.name;
    let last = head.phys.prev_snapshot;
    let mut at = last;
    loop {
        if at.0 == 0 {
            return Err(not_matching(name));
        }
        let phys = cx.dataset(at).await?;
        if phys.dir != head.at.id {
            return Err(not_matching(name));
        }
        if phys.guid == receive.from_guid {
            break;
        }
        at = phys.prev_snapshot;
    }
    if let Some(raw) = &receive.raw {
        receive_raw::check_ivset(cx, name, at, raw).await?;
    }
    if receive.force {
        return Ok(at);
    }
    if at != last {
        return Err(not_matching(name));
    }
    if is_modified(cx, &head.phys, last).await? {
        return Err(DslError::stream(
            name,
            format!("destination {name} has been modified\nsince most recent snapshot"),
        ));
    }
    Ok(at)
}

/// Whether a head's contents changed since its last snapshot (`dsl_dataset_modified_since_snap`).
async fn is_modified(cx: &DslSyncContext<'_>, head: &DslDataset, last: ObjectId) -> Result<bool, DslError> {
    if head.pointer.logical_birth() <= head.prev_snapshot_txg {
        return Ok(false);
    }
    let snapshot = cx.dataset(last).await?;
    // The headers may differ in the intent log alone.
    let blocks = async |pointer| {
        let set = ObjectSet::open(cx.rq, cx.mos.cache().clone(), pointer, Opening::default()).await?;
        Ok::<_, DslError>(set.meta().map(|meta| meta.dnode.block_pointers.clone()))
    };
    Ok(blocks(head.pointer).await? != blocks(snapshot.pointer).await?)
}

/// A dataset of which a part was received.
struct Partial {
    receiving: Receiving,
    can_resume: bool,
}

/// The dataset of which a part was received: the head itself, or its clone.
async fn partial(cx: &DslSyncContext<'_>, head: &Found) -> Result<Option<Partial>, DslError> {
    let clone = cx.word(head.at.dir.children, CLONE).await?.map(ObjectId);
    let created = match clone {
        Some(dir) => Created { dir, dataset: cx.dir(dir).await?.head_dataset },
        None => Created { dir: head.at.id, dataset: head.id },
    };
    let phys = cx.dataset(created.dataset).await?;
    if phys.flags & DslDataset::INCONSISTENT == 0 {
        return Ok(None);
    }
    let receiving = Receiving { created, is_new: clone.is_none(), has_origin: false, continues: true };
    // Without blocks there is nothing to continue.
    let has_state = names::dataset_word(cx, created.dataset, dataset_field::RESUME_TOGUID).await?.is_some();
    Ok(Some(Partial { receiving, can_resume: has_state && !phys.pointer.is_hole() }))
}

/// The dataset that an earlier process left behind where a stream is received; `None` for nothing, and for a stream that can be
/// resumed.
///
/// # Errors
/// Errors of reading the pool.
pub async fn left_behind(cx: &mut DslSyncContext<'_>, receive: &Receive) -> Result<Option<Receiving>, DslError> {
    let head = match names::find_head(cx, receive.names().0).await {
        Err(DslError::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let partial = partial(cx, &head).await?;
    Ok(partial.filter(|partial| !partial.can_resume).map(|partial| partial.receiving))
}

/// The partly received dataset at a name, to be destroyed (`zfs receive -A`); `None` if there is none.
///
/// # Errors
/// Errors of finding and reading it.
pub async fn partial_at(cx: &mut DslSyncContext<'_>, name: &str) -> Result<Option<Receiving>, DslError> {
    let head = names::find_head(cx, name).await?;
    Ok(partial(cx, &head).await?.map(|partial| partial.receiving))
}

/// Checks that a stream continues the interrupted one of its destination (`dmu_recv_resume_begin_check`).
async fn interrupted(
    cx: &mut DslSyncContext<'_>,
    receive: &Receive,
    (object, offset): (ObjectId, u64),
) -> Result<Receiving, DslError> {
    let (name, _) = receive.names();
    let refuse = |why: &str| Err(DslError::stream(name, why.to_owned()));
    let head = names::find_head(cx, name).await?;
    let Some(Partial { mut receiving, can_resume: true }) = partial(cx, &head).await? else {
        return refuse("there is no interrupted stream to continue");
    };
    if !receiving.is_new && receive.from_guid == 0 && !receive.force {
        let why = format!("Resuming recv on existing destination '{name}'\nmust specify -F to overwrite it");
        return refuse(&why);
    }
    let dataset = receiving.created.dataset;
    let state = async |field| names::dataset_word(cx, dataset, field).await.map(|word| word.unwrap_or(0));
    let guids = [state(dataset_field::RESUME_TOGUID).await?, state(dataset_field::RESUME_FROMGUID).await?];
    if guids != [receive.to_guid, receive.from_guid] {
        return refuse("the stream is not the one that was interrupted");
    }
    let point = [state(dataset_field::RESUME_OBJECT).await?, state(dataset_field::RESUME_OFFSET).await?];
    if point != [object.0, offset] {
        return refuse("the stream does not continue where the interrupted one ended");
    }
    if let Some(raw) = &receive.raw {
        receive_raw::check_existing(cx, name, head.at.id, raw).await?;
    }
    receive_redacted::check_continued(cx, receive, dataset).await?;
    receiving.has_origin = receive.from_guid != 0;
    Ok(receiving)
}

/// Records that an interrupted stream can be continued, from its first object on.
async fn save_state(
    cx: &mut DslSyncContext<'_>,
    dataset: ObjectId,
    receive: &Receive,
    sent_name: &str,
    mut forms: StreamForms,
) -> Result<(), DslError> {
    features::zapify(cx, dataset).await?;
    if receive.from_guid != 0 {
        cx.put_word(dataset, dataset_field::RESUME_FROMGUID, receive.from_guid).await?;
    }
    cx.put_word(dataset, dataset_field::RESUME_TOGUID, receive.to_guid).await?;
    cx.put(dataset, dataset_field::RESUME_TONAME, super::text(sent_name)).await?;
    save_point(cx, dataset, &ResumePoint { object: ObjectId(1), offset: 0, bytes: 0 }).await?;
    for (_, field, is_set) in forms.named() {
        if *is_set {
            cx.put_word(dataset, field, 1).await?;
        }
    }
    if let Some(guids) = &receive.redaction.from_redacted_for {
        let words = guids.clone();
        cx.put(dataset, dataset_field::RESUME_REDACT_BOOKMARK_SNAPS, Value { int_size: 8, words }).await?;
    }
    Ok(())
}

/// Records how far a stream was received. The caller writes the changes of the dataset in the same txg.
///
/// # Errors
/// Errors of changing the pool.
pub async fn save_point(cx: &mut DslSyncContext<'_>, dataset: ObjectId, point: &ResumePoint) -> Result<(), DslError> {
    cx.put_word(dataset, dataset_field::RESUME_OBJECT, point.object.0).await?;
    cx.put_word(dataset, dataset_field::RESUME_OFFSET, point.offset).await?;
    cx.put_word(dataset, dataset_field::RESUME_BYTES, point.bytes).await
}

/// Removes the state of a stream that is complete.
async fn forget_state(cx: &mut DslSyncContext<'_>, dataset: ObjectId) -> Result<(), DslError> {
    if names::dataset_word(cx, dataset, dataset_field::RESUME_TOGUID).await?.is_none() {
        return Ok(());
    }
    let mut forms = StreamForms::default();
    let of_forms = forms.named().map(|(_, field, _)| field);
    let words = [
        dataset_field::RESUME_FROMGUID,
        dataset_field::RESUME_TOGUID,
        dataset_field::RESUME_TONAME,
        dataset_field::RESUME_OBJECT,
        dataset_field::RESUME_OFFSET,
        dataset_field::RESUME_BYTES,
        dataset_field::RESUME_REDACT_BOOKMARK_SNAPS,
    ];
    for field in words.into_iter().chain(of_forms) {
        cx.zap_remove(dataset, field).await?;
    }
    Ok(())
}

/// Creates the dataset that a stream is applied to. The caller opens its set for writing in this txg; an existing
/// dataset stays as it is until the end.
///
/// # Errors
/// Those of [`check_begin`], before anything was changed.
pub async fn begin(cx: &mut DslSyncContext<'_>, receive: &Receive) -> Result<Receiving, DslError> {
    check_begin(cx, receive).await?;
    let (name, _) = receive.names();
    if let Resume::Continue { object, offset } = receive.resume {
        let receiving = interrupted(cx, receive, (object, offset)).await?;
        history::log(cx, name, receiving.created.dataset, "resume receive", "").await?;
        return Ok(receiving);
    }
    let (parent, last, origin, is_new) = match names::find_head(cx, name).await {
        Ok(head) if receive.from_guid == 0 => (head.at.id, CLONE, None, false),
        Ok(head) => {
            let origin = source_of(cx, &head, receive).await?;
            // Without -F nothing has changed since, and the clone is one of the last snapshot, as for a rollback.
            (head.at.id, CLONE, Some(origin), false)
        }
        Err(_) => {
            let parent = create::check_place(cx, name).await?;
            let origin = match &receive.origin {
                Some(origin) => Some(names::find_snapshot(cx, origin).await?.id),
                None => None,
            };
            (parent, name.rsplit_once('/').map_or(name, |(_, last)| last), origin, true)
        }
    };
    let created = create::create_head(cx, parent, last, origin).await?;
    receive_redacted::begin(cx, receive, created.dataset).await?;
    if let Some(origin) = origin {
        let of = cx.dataset(origin).await?.dir;
        branch::share_key(cx, of, created.dir).await?;
    }
    if let (Some(raw), None) = (&receive.raw, origin) {
        receive_raw::encrypt(cx, created, raw).await?;
    }
    let mut phys = cx.dataset(created.dataset).await?;
    phys.flags |= DslDataset::INCONSISTENT;
    if receive.ignores_case {
        phys.flags |= DslDataset::CASE_INSENSITIVE;
    }
    if origin.is_none() {
        // The contents begin empty, also where datasets begin with those of the empty origin.
        phys.pointer = weir_format::BlockPointer::HOLE;
    }
    cx.put_dataset(created.dataset, &phys).await?;
    if receive.kind == ObjsetKind::Zfs && origin.is_none() && receive.raw.is_none() {
        create::use_accounting(cx, created.dataset).await?;
    }
    if let Resume::Save { sent_name, forms } = &receive.resume {
        save_state(cx, created.dataset, receive, sent_name, *forms).await?;
    }
    history::log(cx, name, created.dataset, "receive", "").await?;
    Ok(Receiving { created, is_new, has_origin: origin.is_some(), continues: false })
}

/// Checks that a received stream may take its place.
///
/// # Errors
/// As [`check_begin`]: other changes may have come first.
pub async fn check_end(cx: &mut DslSyncContext<'_>, receive: &Receive, receiving: &Receiving) -> Result<(), DslError> {
    let (name, short) = receive.names();
    let head = names::find_head(cx, name).await?;
    if names::snapshot_named(cx, &head.phys, short).await?.is_some() {
        return Err(DslError::exists(&receive.snapshot));
    }
    if receiving.is_new {
        return if head.id == receiving.created.dataset { Ok(()) } else { Err(DslError::exists(name)) };
    }
    let clone = cx.dataset(receiving.created.dataset).await?;
    if receiving.has_origin && source_of(cx, &head, receive).await? != clone.prev_snapshot {
        return Err(not_matching(name));
    }
    if !receiving.has_origin {
        overwritable(cx, &head, receive).await?;
    }
    for later in later_snapshots(cx, &head, &clone, receiving).await? {
        let phys = cx.dataset(later).await?;
        if phys.children > 1 || destroy::holds_on(cx, &phys).await? > 0 || (cx.reading)(later) {
            return Err(DslError::busy(name, "a later snapshot is held or has clones"));
        }
    }
    super::trees::check_freeing(cx, &head.phys).await
}

/// Snapshots of the head that are later than the clone's origin, from the newest on.
async fn later_snapshots(
    cx: &DslSyncContext<'_>,
    head: &Found,
    clone: &DslDataset,
    receiving: &Receiving,
) -> Result<Vec<ObjectId>, DslError> {
    let mut later = Vec::new();
    let mut at = head.phys.prev_snapshot;
    while receiving.has_origin && at != clone.prev_snapshot && at.0 != 0 {
        later.push(at);
        at = cx.dataset(at).await?.prev_snapshot;
    }
    Ok(later)
}

/// Makes the received contents those of the dataset, with the sender's snapshot. The caller has closed the open sets.
///
/// # Errors
/// Those of [`check_end`], before anything was changed.
pub async fn end(cx: &mut DslSyncContext<'_>, receive: &Receive, receiving: &Receiving) -> Result<(), DslError> {
    check_end(cx, receive, receiving).await?;
    let (name, short) = receive.names();
    let received = receiving.created;
    let head = names::find_head(cx, name).await?;
    forget_state(cx, received.dataset).await?;
    if !receiving.is_new {
        let clone = cx.dataset(received.dataset).await?;
        for later in later_snapshots(cx, &head, &clone, receiving).await? {
            destroy::destroy_snapshot(cx, later).await?;
        }
        rollback::swap(cx, received.dataset, head.id).await?;
    }
    let made = snapshot::snapshot_head(cx, head.id, short).await?;
    let mut phys = cx.dataset(made).await?;
    phys.guid = receive.to_guid;
    phys.creation_time_s = receive.creation_time_s;
    phys.flags &= !DslDataset::INCONSISTENT;
    cx.put_dataset(made, &phys).await?;
    let mut now = cx.dataset(head.id).await?;
    now.flags &= !DslDataset::INCONSISTENT;
    invariant!(now.prev_snapshot == made, "the received snapshot is the last one");
    cx.put_dataset(head.id, &now).await?;
    if let Some(raw) = &receive.raw {
        receive_raw::end(cx, made, (!receiving.is_new).then_some(head.at.id), raw).await?;
    }
    if !receiving.is_new {
        destroy_clone(cx, name, received).await?;
    }
    history::log(cx, name, head.id, "finish receiving", &format!("snap={short}")).await
}

async fn destroy_clone(cx: &mut DslSyncContext<'_>, name: &str, clone: Created) -> Result<(), DslError> {
    let name = format!("{name}/{CLONE}");
    let dir = cx.dir(clone.dir).await?;
    let phys = cx.dataset(clone.dataset).await?;
    let at = FoundDir { id: clone.dir, dir, name: name.clone() };
    destroy_head::destroy_head(cx, Found { at, id: clone.dataset, phys, name }).await
}

/// Destroys what was received so far. The caller has closed its set.
///
/// # Errors
/// Errors of reading and changing the pool.
pub async fn abandon(cx: &mut DslSyncContext<'_>, name: &str, receiving: &Receiving) -> Result<(), DslError> {
    if !receiving.is_new {
        return destroy_clone(cx, name, receiving.created).await;
    }
    let found = names::find_head(cx, name).await?;
    invariant!(found.phys.flags & DslDataset::INCONSISTENT != 0, "{name} was being received");
    destroy_head::destroy_head(cx, found).await
}
