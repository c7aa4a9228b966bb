//! Objects of a pool: dnodes, ZAPs, datasets, intent logs.

pub mod props;
