//! Error numbers: the names that scripts know, and those of refused changes.
//!
//! Source: OpenZFS `module/zfs/zcp_global.c`; of each change, the check function in `module/zfs/dsl_dataset.c`, `dsl_destroy.c`,
//! `dsl_bookmark.c`, `dsl_prop.c` and `zcp_set.c`. The numbers are Linux's.

use weir_dsl::sync_tasks::DslError;
use weir_engine::ProgramChange;
use weir_pool::PoolError;

const ENOENT: i32 = 2;
/// The pool's own structures could not be read.
pub const EIO: i32 = 5;
const E2BIG: i32 = 7;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
/// The dataset is in another pool.
pub const EXDEV: i32 = 18;
/// The name or the kind is wrong.
pub const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENAMETOOLONG: i32 = 36;
const ENOTSUP: i32 = 95;
const EDQUOT: i32 = 122;
/// `ZFS_ERR_BOOKMARK_SOURCE_NOT_ANCESTOR`
const NOT_ANCESTOR: i32 = 1039;

/// The error numbers that are global variables.
pub const GLOBALS: [(&str, i32); 40] = [
    ("EPERM", 1),
    ("ENOENT", ENOENT),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", EIO),
    ("ENXIO", 6),
    ("E2BIG", E2BIG),
    ("ENOEXEC", 8),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", EAGAIN),
    ("ENOMEM", 12),
    ("EACCES", EACCES),
    ("EFAULT", 14),
    ("ENOTBLK", 15),
    ("EBUSY", EBUSY),
    ("EEXIST", EEXIST),
    ("EXDEV", EXDEV),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", EINVAL),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ETXTBSY", 26),
    ("EFBIG", 27),
    ("ENOSPC", ENOSPC),
    ("ESPIPE", 29),
    ("EROFS", 30),
    ("EMLINK", 31),
    ("EPIPE", 32),
    ("EDOM", 33),
    ("ERANGE", 34),
    ("EDEADLK", 35),
    ("ENAMETOOLONG", ENAMETOOLONG),
    ("ENOLCK", 37),
    ("ENOTSUP", ENOTSUP),
    ("EDQUOT", EDQUOT),
    ("ECANCELED", 125),
];

/// The number of a refusal of a change.
pub fn of_refusal(change: &ProgramChange, error: &PoolError) -> i32 {
    let PoolError::Dsl(error) = error else { return EIO };
    match error {
        DslError::Object(_) => EIO,
        error if error.is_too_early() => EAGAIN,
        DslError::Missing { .. } | DslError::NoParent { .. } => ENOENT,
        DslError::Exists { .. } => EEXIST,
        DslError::Name { why, .. } if why.ends_with("too long") => ENAMETOOLONG,
        DslError::Kind { why, .. } if why.contains("not an ancestor") => NOT_ANCESTOR,
        DslError::Name { .. } | DslError::Kind { .. } | DslError::Stream { .. } => EINVAL,
        DslError::Busy { .. } | DslError::Held { .. } => EBUSY,
        DslError::HasDependents { what: "snapshots", .. } if matches!(change, ProgramChange::Destroy { .. }) => EBUSY,
        DslError::HasDependents { .. } => EEXIST,
        DslError::Space { why, .. } if why.contains("limit of") || why.contains("quota") => EDQUOT,
        DslError::Space { .. } => ENOSPC,
        DslError::Property { why, .. } if why == "the value is too long" => E2BIG,
        DslError::Property { why, .. } if why == "the name is too long" => ENAMETOOLONG,
        DslError::Property { .. } => EINVAL,
        DslError::Feature { .. } => ENOTSUP,
        DslError::Key { .. } => EACCES,
    }
}

/// Names that a refusal has besides its number: the snapshots that a promotion conflicts with.
pub fn details(error: &PoolError) -> Vec<String> {
    match error {
        PoolError::Dsl(DslError::HasDependents { what, dependents, .. }) if what.starts_with("conflicting") => {
            let snapshots = dependents.iter().filter_map(|name| name.split_once('@'));
            snapshots.map(|(_, snapshot)| snapshot.to_owned()).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_numbers_of_openzfs() {
        let snapshot = ProgramChange::Snapshot { name: "p/a@s".into() };
        let destroy = ProgramChange::Destroy { name: "p/a".into() };
        let name = || "p/a".to_owned();
        let snapshots = || DslError::HasDependents { name: name(), what: "snapshots", dependents: Vec::new() };
        for (change, error, number) in [
            (&snapshot, DslError::missing("p/a"), ENOENT),
            (&snapshot, DslError::busy("p/a@s", "a snapshot was created in this txg"), EAGAIN),
            (&snapshot, DslError::busy("p/a@s", "it is being received"), EBUSY),
            (&snapshot, DslError::Name { name: name(), why: "a component is too long" }, ENAMETOOLONG),
            (&snapshot, DslError::Name { name: name(), why: "a component is empty" }, EINVAL),
            (&snapshot, DslError::Space { name: name(), why: "the limit of snapshots is reached" }, EDQUOT),
            (&snapshot, DslError::Space { name: name(), why: "out of space" }, ENOSPC),
            (&destroy, snapshots(), EBUSY),
            (&destroy, DslError::HasDependents { name: name(), what: "children", dependents: Vec::new() }, EEXIST),
        ] {
            assert_eq!(of_refusal(change, &PoolError::Dsl(error.clone())), number, "{error:?}");
        }
    }

    #[test]
    fn a_conflict_names_snapshots_alone() {
        let what = "conflicting snapshots or bookmarks";
        let dependents = vec!["p/a@s".into(), "p/a#b".into()];
        let error = PoolError::Dsl(DslError::HasDependents { name: "p/a".into(), what, dependents });
        assert_eq!(details(&error), ["s"]);
        assert!(details(&PoolError::Dsl(DslError::missing("p"))).is_empty());
    }
}
