//! The decoders against pools and streams that OpenZFS made. Needs the golden folder: `WEIR_GOLDEN`, or
//! `../shared/golden` beside the repository; without it, one line says that nothing was checked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden;
mod labels;
mod logs;
mod old;
mod streams;
