//! Pools that Weir writes: every arrangement of devices, judged by Weir's own walk and by OpenZFS's zdb.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod account;
mod attach;
mod checkpoint;
mod closing;
mod cuts;
mod datasets;
mod dedup;
mod devices;
mod diff;
mod dtls;
mod encrypted;
mod error_log;
mod events;
mod expand;
mod files;
mod freeing;
mod full;
mod gangs;
mod goldens;
mod keys;
mod l2arc;
mod loading;
mod offline;
mod other_process;
mod real;
mod remove_log;
mod remove_top;
mod removing;
mod resilver;
mod rewind;
mod scrub;
mod space_log;
mod spares;
mod split;
mod stuck;
mod tasks;
mod trim;
mod vdev_cuts;
mod volumes;
mod waiting;
mod work;
mod zaps;
mod zdb;
