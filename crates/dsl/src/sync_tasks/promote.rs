//! Promotion (OpenZFS `dsl_dataset_promote_sync`): a clone and its origin's dataset exchange their roles.
//!
//! ```text
//!   before   a1 ── a2 ── a3 ── head a               after   a3 ── head a  (a clone of a2 now)
//!                   └─ b1 ── head b                          a1 ── a2 ── b1 ── head b
//! ```
//!
//! The snapshots up to the branch point move to the clone's directory with their names, bookmarks and space. Sizes and
//! deadlists determine that space: snapshot N refers to the blocks of N-1, plus those born, less those killed in
//! between; so the blocks born up to the branch point are those that it refers to plus those of all deadlists up to it.

use super::limits::Moved;
use super::names::Found;
use super::space::{Delta, Use, difference};
use super::{
    DslError, DslSyncContext, bookmark, create, destroy_head, features, history, key, limits, lists, names, synced,
};
use weir_dmu::cycle_guard::CycleGuard;
use weir_format::dsl::{Bookmark, dir_field};
use weir_format::features::Feature;
use weir_format::{DslDataset, ObjectId, ObjectType, Txg};

/// Objects that a promotion changes.
struct Plan {
    clone: Found,
    /// Snapshots that move, from the branch point back: object, name, fields.
    shared: Vec<(ObjectId, String, DslDataset)>,
    /// The clone's head and snapshots, from the head back.
    of_clone: Vec<(ObjectId, DslDataset)>,
    /// The origin's head and snapshots after the branch point, from the head back.
    of_origin: Vec<(ObjectId, DslDataset)>,
    /// The origin's directory, and its head.
    origin_dir: ObjectId,
    origin_head: ObjectId,
    /// The snapshot that the origin's directory is a clone of; 0 if it is no clone.
    origin_origin: ObjectId,
    moved: Delta,
}

impl Plan {
    fn branch(&self) -> Option<&(ObjectId, String, DslDataset)> {
        self.shared.first()
    }
}

/// The chain of snapshots from `from` back to `until`, exclusive.
async fn chain(
    cx: &DslSyncContext<'_>,
    from: ObjectId,
    until: ObjectId,
) -> Result<Vec<(ObjectId, DslDataset)>, DslError> {
    let mut out = Vec::new();
    let mut trail = CycleGuard::default();
    let mut at = from;
    while at.0 != 0 && at != until {
        trail.step(&cx.mos, at)?;
        let phys = cx.dataset(at).await?;
        let previous = phys.prev_snapshot;
        out.push((at, phys));
        at = previous;
    }
    Ok(out)
}

async fn plan_promotion(cx: &mut DslSyncContext<'_>, name: &str) -> Result<Plan, DslError> {
    let clone = names::find_head(cx, name).await?;
    let no_clone = || DslError::kind(name, "not a cloned filesystem or volume");
    let origin = clone.at.dir.origin;
    if origin.0 == 0 || Some(origin) == create::empty_origin(cx).await? {
        return Err(no_clone());
    }
    if clone.phys.flags & DslDataset::NO_PROMOTE != 0 {
        return Err(DslError::kind(name, "it may not be promoted"));
    }
    let origin_dir = cx.dataset(origin).await?.dir;
    let of = cx.dir(origin_dir).await?;
    let head = cx.dataset(of.head_dataset).await?;
    let names = names::snapshots_of(cx, &head).await?;
    let mut shared = Vec::new();
    for (id, phys) in chain(cx, origin, of.origin).await? {
        let name = names.iter().find(|(_, of)| *of == id).map(|(n, _)| n.clone());
        let place = cx.mos.place(id, 0, 0);
        let nameless = weir_dmu::ObjectError::Corrupt { place, why: "a snapshot without a name" };
        shared.push((id, name.ok_or(nameless)?, phys));
    }
    let of_clone = chain(cx, clone.id, origin).await?;
    let of_origin = chain(cx, of.head_dataset, origin).await?;
    let mut plan = Plan {
        clone,
        shared,
        of_clone,
        of_origin,
        origin_dir,
        origin_head: of.head_dataset,
        origin_origin: of.origin,
        moved: Delta::default(),
    };
    plan.moved = moved_space(cx, &plan).await?;
    Ok(plan)
}

/// Sums of the blocks born up to the branch point, since the origin's own origin.
async fn moved_space(cx: &DslSyncContext<'_>, plan: &Plan) -> Result<Delta, DslError> {
    let refers = |d: &DslDataset| Delta::new(d.referenced_bytes, d.compressed_bytes, d.uncompressed_bytes);
    let mut moved = plan.branch().map(|(_, _, phys)| refers(phys)).unwrap_or_default();
    for (_, _, phys) in plan.shared.iter().filter(|(_, _, phys)| phys.prev_snapshot.0 != 0) {
        moved += lists::deadlist_space(cx, phys.deadlist).await?;
    }
    if plan.origin_origin.0 != 0 {
        moved += -refers(&cx.dataset(plan.origin_origin).await?);
    }
    Ok(moved)
}

/// Checks that a clone may be promoted.
///
/// # Errors
/// [`DslError::Kind`] (no clone), [`DslError::HasDependents`] (snapshots or bookmarks of the same names),
/// [`DslError::Space`], [`DslError::Key`] (the clone does not inherit from the key's root).
pub async fn check_promote(cx: &mut DslSyncContext<'_>, name: &str) -> Result<(), DslError> {
    let plan = plan_promotion(cx, name).await?;
    check_plan(cx, &plan).await
}

async fn check_plan(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<(), DslError> {
    let name = &plan.clone.name;
    let mut conflicts = Vec::new();
    for (_, snapshot, _) in &plan.shared {
        if names::snapshot_named(cx, &plan.clone.phys, snapshot).await?.is_some() {
            conflicts.push(format!("{name}@{snapshot}"));
        }
        if name.len() + 1 + snapshot.len() > 255 {
            return Err(DslError::Name { name: format!("{name}@{snapshot}"), why: "name is too long" });
        }
    }
    for (bookmark, _) in bookmarks_to_move(cx, plan).await? {
        if bookmark::bookmark_named(cx, &plan.clone, &bookmark).await?.is_some() {
            conflicts.push(format!("{name}#{bookmark}"));
        }
    }
    if !conflicts.is_empty() {
        let what = "conflicting snapshots or bookmarks";
        return Err(DslError::HasDependents { name: name.clone(), what, dependents: conflicts });
    }
    check_promotion_space(cx, plan).await?;
    check_promotion_key(cx, plan).await
}

/// Checks that the moved blocks fit under the limits of the clone and its ancestors.
async fn check_promotion_space(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<(), DslError> {
    let moved = Moved { bytes: plan.moved.used.max(0) as u64, datasets: 0, snapshots: plan.shared.len() as u64 };
    match limits::check_transfer(cx, plan.origin_dir, plan.clone.at.id, &moved).await? {
        true => Ok(()),
        false => Err(DslError::space(&plan.clone.name, "out of space for what it takes over")),
    }
}

/// Checks that the same key keeps wrapping both keys (`dsl_dataset_promote_crypt_check`).
async fn check_promotion_key(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<(), DslError> {
    let origin = plan.origin_dir;
    let Some(root) = key::key_root(cx, origin).await? else { return Ok(()) };
    // If the origin is its own root, the clone becomes the root; if the origin is a clone, its own origin is the
    // root.
    if root == origin || key::is_clone(cx, origin).await? {
        return Ok(());
    }
    if key::key_root(cx, plan.clone.at.dir.parent).await? == Some(root) {
        return Ok(());
    }
    Err(DslError::Key { name: plan.clone.name.clone(), why: "the clone is not below the key's root" })
}

async fn bookmarks_to_move(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<Vec<(String, Bookmark)>, DslError> {
    let Some(zap) = names::bookmarks_zap(cx, plan.origin_head).await? else { return Ok(Vec::new()) };
    let until = plan.branch().map_or(Txg(0), |(_, _, phys)| phys.creation_txg);
    let mut bookmarks = bookmark::bookmarks_in(cx, zap).await?;
    bookmarks.retain(|(_, b)| b.creation_txg <= until);
    Ok(bookmarks)
}

/// Promotes a clone.
///
/// # Errors
/// Those of [`check_promote`], before anything was changed.
pub async fn promote(cx: &mut DslSyncContext<'_>, name: &str) -> Result<(), DslError> {
    let plan = plan_promotion(cx, name).await?;
    check_plan(cx, &plan).await?;
    let uses = snapshot_uses(cx, &plan).await?;
    let unique = unique_of_branch(cx, &plan).await?;
    promote_key(cx, &plan).await?;
    let old_next = turn_branch(cx, &plan, unique).await?;
    turn_origins(cx, &plan).await?;
    move_bookmarks(cx, &plan).await?;
    for (id, snapshot, _) in &plan.shared {
        move_snapshot(cx, &plan, *id, snapshot, old_next).await?;
    }
    move_promoted_space(cx, &plan, uses).await?;
    destroy_head::drop_livelist(cx, plan.clone.at.id).await?;
    destroy_head::drop_livelist(cx, plan.origin_dir).await?;
    history::log(cx, name, plan.clone.id, "promote", "").await
}

/// The `SNAP` use after the promotion: in the clone's directory, in the origin's.
async fn snapshot_uses(cx: &DslSyncContext<'_>, plan: &Plan) -> Result<(i64, i64), DslError> {
    let end = Txg(u64::MAX);
    let origin = synced::origin_txg(cx, plan.origin_dir).await?;
    let mut of_clone = 0;
    for list in plan.shared.iter().map(|(_, _, p)| p.deadlist).chain(plan.of_clone.iter().map(|(_, p)| p.deadlist)) {
        of_clone += lists::deadlist_range(cx, list, origin, end).await?.used;
    }
    let branch = plan.branch().map_or(Txg(0), |(_, _, phys)| phys.creation_txg);
    let mut of_origin = 0;
    for (_, phys) in &plan.of_origin {
        of_origin += lists::deadlist_range(cx, phys.deadlist, branch, end).await?.used;
    }
    Ok((of_clone, of_origin))
}

/// Unique bytes of the branch point afterwards: those that the clone's first snapshot (or head) no longer refers
/// to.
async fn unique_of_branch(cx: &DslSyncContext<'_>, plan: &Plan) -> Result<u64, DslError> {
    let (Some((_, first)), Some((_, _, branch))) = (plan.of_clone.last(), plan.branch()) else { return Ok(0) };
    let alone = lists::deadlist_range(cx, first.deadlist, branch.prev_snapshot_txg, Txg(u64::MAX)).await?;
    Ok(alone.used.max(0) as u64)
}

/// Makes the clone's first snapshot follow the branch point; the dataset that followed it becomes its clone.
/// Returns that one.
async fn turn_branch(cx: &mut DslSyncContext<'_>, plan: &Plan, unique: u64) -> Result<ObjectId, DslError> {
    let (Some((id, _, _)), Some((first, _))) = (plan.branch(), plan.of_clone.last()) else {
        return Ok(ObjectId(0));
    };
    let mut branch = cx.dataset(*id).await?;
    let old_next = branch.next_snapshot;
    branch.next_snapshot = *first;
    branch.unique_bytes = unique;
    if branch.next_clones.0 != 0 {
        cx.set_remove(branch.next_clones, first.0).await?;
        cx.set_insert(branch.next_clones, old_next.0).await?;
    }
    cx.put_dataset(*id, &branch).await?;
    Ok(old_next)
}

/// Gives the clone's directory the origin's origin, and the origin's directory the branch point as origin.
async fn turn_origins(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<(), DslError> {
    let Some((branch, _, _)) = plan.branch() else { return Ok(()) };
    let clone_dir = plan.clone.at.id;
    let mut dir = cx.dir(clone_dir).await?;
    let mut of = cx.dir(plan.origin_dir).await?;
    dir.origin = of.origin;
    of.origin = *branch;
    if of.clones.0 != 0 {
        cx.set_remove(of.clones, plan.clone.id.0).await?;
    }
    if dir.clones.0 == 0 {
        dir.clones = cx.zap(ObjectType::DSL_CLONES).await?;
    }
    cx.set_insert(dir.clones, plan.origin_head.0).await?;
    cx.put_dir(clone_dir, &dir).await?;
    cx.put_dir(plan.origin_dir, &of).await?;
    if plan.origin_origin.0 == 0 {
        return Ok(());
    }
    let above = cx.dataset(plan.origin_origin).await?.dir;
    let clones = cx.dir(above).await?.clones;
    if clones.0 != 0 {
        cx.set_insert(clones, plan.clone.id.0).await?;
        cx.set_remove(clones, plan.origin_head.0).await?;
    }
    Ok(())
}

async fn move_bookmarks(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<(), DslError> {
    let bookmarks = bookmarks_to_move(cx, plan).await?;
    if let Some(zap) = names::bookmarks_zap(cx, plan.origin_head).await? {
        for (name, bookmark) in bookmarks {
            cx.zap_remove(zap, &name).await?;
            if super::bookmark::needs_newer_form(&bookmark) {
                features::count_feature(cx, Feature::BOOKMARK_V2, -1).await?;
            }
            bookmark::add_bookmark(cx, plan.clone.id, &name, &bookmark).await?;
        }
    }
    match plan.branch() {
        Some((branch, _, _)) => bookmark::bookmarks_recounted(cx, plan.clone.id, *branch).await,
        None => Ok(()),
    }
}

/// Moves one snapshot to the clone's directory, and its clones from one directory's list to the other's.
async fn move_snapshot(
    cx: &mut DslSyncContext<'_>,
    plan: &Plan,
    id: ObjectId,
    name: &str,
    old_next: ObjectId,
) -> Result<(), DslError> {
    let old_names = cx.dataset(plan.origin_head).await?.snapshot_names;
    let new_names = cx.dataset(plan.clone.id).await?.snapshot_names;
    cx.zap_remove(old_names, name).await?;
    cx.insert_word(new_names, name, id.0).await?;
    create::count_datasets(cx, plan.origin_dir, dir_field::SNAPSHOT_COUNT, -1).await?;
    create::count_datasets(cx, plan.clone.at.id, dir_field::SNAPSHOT_COUNT, 1).await?;
    let mut phys = cx.dataset(id).await?;
    phys.dir = plan.clone.at.id;
    cx.put_dataset(id, &phys).await?;
    let old = cx.dir(plan.origin_dir).await?.clones;
    let new = cx.dir(plan.clone.at.id).await?.clones;
    for (_, value) in cx.entries(phys.next_clones).await? {
        let Some(next) = value.first().filter(|next| *next != old_next.0) else { continue };
        let of = cx.dataset(ObjectId(next)).await?.dir;
        let head = cx.dir(of).await?.head_dataset.0;
        cx.set_remove(old, head).await?;
        cx.set_insert(new, head).await?;
    }
    Ok(())
}

async fn move_promoted_space(cx: &mut DslSyncContext<'_>, plan: &Plan, uses: (i64, i64)) -> Result<(), DslError> {
    let moved = plan.moved;
    for (dir, now, sign) in [(plan.clone.at.id, uses.0, 1), (plan.origin_dir, uses.1, -1)] {
        let phys = cx.dir(dir).await?;
        let [_, snapshots, ..] = phys.used_breakdown;
        let by = if phys.flags & 1 != 0 { difference(changed_to(now), snapshots) } else { 0 };
        let all = if sign > 0 { moved } else { -moved };
        synced::book(cx, dir, Use::Snapshots, Delta::used(by)).await?;
        synced::book(cx, dir, Use::Head, Delta { used: all.used - by, ..all }).await?;
    }
    Ok(())
}

/// Makes a promoted clone the root of its key, if the origin was.
async fn promote_key(cx: &mut DslSyncContext<'_>, plan: &Plan) -> Result<(), DslError> {
    use weir_format::dsl::crypto_key::ROOT_DDOBJ;
    let Some(key) = create::dir_word(cx, plan.clone.at.id, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId) else {
        return Ok(());
    };
    let root = cx.word(key, ROOT_DDOBJ).await?.map(ObjectId);
    if root != Some(plan.origin_dir) {
        return Ok(());
    }
    for id in key::key_users(cx, plan.origin_dir).await? {
        if let Some(key) = create::dir_word(cx, id, dir_field::CRYPTO_KEY_OBJ).await?.map(ObjectId)
            && cx.word(key, ROOT_DDOBJ).await?.map(ObjectId) == Some(plan.origin_dir)
        {
            cx.put_word(key, ROOT_DDOBJ, plan.clone.at.id.0).await?;
        }
    }
    move_key_properties(cx, plan.origin_dir, plan.clone.at.id).await
}

/// Moves the key's location and format properties, which are set at its root.
async fn move_key_properties(cx: &mut DslSyncContext<'_>, from: ObjectId, to: ObjectId) -> Result<(), DslError> {
    let from = cx.dir(from).await?.props;
    let to = cx.dir(to).await?.props;
    let location = cx.entries(from).await?.into_iter().find(|(name, _)| name == "keylocation");
    if let Some((name, value)) = location {
        cx.zap_remove(from, &name).await?;
        cx.put(to, &name, value).await?;
    }
    Ok(())
}

fn changed_to(bytes: i64) -> u64 {
    bytes.max(0) as u64
}
