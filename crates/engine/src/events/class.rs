//! Classes of events.

/// Defines an enum of classes with OpenZFS's names.
macro_rules! classes {
    ($(#[$doc:meta])* $name:ident: $($variant:ident => $class:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are OpenZFS's")]
        pub enum $name {
            $($variant,)*
        }

        impl $name {
            /// The class after its prefix.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $class,)*
                }
            }
        }
    };
}

classes! {
    /// Events of the pool: classes `sysevent.fs.zfs.…` (OpenZFS `include/sys/sysevent/eventdefs.h`).
    PoolEvent:
    PoolImport => "pool_import",
    PoolCreate => "pool_create",
    PoolDestroy => "pool_destroy",
    PoolExport => "pool_export",
    PoolReguid => "pool_reguid",
    ConfigSync => "config_sync",
    HistoryEvent => "history_event",
    VdevAdd => "vdev_add",
    VdevAttach => "vdev_attach",
    VdevRemove => "vdev_remove",
    VdevRemoveAux => "vdev_remove_aux",
    VdevRemoveDev => "vdev_remove_dev",
    VdevSpare => "vdev_spare",
    VdevClear => "vdev_clear",
    ResilverStart => "resilver_start",
    ResilverFinish => "resilver_finish",
    ScrubStart => "scrub_start",
    ScrubResume => "scrub_resume",
    ScrubPaused => "scrub_paused",
    ScrubFinish => "scrub_finish",
    ScrubAbort => "scrub_abort",
    ErrorScrubStart => "errorscrub_start",
    ErrorScrubResume => "errorscrub_resume",
    ErrorScrubPaused => "errorscrub_paused",
    ErrorScrubFinish => "errorscrub_finish",
    ErrorScrubAbort => "errorscrub_abort",
    TrimStart => "trim_start",
    TrimFinish => "trim_finish",
    TrimCancel => "trim_cancel",
    TrimSuspend => "trim_suspend",
}

classes! {
    /// Error reports: classes `ereport.fs.zfs.…` (OpenZFS `include/sys/fm/fs/zfs.h`).
    ErrorReport:
    Delay => "delay",
    Deadman => "deadman",
    IoFailure => "io_failure",
    LogReplay => "log_replay",
    VdevOpenFailed => "vdev.open_failed",
    VdevBadLabel => "vdev.bad_label",
    Checksum => "checksum",
    Io => "io",
    Data => "data",
    Authentication => "authentication",
}
