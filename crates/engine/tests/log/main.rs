//! The intent log end to end: clients change files of a simulated pool, the power fails, the pool is imported again and
//! its logs are replayed. What was said to be stable is there, in a state that the files really had.
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod away;
mod client;
mod cuts;
mod goldens;
mod keys;
mod lives;
mod projects;
mod promises;
mod unreadable;
mod volumes;
mod world;
