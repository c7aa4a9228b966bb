//! Judges: golden pools, OpenZFS's own tools and independent readers against Weir.
