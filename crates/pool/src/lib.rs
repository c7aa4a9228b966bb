//! Pools: finding, importing, walking and verifying them.
