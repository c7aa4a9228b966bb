//! One conformance test body for every kind of disk: simulated, and real ones driven by io_uring and by threads,
//! direct and buffered. Because all behave the same, tests of the engine on simulated disks are valid for real ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod faults;
