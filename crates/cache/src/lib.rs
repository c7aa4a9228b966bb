//! The adaptive replacement cache above the block pipeline.
