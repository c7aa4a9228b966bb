//! Blocks of a pool: virtual devices, redundancy, and the pipeline that turns a block pointer into proven bytes.

pub mod draid;
