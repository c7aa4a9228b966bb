//! One body of tests for every kind of disk: simulated, and real ones driven by io_uring and by threads, direct and
//! buffered. What holds for one must hold for all; then the engine may be proven on one and run on another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod conformance;
mod faults;
