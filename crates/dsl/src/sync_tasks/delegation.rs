//! Delegated permissions of a file system or volume and of those below it (`zfs allow`, `zfs unallow`).
//!
//! ```text
//!   DslDir.permissions ─► ZAP: "ul$1000" ─► ZAP: "create" 0, "mount" 0      permissions of a user, here
//!                              "Ud$1000" ─► ZAP: "@tools" 0                  sets of a user, below
//!                              "s-$@tools" ─► ZAP: …                         a set;  "c-$": of who creates a dataset
//! ```
//!
//! The first letter of a key names who has the permissions: user, group, everyone, creator (`c`) or a set (`s`), as a capital
//! letter for sets of permissions; the second one says where: `l` here, `d` below, `-` for creators and sets.
//!
//! Source: OpenZFS `module/zfs/dsl_deleg.c`, `module/zcommon/zfs_deleg.c` (`zfs_deleg_whokey`).

use super::names::find_dir;
use super::{DslError, DslSyncContext, history, number};
use weir_format::{ObjectId, ObjectType};

/// Maximum length of a key or permission in bytes (`ZFS_MAX_DELEG_NAME` less the NUL).
const MAX_NAME_LEN: usize = 127;

/// Permissions by the key of who has them.
pub type Grants = Vec<(String, Vec<String>)>;

/// Checks that permissions of a dataset may be changed.
///
/// # Errors
/// [`DslError::Missing`], or [`DslError::Name`] for a malformed key or permission.
pub async fn check(cx: &mut DslSyncContext<'_>, name: &str, grants: &Grants) -> Result<(), DslError> {
    find_dir(cx, name).await?;
    for (key, permissions) in grants {
        let wrong = |name: &str, why| DslError::Name { name: name.to_owned(), why };
        let is_key = key.len() <= MAX_NAME_LEN
            && key.get(..1).is_some_and(|who| "ugecsUGECS".contains(who))
            && key.get(1..3).is_some_and(|place| ["l$", "d$", "-$"].contains(&place));
        if !is_key {
            return Err(wrong(key, "is no key of delegated permissions"));
        }
        if let Some(long) = permissions.iter().find(|p| p.is_empty() || p.len() > MAX_NAME_LEN) {
            return Err(wrong(long, "a permission has 1 to 127 bytes"));
        }
    }
    Ok(())
}

/// Adds permissions.
///
/// # Errors
/// Those of [`check`], before anything was changed.
pub async fn allow(cx: &mut DslSyncContext<'_>, name: &str, grants: &Grants) -> Result<(), DslError> {
    check(cx, name, grants).await?;
    let mut found = find_dir(cx, name).await?;
    if found.dir.permissions.0 == 0 {
        found.dir.permissions = cx.zap(ObjectType::DSL_PERMS).await?;
        cx.put_dir(found.id, &found.dir).await?;
    }
    let zap = found.dir.permissions;
    for (key, permissions) in grants {
        let of_key = match cx.word(zap, key).await? {
            Some(id) => ObjectId(id),
            None => {
                let id = cx.zap(ObjectType::DSL_PERMS).await?;
                cx.insert_word(zap, key, id.0).await?;
                id
            }
        };
        for permission in permissions {
            cx.put(of_key, permission, number(0)).await?;
            let text = format!("{key} {permission}");
            history::log(cx, name, found.dir.head_dataset, "permission update", &text).await?;
        }
    }
    Ok(())
}

/// Removes permissions; all of a key that is given with none.
///
/// # Errors
/// Those of [`check`], before anything was changed.
pub async fn unallow(cx: &mut DslSyncContext<'_>, name: &str, grants: &Grants) -> Result<(), DslError> {
    check(cx, name, grants).await?;
    let found = find_dir(cx, name).await?;
    let zap = found.dir.permissions;
    if zap.0 == 0 {
        return Ok(());
    }
    for (key, permissions) in grants {
        let of_key = cx.word(zap, key).await?.map(ObjectId);
        if permissions.is_empty() {
            if let Some(of_key) = of_key {
                cx.zap_remove(zap, key).await?;
                cx.discard(of_key).await?;
            }
            history::log(cx, name, found.dir.head_dataset, "permission who remove", key).await?;
            continue;
        }
        let Some(of_key) = of_key else { continue };
        for permission in permissions {
            cx.zap_remove(of_key, permission).await?;
            let text = format!("{key} {permission}");
            history::log(cx, name, found.dir.head_dataset, "permission remove", &text).await?;
        }
        if cx.entries(of_key).await?.is_empty() {
            cx.zap_remove(zap, key).await?;
            cx.discard(of_key).await?;
        }
    }
    Ok(())
}
