//! The decoders against pools and streams that OpenZFS made. Needs the golden folder: `WEIR_GOLDEN`, or
//! `../shared/golden` beside the repository; without it, one line says that nothing was checked.

mod golden;
mod labels;
mod streams;
