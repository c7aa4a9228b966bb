//! Tests the decoders on pools and streams made by OpenZFS. Needs the golden folder: `WEIR_GOLDEN`, or
//! `../shared/golden` beside the repository; without it, the tests print one line and are skipped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden;
mod labels;
mod logs;
mod old;
mod streams;
