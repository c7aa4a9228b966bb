//! Blocks on simulated disks: what is written by the format's geometry is read back through every fault that redundancy
//! can bear, and beyond it the error says what is wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cuts;
mod device_canary;
mod failing;
mod faults;
mod heal;
mod layouts;
mod loads;
mod locked;
mod log;
mod queue;
mod replacing;
mod stale;
mod store;
mod watched;
mod writes;
