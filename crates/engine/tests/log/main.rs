//! The intent log end to end: clients change files of a simulated pool, the power fails, the pool is imported again and
//! its logs are replayed. All changes acknowledged as stable are found, in a state that the files really had.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod accounts;
mod accounts_by_cause;
mod client;
mod cuts;
mod fault_management;
mod goldens;
mod keys;
mod lifecycle;
mod missing_device;
mod projects;
mod promises;
mod readers;
mod scopes;
mod stages;
mod supervision;
mod unreadable;
mod volumes;
mod world;
