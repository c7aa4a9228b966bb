//! Administrators' commands as types, and their execution by the process that has the pool open.
//!
//! ```text
//!   command line ── cli parses ─► Command ── JSON ─► process that has the pool open ── run ─► Engine: sync tasks
//!                                   │                                                          │
//!   text and exit code ◄── cli ── Answer ◄── JSON ─────────────────────────────────────────────┘
//! ```
//!
//! A [`Command`] is plain data with named fields and converts to and from JSON. It contains no key: a dataset with a key
//! of its own is created by [`CreateDataset::run`], which receives the key separately. Policy is here: missing parents, what values may share,
//! default quotas, refreservation of volumes, what a recursive command means, what `destroy` destroys and in which order.
//!
//! What administrators read is a [`Query`], which is answered with typed rows: see `query`.
//!
//! A change can consist of several sync tasks, for example one per missing parent. Each is atomic; a change that fails
//! in the middle leaves the earlier ones in place. The first successful sync task of a command records the command line
//! in the pool's history.

mod change;
mod command;
mod compatibility;
mod create;
mod destroy;
mod monitor;
mod mounting;
mod observation;
mod pool;
mod problem;
mod program;
mod properties;
mod query;
mod refusal;
mod reservation;
mod rollback;
mod same_txg;
mod selection;
mod settings;
mod sharing;
pub mod size;

pub use change::{Author, Change, HeldSnapshot, SourcedBookmark};
pub use command::{Action, Answer, Command, Outcome, TARGETS};
pub use compatibility::{choose_feature, compatible_features};
pub use create::{CreateDataset, NewKind, NewQuota, file_system, set_quotas, take_quotas};
pub use destroy::Destruction;
pub use monitor::{ChangeMonitor, ChangeProgress};
pub use mounting::{MountChange, MountEffect};
pub use observation::observe;
pub use pool::{FreeingProgress, Host, PoolChange, ProcessChange, ScrubProgress};
pub use problem::{FoundStates, OpenErrors, Problem, Unopened, problem_of_found};
pub use program::{Bytes, LuaProgram, ProgramEnd, ProgramFailure, ProgramFailureKind, ProgramValue};
pub use query::{
    AccountProperty, ChangeKind, CheckpointStatus, DatasetRow, DatasetsQuery, DedupBucket, DedupStatus, DedupSums,
    DiffQuery, DifferenceRow, ErrorScrubStatus, EventField, EventRow, EventValue, EventsQuery, ExpansionStatus,
    FilePath, HealthReason, HistoryQuery, HistoryRow, Hold, HoldsQuery, InternalEvent, IostatQuery, LeafIo, LeafPass,
    LeafPassState, MAX_ROW_BYTES, OpenPool, OperationIo, PermissionsQuery, PermissionsRow, PoolIoRow,
    PoolPropertiesQuery, PoolPropertiesRow, PoolQuery, PoolStatus, Query, RebuildStage, RebuildStatus, RemovalStatus,
    Row, RowDecoder, RowError, RowReceiver, Rows, ScanStage, ScanStatus, StatusQuery, UserspaceQuery, UserspaceRow,
    VdevErrors, VdevFacts, VdevGroup, VdevHealth, VdevIo, VdevPropertiesQuery, VdevPropertiesRow, VdevSpace,
    VdevSpaceRow, VdevStatus, VdevStatusSpace, find_vdevs, oversized, problem_of, spare_state,
};
pub use refusal::{Refusal, RefusalKind};
pub use selection::{below, named_below, snapshots};
pub use settings::{REFUSED_POOL_SETTINGS, REFUSED_VDEV_SETTINGS, pool_comment, stored_property, vdev_setting};
pub use sharing::{check_named, check_share};
