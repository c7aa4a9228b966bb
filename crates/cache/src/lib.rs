//! The adaptive replacement cache above the block pipeline.

pub mod arc;
pub mod prefetch;

#[cfg(test)]
mod tests;
